"""The unit file, judged by systemd's own parser where there is one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from offload.emit import Launch
from offload.emit.server import emit_server_args
from offload.emit.systemd import emit_systemd, quote_argument
from offload.emit.target import Target
from offload.errors import UsageError
from offload.rules import Rule
from tests.emit_readers import read_unit_command

LAUNCH = Launch(
    model_path="/models/a b.gguf",
    n_gpu_layers=37,
    tensor_split=(18.0, 19.0),
    rules=(Rule(pattern=r"blk\.([0-5])\.ffn_(up|down)_exps$", buffer_type="CPU"),),
    n_ctx=8192,
    n_batch=2048,
    n_ubatch=512,
    load_mode="none",
)
HOSTILE_PATHS = (
    "/m/a b.gguf",
    "/m/%h%n%%.gguf",
    "/m/$HOME${USER}$$.gguf",
    "/m/quote\"s'and\\back\\\\slashes.gguf",
    "/m/new\nline\ttab.gguf",
    "/m/;.gguf",
    "/m/ ; /bin/false",
    "/m/#comment.gguf",
    "/m/日本 é\u2028.gguf",
    "/m/\udcff\udcfe not text.gguf",
    "/m/ends with a backslash\\",
    "/m/\x01\x7f\x85",
)


def systemd_argvs(folder: Path, texts: list[str], program: Path) -> list[list[str]]:
    """What `systemd-analyze verify` understood as each unit's command line."""
    units = []
    for i, text in enumerate(texts):
        unit = folder / f"offload-test{i}.service"
        unit.write_text(text.replace("ExecStart=llama-server", f"ExecStart={program}"))
        units.append(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, units)],
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "debug", "SYSTEMD_LOG_COLOR": "0"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    said = done.stdout + done.stderr
    for line in said.decode(errors="replace").splitlines():
        assert not re.search(r"offload-test\d+\.service:\d+: ", line), line
    dumped = dict(
        re.findall(
            rb"-> Unit offload-test(\d+)\.service:\n.*?\n\t+Command Line: ([^\n]*)\n", said, re.S
        )
    )
    return [_undump(dumped[str(i).encode()]) for i in range(len(texts))]


def _undump(line: bytes) -> list[str]:
    """The dump's own quoting undone, then `$$` as systemd does when it starts the program."""
    words = re.findall(rb'"(?:[^"\\]|\\.)*"|[^\s"]+', line)
    found = []
    for word in words:
        inner = word[1:-1] if word.startswith(b'"') else word
        raw = re.sub(rb"\\([0-7]{3}|.)", _unescape, inner)
        found.append(raw.decode("utf-8", "surrogateescape").replace("$$", "$"))
    return found


def _unescape(match: re.Match[bytes]) -> bytes:
    text = match[1]
    if len(text) == 3:
        return bytes([int(text, 8)])
    return {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f"}.get(
        text, b"\v" if text == b"v" else text
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_understands_the_command_as_meant(tmp_path: Path) -> None:
    """systemd's own parser, asked to dump the units, has our argv for every hostile path."""
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    launches = [replace(LAUNCH, model_path=path) for path in HOSTILE_PATHS]
    texts = [emit_systemd(launch, Target()) for launch in launches]
    seen = systemd_argvs(tmp_path, texts, program)
    for launch, argv in zip(launches, seen, strict=True):
        expected = emit_server_args(launch, str(program))
        assert argv == [*expected, "--host", "127.0.0.1", "--port", "8080"]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_our_reader_agrees(path: str) -> None:
    """The reader that the property tests use is right about the same units."""
    argv = read_unit_command(emit_systemd(replace(LAUNCH, model_path=path), Target()))
    assert argv[:3] == ["llama-server", "-m", path]


def test_loopback_unless_told_otherwise() -> None:
    """Address and port stand in the unit even where nobody gave them."""
    assert "--host 127.0.0.1" in emit_systemd(LAUNCH, Target())
    text = emit_systemd(LAUNCH, Target(host="10.0.0.5", port=9000, alias="big one"))
    assert "--host 10.0.0.5" in text and "--port 9000" in text and '--alias "big one"' in text


def test_locked_memory_is_allowed_where_it_is_asked_for() -> None:
    """A user's unit may not raise the limit, so only a plan with mlock asks for it."""
    assert "LimitMEMLOCK" not in emit_systemd(LAUNCH, Target())
    assert "LimitMEMLOCK=infinity" in emit_systemd(replace(LAUNCH, load_mode="mlock"), Target())


@pytest.mark.parametrize(
    "program", ["./llama-server", "/opt/$x/llama-server", "@sh", "-sh", "a\nb"]
)
def test_programs_that_systemd_would_take_otherwise(program: str) -> None:
    """Relative paths, variables and prefixes of ExecStart= are refused."""
    with pytest.raises(UsageError, match="systemd"):
        emit_systemd(LAUNCH, Target(program=program))


def test_relative_model_is_refused() -> None:
    """A unit is started in another folder."""
    with pytest.raises(UsageError, match="--model"):
        emit_systemd(replace(LAUNCH, model_path="m.gguf"), Target())


def test_plain_words_stay_plain() -> None:
    """What needs no quotes gets none: people edit these files."""
    assert quote_argument("/models/x-1.gguf") == "/models/x-1.gguf"
    assert quote_argument("") == '""'
