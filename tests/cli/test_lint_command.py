"""`offload lint` as scripts use it: stdout, stderr, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tuner.synth import write_shape


def offload(*args: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "offload", *map(str, args)],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 119B shape."""
    return write_shape("mistral-small-4-119b", tmp_path_factory.mktemp("m") / "119b.gguf")


CARDS = ("--gpus", "2", "--vram", "22.5GiB", "--host-ram", "120GiB")


def test_json_keeps_the_contract_and_errors_exit_1(shape: Path) -> None:
    """Every key scripts rely on; the corrected command, linted again, exits 0."""
    command = ("llama-server", "-m", shape, "-ngl", "99", "-ts", "1,1", "-c", "8192", "-ncmoe", "9")
    done = offload("lint", *CARDS, "-o", "json", "--", *command)
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["schema_version"] == 1
    assert {"card-over-budget", "ncmoe-relieves-first-card-only"} <= {
        finding["code"] for finding in told["findings"]
    }
    assert all(set(f) == {"code", "severity", "text", "fix"} for f in told["findings"])
    assert [device["name"] for device in told["devices"]] == ["CUDA0", "CUDA1"]
    assert told["devices"][1]["layers"] == list(range(19, 36))
    assert told["devices"][1]["short_bytes"] > 0
    again = offload("lint", *CARDS, "-o", "json", "--", *told["fixed_argv"])
    assert again.returncode == 0, again.stdout
    assert json.loads(again.stdout)["fixed_argv"] == told["fixed_argv"]


def test_a_quoted_command_is_the_same(shape: Path) -> None:
    """The whole command as one argument, as it comes from a clipboard."""
    text = f"llama-server -m {shape} -ngl 99 -c 8192 -ts 1,1"
    one, many = offload("lint", *CARDS, "--", text), offload("lint", *CARDS, "--", *text.split())
    assert (one.returncode, one.stdout) == (many.returncode, many.stdout)
    assert "error [card-over-budget]" in one.stdout
    assert "CUDA1  19-35 + output" in one.stdout


def test_a_model_from_elsewhere(shape: Path) -> None:
    """A path that is not here is a note; --model lays the command over another file."""
    command = ("llama-server", "-m", "/models/not-here.gguf", "-ngl", "99", "-c", "4096")
    done = offload("lint", *CARDS, "--", *command)
    assert done.returncode == 0
    assert "model-not-read" in done.stdout
    done = offload("lint", *CARDS, "--model", shape, "--", *command)
    assert done.returncode == 1
    assert "card-over-budget" in done.stdout
    assert "llama-server -m /models/not-here.gguf" in done.stdout


def test_logs_with_and_without_a_command(tmp_path: Path) -> None:
    """A log alone is enough; several are compared; bytes that are no text do not matter."""
    log = tmp_path / "run.log"
    log.write_bytes(b"\xff\xfe\nalloc_tensor_range: failed to allocate CUDA1 buffer of size 9999\n")
    done = offload("lint", "--log", log)
    assert done.returncode == 1
    assert "error [out-of-memory] CUDA1" in done.stdout
    done = offload("lint", "--log", log, "--log", log, "-o", "md")
    assert "`same-bytes-again`" in done.stdout
    done = offload("lint", "--log", "-", stdin=log.read_text(errors="replace"))
    assert "error [out-of-memory] CUDA1" in done.stdout
    empty = tmp_path / "empty.log"
    empty.write_text("")
    done = offload("lint", "--log", empty)
    assert (done.returncode, "nothing-in-log" in done.stdout) == (0, True)


def test_logs_that_are_pipes(tmp_path: Path) -> None:
    """`--log <(journalctl …)` and a long stdin: what came last counts."""
    failed = b"x" * 100 + b"\nfailed to allocate CUDA1 buffer of size 123456789\n"
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(failed,))
    writer.start()
    done = offload("lint", "--log", tmp_path / "pipe")
    writer.join()
    assert (done.returncode, "out-of-memory" in done.stdout) == (1, True), done.stderr
    long = "much ado about nothing\n" * 3_000_000 + failed.decode()
    done = offload("lint", "--log", "-", stdin=long)
    assert (done.returncode, "out-of-memory" in done.stdout) == (1, True), done.stderr
    argv = [sys.executable, "-m", "offload", "lint", "--log", "-"]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *argv], capture_output=True, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (2, "offload: --log -: stdin is closed\n")


def test_wrong_usage_exits_2(tmp_path: Path) -> None:
    """Nothing to lint, an unreadable log, nonsense in our own flags: one line on stderr."""
    for args in (
        ("lint",),
        ("lint", "--"),
        ("lint", "--log", tmp_path / "missing.log"),
        ("lint", "--log", tmp_path),
        ("lint", "--gpus", "2", "--vram", "much", "--", "llama-server"),
        ("lint", "--margin", "x", *CARDS, "--", "llama-server"),
        ("lint", "--", "llama-server -m 'x"),
        ("lint", "--", "foo"),
        ("lint", "--", "ls", "-la"),
    ):
        done = offload(*args)
        assert done.returncode == 2, args
        assert done.stdout == ""
        assert done.stderr.startswith("offload: ") and done.stderr.count("\n") == 1, done.stderr


def test_hostile_text_cannot_drive_the_terminal() -> None:
    """Control characters of the command come out escaped in every form of output."""
    for form in ("table", "md", "json"):
        done = offload(
            "lint", *CARDS, "-o", form, "--", "llama-server", "--\x1b[31mx", "-c", "\x07"
        )
        assert done.returncode == 1
        assert "\x1b" not in done.stdout and "\x07" not in done.stdout
