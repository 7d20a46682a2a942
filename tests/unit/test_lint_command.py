"""Words to settings: how llama.cpp's programs read a command line, and what they refuse."""

from __future__ import annotations

import pytest

from offload.errors import UsageError
from offload.lint.command import Command, Program, parse_command, split_words
from offload.lint.flags import BENCH, COMMON, ENV, IK, REMOVED, is_negative
from offload.lint.reading import read_settings
from offload.lint.settings import Settings
from offload.lint.user_rules import expand_overrides


def _settings(text: str) -> Settings:
    return read_settings(parse_command([text]))


def _codes(command: Command) -> set[str]:
    return {finding.code for finding in command.findings}


def test_a_command_is_one_text_or_many_words() -> None:
    """A quoted command, line continuations included, means the same as its words."""
    text = "llama-server -m 'a b.gguf' \\\n  -ngl 99"
    words = ["llama-server", "-m", "a b.gguf", "-ngl", "99"]
    assert parse_command([text]) == parse_command(words)
    assert split_words([text]) == tuple(words)
    for nothing in ([], [""], ["\\"]):
        with pytest.raises(UsageError, match="no command"):
            parse_command(nothing)
    with pytest.raises(UsageError, match="split into words"):
        parse_command(["llama-server -m 'a"])
    with pytest.raises(UsageError, match="longer than any"):
        parse_command(["x"] * 20_000)


@pytest.mark.parametrize(
    ("text", "prefix", "program", "kind"),
    [
        ("llama-server -m x", (), ("llama-server",), Program.SERVER),
        ("-m x", (), ("llama-server",), Program.SERVER),
        ("./build/bin/llama-bench -m x", (), ("./build/bin/llama-bench",), Program.BENCH),
        ("llama-cli -m x", (), ("llama-cli",), Program.OTHER),
        ("llama server -m x", (), ("llama", "server"), Program.SERVER),
        ("A=1 numactl -N 0 llama-server -m x", ("A=1", "numactl", "-N", "0"), ("llama-server",),
         Program.SERVER),
        ("C:/llama-bench.exe -m x", (), ("C:/llama-bench.exe",), Program.BENCH),
        ("A=1 -m x", ("A=1",), ("llama-server",), Program.SERVER),
    ],
)  # fmt: skip
def test_the_program_is_found(
    text: str, prefix: tuple[str, ...], program: tuple[str, ...], kind: Program
) -> None:
    """Variables, wrappers and paths stand before the program; without one it is llama-server."""
    command = parse_command([text])
    assert (command.prefix, command.program, command.kind) == (prefix, program, kind)
    assert command.of("-m")[0].values == ("x",)


def test_all_spellings_of_a_flag_are_one() -> None:
    """Aliases, underscores in long flags and environment variables all set the same thing."""
    for text in (
        "llama-server -ncmoe 3", "llama-server --n-cpu-moe 3", "llama-server --n_cpu_moe 3",
        "LLAMA_ARG_N_CPU_MOE=3 llama-server", "env LLAMA_ARG_N_CPU_MOE=3 llama-server",
    ):  # fmt: skip
        assert [o.n_layers for o in _settings(text).overrides] == [3], text
    assert _settings("LLAMA_ARG_CTX_SIZE=1 llama-server -c 2").n_ctx == 2
    assert set(ENV.values()) <= {name for name, _ in COMMON.values()}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("-nkvo", "offload_kqv", False),
        ("--no-kv-offload", "offload_kqv", False),
        ("-kvo", "offload_kqv", True),
        ("--no-op-offload", "op_offload", False),
        ("--no-host", "no_host", True),
        ("-kvu", "kv_unified", True),
        ("-no-kvu", "kv_unified", False),
        ("-ngl all", "n_gpu_layers", -2),
        ("-ngl auto", "n_gpu_layers", None),
        ("-ngl -1", "n_gpu_layers", None),
        ("-ngl 42abc", "n_gpu_layers", 42),
        ("-ngl -5", "n_gpu_layers", -2),
        ("-ts 3/1,2", "tensor_split", (3.0, 1.0, 2.0)),
        ("-ts 0,0", "tensor_split", None),
        ("-np -1", "n_parallel", None),
        ("-fa off", "flash_attn", False),
        ("-fa auto", "flash_attn", None),
        ("--no-mmap", "load_mode", "none"),
        ("-lm dio", "load_mode", "dio"),
        ("-dev none", "device_names", ("none",)),
        ("-fit off", "fit", False),
        ("-fitc 8192", "fit_ctx", 8192),
        ("--kv-unified-per-slot 8192", "n_ctx", 32768),
        ("--kv-unified-per-slot 8192 -np 2", "n_ctx", 16384),
        ("--kv-unified-per-slot 8192 -c 0", "n_ctx", 0),
        ("--spec-type ngram-mod,draft-mtp", "drafts_with_mtp", True),
    ],
)
def test_values_mean_what_llama_cpp_makes_of_them(text: str, name: str, value: object) -> None:
    """One flag at a time, common/arg.cpp's handlers."""
    settings = _settings(f"llama-server {text}")
    assert getattr(settings, name) == value
    assert not settings.findings


