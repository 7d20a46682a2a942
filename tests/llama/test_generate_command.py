"""`offload generate` as scripts and people use it: stdout, stderr, exit codes, and Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from offload.engine.virtual_cards import virtual_cards

pytestmark = pytest.mark.usefixtures("llama_cpp_python")

TWO_CARDS = (
    "--gpus", "2", "--vram", "1GiB", "--margin", "0", "--host-ram", "4GiB", "-c", "512",
    "--strategy", "even",  # so small a model is faster on one
)  # fmt: skip
INTERRUPTED = 130


def command(*args: str | Path) -> list[str]:
    """The argv of `offload generate …`."""
    return [sys.executable, "-m", "offload", *map(str, args)]


def offload(*args: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        command(*args), capture_output=True, text=True, input=stdin, timeout=120, check=False
    )


def test_text_on_stdout_and_numbers_on_stderr(small_moe: Path) -> None:
    """stdout is the text and nothing else; timings and memory are for people."""
    args = ("generate", small_moe, *TWO_CARDS, "--virtual", "-p", "Hello", "-n", "8")
    streamed = offload(*args)
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stdout == offload(*args, "--no-stream").stdout
    told = json.loads(offload(*args, "-o", "json").stdout)
    assert streamed.stdout.rstrip("\n") == told["text"].rstrip("\n")
    for word in ("load", "prompt eval", "eval", "CUDA1", "allocated", "stopped"):
        assert word in streamed.stderr
    assert all(line.startswith("offload: ") for line in streamed.stderr.splitlines())


def test_json(small_moe: Path) -> None:
    """Text, tokens, why it ended, seconds, and every device's memory planned and actual."""
    done = offload(
        "generate", small_moe, *TWO_CARDS, "--virtual", "-p", "Hello", "-n", "8", "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["schema_version"] == 1
    assert len(told["tokens"]) == 8
    assert told["stop"] == "length"
    assert told["n_prompt"] == 7
    assert {"load_s", "prompt_s", "prompt_t_s", "decode_s", "decode_t_s"} <= set(told["timings"])
    assert [(d["name"], d["runs_on"]) for d in told["devices"]] == [
        ("CUDA0", "RPC0"),
        ("CUDA1", "RPC1"),
    ]
    for device in (*told["devices"], told["host"]):
        # the plan is for CUDA, whose buffers pad more than those of the cards that play it
        ratio = device["actual"]["model_bytes"] / device["planned"]["model_bytes"]
        assert 0.98 <= ratio <= 1
        assert device["actual"]["context_bytes"] == device["planned"]["context_bytes"]


def test_a_saved_plan(small_moe: Path, tmp_path: Path) -> None:
    """A plan from a file or from stdin says the same as one made on the spot."""
    saved = offload("plan", small_moe, *TWO_CARDS, "-o", "json").stdout
    file = tmp_path / "plan.json"
    file.write_text(saved)
    args = ("--virtual", "-p", "Hello", "-n", "8", "-o", "json")
    texts = {
        json.loads(done.stdout)["text"]
        for done in (
            offload("generate", file, *args),
            offload("generate", "-", *args, stdin=saved),
            offload("generate", small_moe, *TWO_CARDS, *args),
        )
    }
    assert len(texts) == 1


def test_sampling_flags(small_moe: Path) -> None:
    """A seed repeats; another gives something else; a stop text ends it."""
    args = ("generate", small_moe, "--gpus", "0", "-c", "256", "-p", "Hi", "--no-stream", "-n", "9")
    warm = ("--temp", "1.5", "--top-k", "0", "--top-p", "1", "--min-p", "0")
    first, again, other = (offload(*args, *warm, "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again != other
    greedy = offload(*args).stdout
    stopped = offload(*args, "--stop", greedy[6:9])
    assert stopped.stdout.rstrip("\n") == greedy[: greedy.find(greedy[6:9])].rstrip("\n")
    assert "a stop word" in stopped.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-p", "x" * 600), "the context holds 512"),
        (("-p", "Hi", "-n", "0"), "at least one"),
        (("-p", "Hi", "--chat"), "no chat template"),
        (("-p", "Hi", "--seed", "-1"), "seed -1"),
        (("-p", "Hi", "--temp", "nan"), "temperature"),
    ],
)
def test_questions_that_cannot_be_meant(small_moe: Path, args: tuple[str, ...], words: str) -> None:
    """One line on stderr, nothing on stdout, exit code 2."""
    done = offload("generate", small_moe, *TWO_CARDS, "--virtual", *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_cards_that_are_not_here(small_moe: Path) -> None:
    """Without --virtual the cards must be real; the message says what can be done."""
    done = offload("generate", small_moe, *TWO_CARDS, "-p", "Hi")
    assert done.returncode == 2
    assert "no CUDA0, CUDA1" in done.stderr and "--virtual" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_plan_that_does_not_fit(small_moe: Path) -> None:
    """It is not tried: the answer is no."""
    done = offload(
        "generate", small_moe, "--gpus", "1", "--vram", "1GiB", "--host-ram", "1MiB", "-p", "Hi",
        "--virtual",
    )  # fmt: skip
    assert done.returncode == 1
    assert "does not fit" in done.stderr
    assert done.stdout == ""


def test_nobody_reads_any_more(small_moe: Path) -> None:
    """`| head -c 1` ends the run without a complaint."""
    with running(small_moe, "--gpus", "0", "-c", "4096", "-n", "-1") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(30) == 0
        assert b"Traceback" not in process.stderr.read()


def test_progress_on_a_terminal(small_moe: Path) -> None:
    """Where stderr is a terminal a line tells how far loading is, and is gone at its end."""
    master, terminal = pty.openpty()
    try:
        args = ("generate", small_moe, "--gpus", "0", "-c", "256", "-p", "Hi", "-n", "1")
        subprocess.run(
            command(*args), stdout=subprocess.DEVNULL, stderr=terminal, timeout=60, check=True
        )
        shown = os.read(master, 1 << 16).decode()
    finally:
        os.close(master)
        os.close(terminal)
    lines, _, rest = shown.rpartition("\r\x1b[K")
    assert "offload: loading 0.0 of 0.0 GiB" in lines
    assert "loading" not in rest and "prompt eval" in rest


def test_what_a_model_says_does_not_drive_the_terminal() -> None:
    """Control characters are shown as such on a terminal; line ends stay."""
    code = (
        "import sys; from offload.cli.generate import _harmless;"
        "print(_harmless('a\\x1b[31m\\nb\\tc'), end='')"
    )
    master, terminal = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", code], stdout=terminal, timeout=60, check=True)
        assert os.read(master, 100) == b"a\\x1b[31m\r\nb\tc"
    finally:
        os.close(master)
        os.close(terminal)
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert piped.stdout == b"a\x1b[31m\nb\tc"


@contextmanager
def running(model: Path, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command while it runs; no process of it may be left afterwards."""
    process = subprocess.Popen(
        command("generate", model, "-p", "Hello", *args),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        bufsize=0,
    )
    family: set[int] = set()
    try:
        deadline_s = time.monotonic() + 30
        while not family and process.poll() is None and time.monotonic() < deadline_s:
            family |= children(process.pid)
            time.sleep(0.01)
        yield process
    finally:
        family |= children(process.pid)
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    assert family
    deadline_s = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]


def children(pid: int) -> set[int]:
    """Its child processes, and theirs."""
    try:
        text = "".join(p.read_text() for p in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return set()
    found = {int(child) for child in text.split()}
    return found.union(*(children(child) for child in found))


def interrupted(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Send Ctrl-C; what it still writes to stdout and stderr."""
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == INTERRUPTED, stderr
    assert b"Traceback" not in stderr
    return stdout, stderr


def test_interrupted_while_loading(small_moe: Path) -> None:
    """A server that accepts and never answers: loading waits, and Ctrl-C ends it."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        args = (
            "--gpu",
            f"RPC0[{endpoint}]:1GiB",
            "--margin",
            "0",
            "--host-ram",
            "4GiB",
            "-c",
            "256",
        )
        silent.settimeout(30)
        with running(small_moe, *args) as process:
            connection, _ = silent.accept()
            with connection:
                stdout, stderr = interrupted(process)
    assert stdout == b""
    assert b"interrupted" in stderr.lower()


def test_interrupted_while_generating(small_moe: Path) -> None:
    """What was generated stands on stdout, whole, and the timings are told."""
    with running(small_moe, "--gpus", "0", "-c", "4096", "-n", "-1") as process:
        assert process.stdout is not None
        head = process.stdout.read(8)
        stdout, stderr = interrupted(process)
    text = (head + stdout).decode()
    assert text.endswith("\n") and len(text) >= 2
    assert "stopped: interrupted" in stderr.decode()


def test_interrupted_with_json(small_moe: Path) -> None:
    """The JSON is complete and says that it was cut short."""
    args = ("--gpus", "0", "-c", "32768", "-n", "-1", "-o", "json")
    with running(small_moe, *args) as process:
        time.sleep(2.0)
        stdout, _ = interrupted(process)
    told = json.loads(stdout)
    assert told["stop"] == "cancelled"
    assert told["tokens"] and told["text"]


def test_interrupted_while_a_card_hangs(small_moe: Path) -> None:
    """Ctrl-C does not wait for a card that answers no more."""
    with virtual_cards(1) as (card,):
        args = ("--gpu", f"RPC0[{card.endpoint}]:2GiB", "--host-ram", "4GiB", "-c", "4096")
        with running(small_moe, *args, "-n", "-1") as process:
            assert process.stdout is not None
            head = process.stdout.read(8)
            os.kill(card.pid, signal.SIGSTOP)
            try:
                stdout, _ = interrupted(process)
            finally:
                os.kill(card.pid, signal.SIGCONT)
    assert (head + stdout).endswith(b"\n")


def test_terminated(small_moe: Path) -> None:
    """SIGTERM and SIGKILL leave no process either."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with running(small_moe, *TWO_CARDS, "--virtual", "-n", "-1") as process:
            assert process.stdout is not None
            process.stdout.read(1)
            process.send_signal(number)
            assert process.wait(30) == -number


def test_a_card_lost_while_generating(small_moe: Path) -> None:
    """One line says which; what was generated before is on stdout; exit code 2."""
    with virtual_cards(1) as (card,):
        args = ("--gpu", f"RPC0[{card.endpoint}]:2GiB", "--host-ram", "4GiB", "-c", "4096")
        with running(small_moe, *args, "-n", "-1") as process:
            assert process.stdout is not None
            assert process.stdout.read(8)
            os.kill(card.pid, signal.SIGKILL)
            stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 2
    assert stdout.endswith(b"\n")
    assert f"nothing answers at {card.endpoint}" in stderr.decode()
    assert len(stderr.splitlines()) == 1
