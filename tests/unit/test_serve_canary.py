"""The canary's prompt, what it looks at, and what it says; a made-up server, no llama.cpp."""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from offload.cli.serve import _Screen
from offload.device import parse_device
from offload.engine.serving import canary
from offload.engine.serving.canary import CanaryResult, MemoryWatch, make_prompt, run_canary
from offload.engine.serving.readiness import LoadProgress
from offload.engine.serving.serve_options import Voice
from offload.engine.serving.server import ProcessMemory
from offload.engine.serving.server_run import tell_canary
from offload.engine.serving.stopping import Flag
from offload.errors import LlamaCppError
from offload.model import make_model
from offload.nvml import Card
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.units import GIB, MIB
from tuner.synth import write_random


class FakeServer:
    """A server that grows by 1 MiB at each look."""

    exit_code: int | None = None
    address: Any = None

    def __init__(self) -> None:
        self._n_looks = 0

    def memory(self) -> ProcessMemory:
        """More than last time."""
        self._n_looks += 1
        return ProcessMemory(own_bytes=self._n_looks * MIB, file_bytes=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small MoE."""
    path = tmp_path_factory.mktemp("canary") / "moe.gguf"
    return write_random(path, arch="qwen3moe", quant="Q8_0", n_layer=2, n_vocab=512)


def plan_on(model: Path, *cards: str) -> Plan:
    """The plan on these cards, 100 MiB of margin each."""
    options = PlanOptions(n_ctx=512, margin_bytes=(100 * MIB,))
    return make_plan(make_model(read_header(model)), [parse_device(c) for c in cards], options)


def test_a_prompt_is_random_words_and_repeatable() -> None:
    """The same for the same seed, of the length asked for, and not one word over and over."""
    text = make_prompt(1000)
    assert len(text) == 1000 and text == make_prompt(1000) != make_prompt(1000, seed=1)
    assert len(set(text.split())) > 0.9 * len(text.split())


@pytest.mark.parametrize(("asked", "sent"), [(0, 504), (100, 100), (99999, 504)])
def test_as_many_tokens_as_asked_for_but_no_more_than_a_slot_holds(
    monkeypatch: pytest.MonkeyPatch, asked: int, sent: int
) -> None:
    """A tokenizer of 9 characters a token is asked until it has given enough."""

    def answer(_address: Any, path: str, body: Any = None, **_: Any) -> Any:
        if path == "/props":
            return {"default_generation_settings": {"n_ctx": 512}}
        return {"tokens": list(range(len(body["content"]) // 9))}

    monkeypatch.setattr(canary, "ask_json", answer)
    assert len(canary._prompt_tokens(FakeServer.address, asked)) == sent


@pytest.mark.parametrize("props", [{}, [], {"default_generation_settings": {"n_ctx": "many"}}])
def test_a_server_that_does_not_tell_its_context(
    monkeypatch: pytest.MonkeyPatch, props: Any
) -> None:
    """An older build: one error that says so."""
    monkeypatch.setattr(canary, "ask_json", lambda *_, **__: props)
    with pytest.raises(LlamaCppError, match="/props"):
        canary._prompt_tokens(FakeServer.address, 0)


def test_growth_is_the_highest_less_the_first(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA cards by what NVML says is used; cards that are not planned for are left out."""
    free = [10 * GIB, 10 * GIB, 10 * GIB]

    def cards() -> Any:
        return tuple(Card(name="x", memory_free_bytes=n, memory_total_bytes=24 * GIB)
                     for n in free), ()  # fmt: skip

    monkeypatch.setattr("offload.nvml.read_cards", cards)
    monkeypatch.setattr("offload.nvml.cuda_order", lambda found, _: (found, ()))
    watch: Any = MemoryWatch(FakeServer(), plan_on(model, "CUDA0:10GiB", "CUDA2:10GiB"))  # type: ignore[arg-type]
    free[0] -= 300 * MIB
    free[1] -= 999 * MIB
    watch.update()
    free[0] += 200 * MIB
    watch.update()
    assert watch.growth_bytes == {"CPU": 2 * MIB, "CUDA0": 300 * MIB, "CUDA2": 0}


def test_a_card_behind_a_server_here_is_its_process(model: Path) -> None:
    """Who listens at the endpoint is found: here it is this very process."""
    with socket.create_server(("127.0.0.1", 0)) as here:
        endpoint = f"127.0.0.1:{here.getsockname()[1]}"
        assert canary._pid_listening(endpoint) == os.getpid()
        plan = plan_on(model, f"RPC0[{endpoint}]:1GiB", "RPC1[192.0.2.1:50052]:1GiB")
        watch = MemoryWatch(FakeServer(), plan)  # type: ignore[arg-type]
        assert set(watch.growth_bytes) == {"CPU", "RPC0"}


def test_a_canary_that_is_stopped_has_no_result(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is broken off, and nothing is claimed."""
    hung_up = threading.Event()

    def hang(_address: Any, _n: int, progress: Any) -> None:
        progress.hang_up = hung_up.set
        hung_up.wait(30)

    monkeypatch.setattr(canary, "_send", hang)
    stop = Flag()
    threading.Timer(0.1, stop.set).start()
    assert run_canary(FakeServer(), plan_on(model, "RPC0[192.0.2.1:1]:1GiB"), 0, stop) is None  # type: ignore[arg-type]
    assert hung_up.is_set()


def test_a_margin_that_was_too_small_is_named(model: Path) -> None:
    """160 MiB of growth on a margin of 100: plan with 180, the other card as it was."""
    said: list[str] = []
    plan = plan_on(model, "CUDA0:1GiB", "CUDA1:1GiB")
    growth = {"CPU": 0, "CUDA0": 160 * MIB, "CUDA1": MIB}
    result = CanaryResult(n_tokens=504, survived=True, growth_bytes=growth)
    tell_canary(result, plan, Voice(say=said.append))
    assert said[0].endswith("memory CPU +0 MiB, CUDA0 +160 MiB, CUDA1 +1 MiB")
    assert said[1].endswith("plan with --margin 180MiB,100MiB")


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def progress(percent: int) -> LoadProgress:
    """So many of a hundred GB."""
    done = percent * 10**9
    return LoadProgress(
        done_bytes=done, total_bytes=100 * 10**9, elapsed_s=1, bytes_per_s=float(done)
    )


def test_a_terminal_sees_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cleared before a sentence follows."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    screen = _Screen()
    for percent in (1, 2, 50):
        screen.loading(progress(percent))
    screen.loading(None)
    screen.say("done")
    text = terminal.getvalue()
    assert text.count("\n") == 1 and text.endswith("\r\x1b[Koffload: done\n")
    assert text.count("loading: ") == 3


def test_a_file_sees_a_line_for_each_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """No control characters, and not a line for each look."""
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    screen = _Screen()
    for percent in range(101):
        screen.loading(progress(percent))
    assert len(file.getvalue().splitlines()) == 11
    assert "\x1b" not in file.getvalue() and "\r" not in file.getvalue()


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a hang-up every write fails; the server is what matters."""

    class Gone(Terminal):
        def write(self, _text: str) -> int:
            raise OSError("Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    screen = _Screen()
    screen.loading(progress(1))
    screen.say("a sentence")
    screen.say("another")
    assert sys.stderr is None


@pytest.mark.parametrize("stdout", [None, "/dev/full"])
def test_without_a_stdout_the_address_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, stdout: str | None
) -> None:
    """A closed or full stdout is no reason to end a server that is up."""
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    out = None if stdout is None else Path(stdout).open("w", buffering=1)  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", out)
    _Screen().ready("http://127.0.0.1:1")
    assert "ready at http://127.0.0.1:1" in file.getvalue()
    if out is not None:
        monkeypatch.undo()
        with pytest.raises(OSError):
            out.close()
