"""Whatever a path or a rule holds: each format is read back as the launch, or refused.

A refusal must name something in the text that the format really cannot hold.
"""

from __future__ import annotations

import shlex
import subprocess
from posixpath import basename, dirname

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.emit.build import NEWEST
from offload.emit.formats import FORMAT_NAMES, emit_as
from offload.emit.launch import Launch
from offload.emit.server import emit_server_args
from offload.emit.settings import server_settings, with_rules_only
from offload.emit.target import Target, model_name
from offload.errors import UsageError
from offload.rules import Rule
from tests.emit_readers import (
    flags_of,
    read_compose,
    read_docker_env,
    read_environment_file,
    read_llama_swap,
    read_preset,
    read_unit_command,
)

HOSTILE = st.sampled_from(
    (
        *("'", '"', "\\", "$", "$$", "${PORT}", "${env.HOME}", "$HOME", "%", "%%", "%n", "`id`"),
        *("\n", "\r", "\t", " ", "#", ";", " #", "=", ",", ":", "{", "}", "[", "]", "*", "&", "!"),
        *("-", "--", " -x", "\\\n", "\\n", "\\x41", "\x01", "\x7f", "\x85", "\u2028", "\ufeff"),
        *("é", "日本", "\U0001f600", "\udcff", "yes", "~", "0x1", "null", "/", "@", ".gguf", "|"),
    )
)
PIECES = st.one_of(
    HOSTILE, st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=4)
)
NAMES = st.lists(PIECES, min_size=1, max_size=6).map("".join)
PATHS = NAMES.map(lambda name: "/" + name)
PATTERNS = NAMES.filter(lambda text: not set(text) & set(",="))
BUFFERS = st.sampled_from(["CPU", "CUDA0", "RPC0[127.0.0.1:50052]"])
RULES = st.lists(st.builds(Rule, pattern=PATTERNS, buffer_type=BUFFERS), max_size=2).map(tuple)
LAUNCHES = st.builds(
    Launch,
    model_path=PATHS,
    rules=RULES,
    n_gpu_layers=st.integers(0, 99),
    tensor_split=st.sampled_from([(), (18.0, 19.0), (0.25, 1e-7)]),
    cpu_moe=st.booleans(),
    n_cpu_moe=st.sampled_from([None, 0, 3]),
    n_ctx=st.integers(1, 1 << 20),
    n_batch=st.sampled_from([512, 2048]),
    n_ubatch=st.sampled_from([64, 512]),
    n_parallel=st.sampled_from([None, 2]),
    kv_unified=st.sampled_from([None, True, False]),
    type_k=st.sampled_from(["f16", "q8_0"]),
    flash_attn=st.sampled_from([None, True, False]),
    swa_full=st.booleans(),
    offload_kqv=st.booleans(),
    no_host=st.booleans(),
    load_mode=st.sampled_from(["auto", "none", "mmap+mlock"]),
)


def _values(launch: Launch) -> str:
    """All text of the launch that a user or a model's author chose."""
    return launch.model_path + "".join(rule.pattern for rule in launch.rules)


def _check_refusal(
    launch: Launch, error: UsageError, cannot: str, *, bytes_too: bool = True
) -> None:
    """The refusal is right: one of the characters is there, or bytes that are no text."""
    chars = set(_values(launch))
    assert chars & set(cannot) or (bytes_too and any(0xD800 <= ord(c) <= 0xDFFF for c in chars)), (
        f"refused for no reason: {error}"
    )
    assert "\n" not in str(error) or "\n" in _values(launch)


@given(LAUNCHES)
def test_a_shell_reads_the_command_back(launch: Launch) -> None:
    """`args` survives a POSIX shell whatever bytes it holds."""
    assert shlex.split(emit_as(launch, "args", Target())) == list(emit_server_args(launch))


@given(LAUNCHES)
def test_a_shell_reads_the_bench_command_back(launch: Launch) -> None:
    """`bench` refuses what llama-bench would split, and nothing else."""
    try:
        argv = shlex.split(emit_as(launch, "bench", Target()))
    except UsageError as error:
        _check_refusal(launch, error, ",;", bytes_too=False)
        return
    assert argv[:3] == ["llama-bench", "-m", launch.model_path]
    assert "," not in launch.model_path


@given(LAUNCHES)
def test_a_preset_reads_back(launch: Launch) -> None:
    """`ini`: every value ends up under its flag, unless it holds what ends a value."""
    try:
        text = emit_as(launch, "ini", Target())
    except UsageError as error:
        edges = "".join((launch.model_path[-1:], *(rule.pattern[:1] for rule in launch.rules)))
        _check_refusal(launch, error, "\0\n\r;#" + "".join(set(edges) & set(" \t")))
        return
    section = read_preset(text)[model_name(launch, Target())]
    written = server_settings(with_rules_only(launch), NEWEST)
    assert section == {s.key: "true" if s.value is None else s.value for s in written}