def test_llama_bench_has_separators_and_sizes_of_its_own() -> None:
    """`/` and `;` join one variant; the context is that of the longest test."""
    settings = _settings(
        "llama-bench -m x -ts 2/1 -dev CUDA1/CUDA0 -ot 'a=CPU;b=CPU' -nkvo 1 -nopo 0 -p 512,2048"
        " -n 64 -pg 4096,128 -d 1024 -ub 256-1024*2"
    )
    assert settings.tensor_split == (2.0, 1.0)
    assert settings.device_names == ("CUDA1", "CUDA0")
    assert [rule.pattern for rule in expand_overrides(settings.overrides)[0]] == ["a", "b"]
    assert (settings.offload_kqv, settings.op_offload) == (False, True)
    assert (settings.n_ctx, settings.n_ubatch, settings.n_parallel) == (4096 + 128 + 1024, 1024, 1)
    assert not settings.fit
    assert not settings.findings


@pytest.mark.parametrize(
    "text", ["-c x", "-c -1", "-ub 0", "-np 300", "-ctk q3_K", "-fa maybe", "-ngl x", "-ts a,b",
             "-sm diagonal", "-lm fast", "-fit perhaps", "-ncmoe -1", "-c 99999999999"],
)  # fmt: skip
def test_bad_values_are_found_and_the_default_stands_in(text: str) -> None:
    """What llama.cpp would refuse is one finding, never a traceback."""
    settings = _settings(f"llama-server {text}")
    assert [finding.code for finding in settings.findings] == ["bad-value"]
    assert settings.n_batch == 2048


def test_rules_are_kept_in_the_order_of_the_command() -> None:
    """`-ot`, `-cmoe`, `-ncmoe` and `-ncffn` fill one list; the first match wins there."""
    command = parse_command(["llama-server -ncffn 1 -ot 'a=CPU,b=CUDA0' -ncmoe 2 -cmoe"])
    rules, findings = expand_overrides(read_settings(command).overrides)
    assert not findings
    assert [rule.flag for rule in rules] == ["-ncffn", "-ot", "-ot", "-ncmoe", "-ncmoe", "-cmoe"]
    assert rules[0].pattern == r"blk\.0\.ffn_(up|down|gate)\."
    assert rules[4].pattern == r"blk\.1\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def test_older_llama_bench_had_mmap_as_a_number() -> None:
    """`-mmp 0` is a removed flag with a value, and means `-lm none`."""
    command = parse_command(["llama-bench -m x -mmp 0 -ngl 9"])
    assert _codes(command) == {"removed-flag"}
    assert command.findings[0].fix == "-lm none"
    assert read_settings(command).load_mode == "none"
    assert read_settings(command).n_gpu_layers == 9


