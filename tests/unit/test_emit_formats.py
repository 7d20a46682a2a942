"""The list of formats, what each refuses, and what each does with a target."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from offload.emit import Launch
from offload.emit.build import Build
from offload.emit.formats import FORMAT_NAMES, FORMATS, Format, emit_as
from offload.emit.target import Target, load_wait_s, model_name
from offload.errors import UsageError
from offload.rules import Rule
from tests.emit_readers import (
    read_docker_env,
    read_environment_file,
    read_llama_swap,
    read_preset,
)

DOCS = Path(__file__).parents[2] / "docs" / "emit.md"
LAUNCH = Launch(
    model_path="/models/Big-Model-Q4-00001-of-00003.gguf",
    n_gpu_layers=37,
    tensor_split=(18.0, 19.0),
    rules=(Rule(pattern=r"blk\.([0-5])\.ffn_(up|down)_exps", buffer_type="CPU"),),
    n_ctx=8192,
    n_batch=2048,
    n_ubatch=512,
    kv_unified=False,
    offload_kqv=False,
    load_mode="none",
    layer_bytes=(10**9,) * 37,
)


def test_docs_have_a_section_for_every_format() -> None:
    """docs/emit.md and the program list the same formats in the same order."""
    assert re.findall(r"^## `([\w-]+)`", DOCS.read_text(), re.M) == list(FORMAT_NAMES)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bench", ","),
        ("ini", "#"),
        ("ini", ";"),
        ("ini", "\n"),
        ("ini", "\r"),
        ("ini", "\udcff"),
        ("env", "\r"),
        ("env", "\x01"),
        ("env", "\udcff"),
        ("docker-env", "\n"),
        ("docker-env", "\t"),
        ("docker-env", "\udcff"),
        ("llama-swap", "\n"),
        ("llama-swap", "\udcff"),
        ("compose", "\udcff"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(name: str, text: str) -> None:
    """One character that would be read otherwise, and the error says so in one line."""
    emit_as(LAUNCH, name, Target())
    with pytest.raises(UsageError) as caught:
        emit_as(replace(LAUNCH, model_path=f"/models/a{text}b.gguf"), name, Target())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_files_want_whole_paths_and_commands_do_not(form: Format) -> None:
    """A command runs where it is pasted; a file is read from somewhere else."""
    relative = replace(LAUNCH, model_path="m.gguf")
    if form.is_file:
        with pytest.raises(UsageError, match="--model"):
            emit_as(relative, form.name, Target())
    else:
        assert "m.gguf" in emit_as(relative, form.name, Target())


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_flags_without_a_meaning_are_refused(form: Format) -> None:
    """--port for llama-swap, --image for systemd: nothing is dropped in silence."""
    given = {"host": "127.0.0.1", "port": 9000, "alias": "big", "image": "a/b:c"}
    for flag, value in given.items():
        target = Target(**{flag: value})  # type: ignore[arg-type]
        if flag in form.takes:
            assert str(value) in emit_as(LAUNCH, form.name, target)
        else:
            with pytest.raises(UsageError, match=f"--{flag}"):
                emit_as(LAUNCH, form.name, target)


def test_unknown_formats_are_named() -> None:
    """The error lists those there are."""
    with pytest.raises(UsageError, match="llama-swap"):
        emit_as(LAUNCH, "yaml", Target())


@pytest.mark.parametrize(
    "given",
    [
        {"port": 0},
        {"port": 65536},
        {"host": "a b"},
        {"host": "-x"},
        {"host": ""},
        {"alias": "a,b"},
        {"alias": "a\nb"},
        {"alias": ""},
        {"image": "a b"},
        {"image": "$x"},
        {"image": ""},
    ],
)
def test_targets_that_cannot_be_meant(given: dict[str, object]) -> None:
    """Ports, addresses, names and images of no known form are refused."""
    with pytest.raises(UsageError, match=f"--{next(iter(given))}"):
        Target(**given)  # type: ignore[arg-type]


def test_switches_in_a_preset_and_in_the_environment() -> None:
    """A preset negates by the flag's own name, the environment by the variable's value."""
    section = read_preset(emit_as(LAUNCH, "ini", Target()))["Big-Model-Q4"]
    assert section["no-kv-offload"] == "true" and section["no-kv-unified"] == "true"
    variables = read_environment_file(emit_as(LAUNCH, "env", Target()))
    assert variables["LLAMA_ARG_KV_OFFLOAD"] == "0" and variables["LLAMA_ARG_KV_UNIFIED"] == "0"
    assert read_docker_env(emit_as(LAUNCH, "docker-env", Target())) == variables


def test_what_has_no_variable_is_refused() -> None:
    """--no-op-offload has none in b11434; leaving it out would change the placement's speed."""
    with pytest.raises(UsageError, match="--no-op-offload"):
        emit_as(replace(LAUNCH, op_offload=False), "env", Target())
    assert "no-op-offload = true" in emit_as(replace(LAUNCH, op_offload=False), "ini", Target())


def test_order_of_rules_in_a_preset() -> None:
    """The router sorts flags, so -ncmoe would come before -ot: it is written into the rules."""
    rule = Rule(pattern="blk.0.ffn_up_exps", buffer_type="CUDA0")
    text = emit_as(replace(LAUNCH, rules=(rule,), n_cpu_moe=1), "ini", Target())
    section = read_preset(text)["Big-Model-Q4"]
    assert section["override-tensor"].startswith("blk.0.ffn_up_exps=CUDA0,blk\\.0\\.")
    assert "n-cpu-moe" not in section


@pytest.mark.parametrize("alias", ["*", "default", " x", "a]b"])
def test_sections_that_are_no_models(alias: str) -> None:
    """`[*]` would set things for all models, `[default]` for none."""
    with pytest.raises(UsageError):
        emit_as(LAUNCH, "ini", Target(alias=alias))


def test_names() -> None:
    """The alias, else the file's name without the part number and the suffix."""
    assert model_name(LAUNCH, Target()) == "Big-Model-Q4"
    assert model_name(LAUNCH, Target(alias="big one")) == "big one"
    assert model_name(replace(LAUNCH, model_path="/m/.gguf"), Target()) == "model"
    assert model_name(replace(LAUNCH, model_path="/m/a b[1]:2.gguf"), Target()) == "a-b-1-2"


def test_llama_swap_waits_by_the_bytes() -> None:
    """No fixed time-out: 37 GB take longer than its 120 s."""
    assert load_wait_s(LAUNCH) == 120 + 37 * 20
    assert f"healthCheckTimeout: {120 + 37 * 20}" in emit_as(LAUNCH, "llama-swap", Target())
    assert load_wait_s(replace(LAUNCH, layer_bytes=())) == 120


def test_llama_swap_keeps_its_macros_to_itself() -> None:
    """A path that looks like a macro reaches llama-server as it is; a name cannot."""
    launch = replace(LAUNCH, model_path="/m/${PORT}/${env.HOME}$.gguf")
    argv = read_llama_swap(emit_as(launch, "llama-swap", Target()), "env.HOME")
    assert argv[2] == launch.model_path
    with pytest.raises(UsageError, match="macro"):
        emit_as(launch, "llama-swap", Target(alias="${PORT}"))


@pytest.mark.parametrize("name", ["ini", "env", "docker-env", "compose"])
def test_files_that_ik_llama_cpp_does_not_read(name: str) -> None:
    """Given ik_llama.cpp's program, formats it has no reader for say so."""
    target = Target(build=Build(flags=frozenset({"-mla", "-m"})))
    with pytest.raises(UsageError, match=r"ik_llama\.cpp"):
        emit_as(LAUNCH, name, target)