@given(LAUNCHES)
def test_an_environment_file_reads_back(launch: Launch) -> None:
    """`env`: every variable has its setting's value."""
    try:
        text = emit_as(launch, "env", Target())
    except UsageError as error:
        _check_refusal(launch, error, "".join(map(chr, [*range(9), *range(11, 32), 127])))
        return
    expected = {s.env: s.env_value for s in server_settings(launch, NEWEST)}
    assert read_environment_file(text) == expected


@settings(max_examples=40, deadline=None)
@given(LAUNCHES)
def test_a_real_shell_sources_the_environment_file(launch: Launch) -> None:
    """`set -a; . FILE` in sh gives the same variables."""
    try:
        text = emit_as(launch, "env", Target())
    except UsageError:
        return
    script = 'set -a; eval "$TEXT"; unset TEXT; env -0'
    seen = subprocess.run(
        ["/bin/sh", "-c", script], env={"TEXT": text}, capture_output=True, check=True
    ).stdout.decode()
    found = dict(entry.split("=", 1) for entry in seen.split("\0") if entry.startswith("LLAMA_"))
    assert found == {s.env: s.env_value for s in server_settings(launch, NEWEST)}


@given(LAUNCHES)
def test_dockers_environment_file_reads_back(launch: Launch) -> None:
    """`docker-env`: what follows `=` is the value, to the end of the line."""
    try:
        text = emit_as(launch, "docker-env", Target())
    except UsageError as error:
        _check_refusal(launch, error, "".join(map(chr, [*range(32), 127])))
        return
    expected = {s.env: s.env_value for s in server_settings(launch, NEWEST)}
    assert read_docker_env(text) == expected


@given(LAUNCHES)
def test_llama_swap_reads_the_command_back(launch: Launch) -> None:
    """`llama-swap` runs our argv, with its port and no macro of ours."""
    try:
        text = emit_as(launch, "llama-swap", Target(alias="the model"))
    except UsageError as error:
        _check_refusal(launch, error, "\0\n\r")
        return
    seen = read_llama_swap(text, "the model")
    assert seen == [*emit_server_args(launch), "--host", "127.0.0.1", "--port", "5800"]


@given(LAUNCHES)
def test_systemd_reads_the_command_back(launch: Launch) -> None:
    """`systemd` takes any path at all: newlines and bytes that are no text as well."""
    seen = read_unit_command(emit_as(launch, "systemd", Target()))
    assert seen == [*emit_server_args(launch), "--host", "127.0.0.1", "--port", "8080"]


@given(LAUNCHES)
def test_compose_reads_the_service_back(launch: Launch) -> None:
    """`compose`: our flags, the model inside its read-only folder, published on loopback."""
    try:
        service = read_compose(emit_as(launch, "compose", Target()))
    except UsageError as error:
        _check_refusal(launch, error, "\0\n\r")
        return
    seen, expected = flags_of(service["command"]), flags_of(emit_server_args(launch)[1:])
    assert seen["-m"] == f"/models/{basename(launch.model_path)}"
    assert {flag: seen[flag] for flag in expected if flag != "-m"} == {
        flag: value for flag, value in expected.items() if flag != "-m"
    }
    (volume,) = service["volumes"]
    assert volume["source"] == dirname(launch.model_path) and volume["read_only"] is True
    assert service["ports"] == ["127.0.0.1:8080:8080"]


@given(LAUNCHES, st.sampled_from(FORMAT_NAMES))
def test_nothing_but_a_usage_error_comes_out(launch: Launch, name: str) -> None:
    """Every format either answers or says in one line why it cannot."""
    try:
        text = emit_as(launch, name, Target(alias="x"))
    except UsageError as error:
        assert str(error)
    else:
        assert text.endswith("\n")


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_hostile_names_stay_out_of_other_lines(name: str) -> None:
    """A path cannot add a key, a unit line or a variable of its own."""
    launch = Launch(
        model_path="/m\nExecStartPre=/bin/evil\nLLAMA_ARG_TOOLS=all\n[x]\nport = 1\n.gguf",
        n_gpu_layers=0,
        n_ctx=1,
        n_batch=1,
        n_ubatch=1,
    )
    try:
        text = emit_as(launch, name, Target(alias="x") if name != "bench" else Target())
    except UsageError:
        return
    if name in ("args", "bench", "ik"):
        assert launch.model_path in shlex.split(text)
    elif name == "env":
        assert read_environment_file(text)["LLAMA_ARG_MODEL"] == launch.model_path
    else:
        assert "/bin/evil" not in [line.partition("=")[2] for line in text.split("\n")]