def test_an_argv_is_not_split_again() -> None:
    """A program whose path has a blank or a quote is one word there."""
    command = parse_command(["./it's here/llama-server"], is_argv=True)
    assert command.program == ("./it's here/llama-server",)


def test_empty_values_are_values() -> None:
    """An empty word may be what a flag is set to."""
    command = parse_command(["llama-server", "--cpu-mask", "", "-m", "x"])
    assert not command.findings and command.of("-m")[0].values == ("x",)


def test_ik_llama_cpp_is_recognised_by_its_flags() -> None:
    """Its own switches make the command one of its, where llama.cpp's wishes do not count."""
    command = parse_command(["llama-server -m x -fmoe -fa -ngl 99 --no-mmap --fit -sm graph"])
    assert command.is_ik
    assert _codes(command) == {"ik-flag"}
    assert read_settings(command).split_mode == "graph"
    plain = parse_command(["llama-server -m x -fa -ngl 99 --no-mmap --fit"])
    assert _codes(plain) == {"flash-attn-without-value", "removed-flag", "missing-value"}


def test_a_given_build_decides_what_is_known() -> None:
    """With the build's own flags an old switch is fine or an error, not a guess."""
    old, new = frozenset(("-m", "--no-mmap")), frozenset(("-m", "-lm"))
    assert not parse_command(["llama-server -m x --no-mmap"], old).findings
    (finding,) = parse_command(["llama-server -m x --no-mmap"], new).findings
    assert (finding.code, str(finding.severity)) == ("removed-flag", "error")
    assert _codes(parse_command(["llama-server -m x -lm none"], old)) == {"unknown-flag"}


def test_words_behind_a_pipe_are_not_ours() -> None:
    """A redirection or a second command ends the first."""
    command = parse_command(["llama-server -m x -c 4096 2>&1 | tee log --foo"])
    assert not command.findings
    assert [setting.name for setting in command.settings] == ["-m", "-c"]


def test_unknown_flags_name_the_nearest() -> None:
    """A slip of the finger is met with the flag that was meant, and does not eat the next one."""
    command = parse_command(["llama-server --ctx-sise 4096 -ngl 9 stray"])
    assert [finding.code for finding in command.findings] == ["unknown-flag", "unknown-flag"]
    assert "--ctx-size" in command.findings[0].fix
    assert command.of("-ngl")[0].values == ("9",)


def test_the_tables_are_sound() -> None:
    """No spelling stands twice, and none of ik_llama.cpp's or the removed ones is llama.cpp's."""
    assert not set(IK) & set(COMMON)
    assert not set(REMOVED) & set(COMMON)
    assert all(n in (0, 1, 2) for _, n in (*COMMON.values(), *BENCH.values(), *IK.values()))
    assert is_negative("-nkvo") and is_negative("--no-mmap") and not is_negative("--no-host")


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("./wrap.sh -m m.gguf --alias llama-3 -ngl 99", "./wrap.sh"),
        ("sudo -u llama-user llama-server -m m.gguf", "llama-server"),
        ("docker run --name llama-1 llama.cpp:server -m m.gguf", "llama.cpp:server"),
        ("docker run --rm llama.cpp:server -m m.gguf", "llama.cpp:server"),
    ],
)
def test_a_value_is_no_program(words: str, program: str) -> None:
    """What only looks like a program of llama.cpp, as the value of a flag, is not taken for it."""
    command = parse_command([words])
    assert command.program == (program,)
    assert [s.values for s in command.settings if s.name == "-m"] == [("m.gguf",)]


def test_a_command_of_something_else_is_no_question() -> None:
    """A program with none of llama.cpp's flags: nothing to lint."""
    for words in ("foo", "ls -la", "vllm serve m --tensor-parallel-size 2"):
        with pytest.raises(UsageError, match="no program of"):
            parse_command(words.split())
