"""What llama.cpp's programs answer to --version and --help, and where they are looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from offload.engine.binaries import (
    build_number,
    find_binary,
    library_folder,
    parse_flags,
    parse_help,
    read_build,
    supported_flags,
)
from offload.errors import LlamaCppError

# llama-server b11434 --help, abridged
SERVER_HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-t,    --threads N                      number of CPU threads to use during generation (default: -1)
                                        (env: LLAMA_ARG_THREADS)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default:
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to enable KV cache offloading (default: enabled)
--no-host                               bypass host buffer allowing extra buffers to be used
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
                                        override tensor buffer type; cf. --gone in older builds
-ts,   --tensor-split N0,N1,N2,...      fraction of the model to offload, e.g. with -mg or -sm row
"""
# ggml-rpc-server b11434 --help
RPC_HELP = """\
Usage: ggml-rpc-server [options]

options:
  -h, --help                       show this help message and exit
  -t, --threads N                  number of threads for the CPU device (default: 1)
  -H, --host HOST                  host to bind to (default: 127.0.0.1)
"""


def program(path: Path, script: str) -> Path:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_flags_of_a_server() -> None:
    """Short, long and negated forms count; flags mentioned in descriptions do not."""
    assert parse_flags(SERVER_HELP) == {
        *("-h", "--help", "--usage", "-t", "--threads", "-fa", "--flash-attn"),
        *("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload", "--no-host"),
        *("-ot", "--override-tensor", "-ts", "--tensor-split"),
    }


def test_flags_of_other_programs() -> None:
    """An indented list reads the same."""
    assert parse_flags(RPC_HELP) == {"-h", "--help", "-t", "--threads", "-H", "--host"}
    assert parse_flags("") == frozenset()


def test_flags_are_asked_anew_after_a_change(tmp_path: Path) -> None:
    """An updated program is asked again, an unchanged one is not."""
    path = program(tmp_path / "llama-server", "echo '-m,  --model FNAME   path'; echo x >>$0.asked")
    assert supported_flags(path) == supported_flags(path) == frozenset({"-m", "--model"})
    assert (tmp_path / "llama-server.asked").read_text() == "x\n"
    program(path, "echo '-m,  --model FNAME   path'; echo '-new   a flag'")
    os.utime(path, (1, 1))
    assert "-new" in supported_flags(path)


@pytest.mark.parametrize(
    ("answer", "build"),
    [
        ("version: 6123 (79c1160b)", 6123),
        ("version: 0.6.0-dev (build 11434, commit abcdef0)", 11434),
        ("version: 0.6.0-dev (build 0, commit unknown)", None),
        ("version: 1 (7e4c0a9)", None),
    ],
)
def test_build_number(answer: str, build: int | None, tmp_path: Path) -> None:
    """Old and new forms are read; a build from an archive does not know its number."""
    path = program(tmp_path / "llama-server", f"echo '{answer}' >&2")
    assert build_number(path) == build


def test_not_llama_cpp(tmp_path: Path) -> None:
    """Another program is refused with what it said."""
    path = program(tmp_path / "llama-server", "echo hello; exit 3")
    with pytest.raises(LlamaCppError, match="--version does not answer") as caught:
        build_number(path)
    assert caught.value.exit_code == 3
    with pytest.raises(LlamaCppError, match="--help does not list"):
        supported_flags(path)


def test_not_a_program(tmp_path: Path) -> None:
    """A missing or unusable file is one clear error."""
    with pytest.raises(LlamaCppError, match="cannot be read"):
        supported_flags(tmp_path / "nothing")
    text = tmp_path / "llama-server"
    text.write_text("no program")
    text.chmod(0o755)
    with pytest.raises(LlamaCppError):
        build_number(text)


def test_find_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A given file, a given folder, a neighbour of a given program, then PATH; old names too."""
    server = program(tmp_path / "llama-server", "")
    fit = program(tmp_path / "llama-fit-params", "")
    (tmp_path / "llama-bench").write_text("not executable")
    assert find_binary("llama-server", server) == server
    assert find_binary("llama-server", tmp_path) == server
    assert find_binary("llama-fit-params", server) == fit
    assert find_binary("llama-bench", tmp_path) is None
    assert find_binary("llama-cli", server) is None
    mine = program(tmp_path / "my-build", "")
    assert find_binary("llama-server", mine) == mine
    assert find_binary("llama-fit-params", mine) == fit
    cuda = program(tmp_path / "llama-server-cuda", "")
    assert find_binary("llama-server", cuda) == cuda
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(server)
    assert find_binary("llama-fit-params", tmp_path / "elsewhere" / "link") == fit
    assert find_binary("llama-cli", tmp_path / "gone") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary("llama-server") == server
    old = program(tmp_path / "rpc-server", "")
    assert find_binary("ggml-rpc-server") == old


def test_library_folder(tmp_path: Path) -> None:
    """Only a program with libllama beside it lends us its build."""
    server = program(tmp_path / "llama-server", "")
    assert library_folder(server) is None
    (tmp_path / "libllama.so").touch()
    assert library_folder(server) == tmp_path


def test_help_says_what_a_flag_takes_and_which_variable_it_has() -> None:
    """Hints stand after the spellings, variables in the lines below; switches have no hint."""
    found = parse_help(SERVER_HELP)
    assert found.hints["-fa"] == found.hints["--flash-attn"] == "[on|off|auto]"
    assert found.hints["-ot"] == "<tensor name pattern>=<buffer type>,..."
    assert found.hints["-nkvo"] == found.hints["--no-host"] == ""
    assert found.environment == {"-t": "LLAMA_ARG_THREADS", "--threads": "LLAMA_ARG_THREADS"}


def test_a_build_is_its_help_and_its_version(tmp_path: Path) -> None:
    """Flags, hints, variables and number of one program."""
    path = program(
        tmp_path / "llama-server",
        "if [ $1 = --version ]; then echo 'version: 7000 (abc)'; else\n"
        "printf '%s\\n' '-m,    --model FNAME       path' '  (env: LLAMA_ARG_MODEL)'; fi",
    )
    build = read_build(path)
    assert build.flags == frozenset({"-m", "--model"}) and build.number == 7000
    assert build.hints["-m"] == "FNAME" and build.environment["-m"] == "LLAMA_ARG_MODEL"
    assert build.counts_output_last and not build.is_ik


def test_a_build_without_a_version_has_no_number(tmp_path: Path) -> None:
    """Older llama-bench and ik_llama.cpp's programs do not all answer --version."""
    path = program(
        tmp_path / "llama-bench",
        "if [ $1 = --version ]; then exit 1; else echo '  -m, --model <file>   (default: x)'; fi",
    )
    build = read_build(path)
    assert build.number is None and build.flags == frozenset({"-m", "--model"})
