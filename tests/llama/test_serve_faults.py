"""What goes wrong around a real llama-server, and that the answer is clear and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from offload.device import parse_device
from offload.engine.ports import Port, is_listening, reserved_ports
from offload.engine.process import started
from offload.engine.serving.readiness import LoadProgress, Patience
from offload.engine.serving.serve import ServeOptions, StopRequest, Voice, serve
from offload.engine.serving.server_command import find_program
from offload.engine.serving.supervise import Policy
from offload.engine.virtual_cards import virtual_cards
from offload.errors import LlamaCppError
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.render.request_json import request_of_plan
from offload.source import read_header
from offload.units import MIB
from tests.llama.serving import WAIT_S, assert_gone, limit_growth, serving
from tuner.synth import write_random

pytestmark = pytest.mark.usefixtures("llama_cpp_python", "llama_server")

HOST_ONLY = ("--gpus", "0", "-c", "512")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MoE of 44 MB whose experts are most of it."""
    path = tmp_path_factory.mktemp("serve") / "moe.gguf"
    return write_random(
        path, arch="qwen3moe", quant="Q8_0",
        n_layer=6, n_vocab=1024, n_embd=256, n_ff_exp=256, n_expert=32,
    )  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a GB: loading takes long enough to be interrupted."""
    path = tmp_path_factory.mktemp("large") / "moe.gguf"
    return write_random(
        path, arch="qwen3moe", quant="Q8_0",
        n_layer=6, n_vocab=1024, n_embd=512, n_ff_exp=512, n_expert=96,
    )  # fmt: skip


class Card:
    """A `ggml-rpc-server` at a port of ours, which can be killed and started again."""

    def __init__(self, program: Path, port: Port) -> None:
        self._argv = (str(program), "-H", "127.0.0.1", "-p", str(port.number), "-t", "1")
        self._stack = contextlib.ExitStack()
        self.port = port

    def start(self) -> None:
        """Start it, and wait until it answers."""
        guard = self._stack.enter_context(
            started(self._argv, python=False, stdin=False, stderr=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL)
        )  # fmt: skip
        self._guard = guard
        deadline_s = time.monotonic() + WAIT_S
        while not is_listening(self.port.number):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        """Of the server itself."""
        return int(psutil.Process(self._guard.pid).children()[0].pid)

    def kill(self) -> None:
        """SIGKILL, and gone."""
        psutil.Process(self.pid).kill()
        self._guard.wait(WAIT_S)

    def close(self) -> None:
        """End whatever still runs."""
        self._stack.close()


@pytest.fixture
def two_cards(rpc_server: Path) -> Iterator[list[Card]]:
    """Two cards that tests may kill."""
    with reserved_ports(2) as ports, contextlib.ExitStack() as stack:
        cards = [Card(rpc_server, port) for port in ports]
        for card in cards:
            stack.callback(card.close)
            card.start()
        yield cards


def rpc_of(cards: list[Card]) -> str:
    """The value of --rpc."""
    return ",".join(card.port.endpoint for card in cards)


def flags(rpc: str, vram: str = "400MiB") -> list[str]:
    """Two cards of `vram` with a small margin, both used although one would be faster."""
    sizes = ["--rpc", rpc, "--vram", vram, "--margin", "1MiB", "-c", "1024", "-ub", "64"]
    return [*sizes, "--strategy", "even"]


# ---- out of memory


@pytest.mark.parametrize("saved", [False, True])
def test_a_card_with_less_memory_than_thought_gets_another_plan(
    model: Path, tmp_path: Path, saved: bool
) -> None:
    """The second card can allocate 16 MiB, not the 40 it was said to: it is relieved.

    A saved plan fixes every place; it is the request in it that is planned again.
    """
    with virtual_cards(2) as cards:
        limit_growth(cards[1].pid, 16 * MIB)
        target = [str(model), *flags(",".join(card.endpoint for card in cards), "40MiB")]
        if saved:
            argv = [sys.executable, "-m", "offload", "plan", *target, "-o", "json"]
            done = subprocess.run(argv, capture_output=True, timeout=WAIT_S, check=True)
            (tmp_path / "plan.json").write_bytes(done.stdout)
            target = [str(tmp_path / "plan.json")]
        with serving(tmp_path, *target) as run:
            run.wait_ready()
            assert run.complete()["tokens_predicted"] == 4
            command = run.server().cmdline()
            assert run.end() == 0
    assert "RPC1 was refused" in run.err
    assert "planned again (1 of 3): " in run.err
    assert "RPC1 layers" in run.err and "-ts" in command
    assert run.log_text().count("error loading model: unable to allocate") >= 1


def test_a_cache_that_does_not_fit_gets_another_plan(model: Path, tmp_path: Path) -> None:
    """The context is what fails: the log names card and bytes."""
    with virtual_cards(2) as cards:
        limit_growth(cards[1].pid, 40 * MIB)
        rpc = ",".join(card.endpoint for card in cards)
        args = [*flags(rpc, "200MiB"), "-c", "16384"]
        with serving(tmp_path, str(model), *args) as run:
            run.wait_ready()
            assert run.end() == 0
    assert "RPC1 was refused" in run.err and "planned again" in run.err
    assert "failed to allocate RPC0[" in run.log_text()


def test_an_honest_end_when_no_plan_helps(model: Path, tmp_path: Path) -> None:
    """A card that can hold next to nothing, and a user who insists on its layers: exit code 2."""
    with virtual_cards(2) as cards:
        limit_growth(cards[1].pid, MIB)
        rpc = ",".join(card.endpoint for card in cards)
        args = [*flags(rpc, "40MiB"), "-ts", "1,1", "-ngl", "7"]
        with serving(tmp_path, str(model), *args) as run:
            assert run.exit_code() == 2
            assert_gone([p for p in psutil.process_iter() if p.ppid() == run.process.pid])
    last = run.err.splitlines()[-1]
    assert last.startswith("offload: RPC1 was refused")
    assert run.out == ""


def test_when_the_user_wants_what_cannot_be(model: Path, tmp_path: Path) -> None:
    """All experts on the cards, and a card without room for them: no other plan is tried."""
    with virtual_cards(2) as cards:
        limit_growth(cards[1].pid, 4 * MIB)
        rpc = ",".join(card.endpoint for card in cards)
        args = [*flags(rpc, "26MiB"), "--strategy", "none"]
        with serving(tmp_path, str(model), *args) as run:
            assert run.exit_code() == 2
    last = run.err.splitlines()[-1]
    assert "RPC1 was refused" in last and "no plan helps: " in last
    assert "planned again" not in run.err


def test_a_long_prompt_that_breaks_a_card_gets_another_plan(
    model: Path, two_cards: list[Card], tmp_path: Path
) -> None:
    """The card dies under the canary; with another plan and the card back, the canary is read.

    Once the server is ready its second card may allocate nothing more, and what one token
    needs is not what 512 need.
    """
    cards = [parse_device(f"RPC{i}[{c.port.endpoint}]:40MiB") for i, c in enumerate(two_cards)]
    options = PlanOptions(n_ctx=4096, n_ubatch=512, margin_bytes=(MIB,))
    plan = make_plan(make_model(read_header(model)), cards, options)
    said: list[str] = []
    stop = StopRequest()

    def ready(_url: str) -> None:
        if not any("planned again" in text for text in said):
            limit_growth(two_cards[1].pid, 0)

    def say(text: str) -> None:
        said.append(text)
        if "planned again" in text:
            with contextlib.suppress(psutil.Error):
                two_cards[1].kill()
            two_cards[1].start()
        if "tokens read; memory" in text or len(said) > 20:
            stop.stop.set()

    settings = ServeOptions(
        program=find_program(),
        port=0,
        log=tmp_path / "log",
        canary_tokens=0,
        state_file=tmp_path / "state" / "growth.json",
    )
    watchdog = threading.Timer(WAIT_S, stop.stop.set)
    watchdog.start()
    outcome = serve(plan, request_of_plan(plan), settings, stop, Voice(say=say, ready=ready))
    watchdog.cancel()
    assert outcome.error is None and outcome.canary is not None and outcome.canary.survived
    (again,) = (text for text in said if "planned again (1 of 3)" in text)
    # the server of a card may die or only hang up; then nobody can tell which of them it was
    assert re.match(r"(RPC0 or )?RPC1 was refused what it needed when it held", again)
    assert outcome.plan is not None
    assert outcome.plan.memory.devices[1].total_bytes < plan.memory.devices[1].total_bytes
    records = json.loads((tmp_path / "state" / "growth.json").read_text())["runs"]
    assert [record["survived"] for record in records] == [False, True]


# ---- RPC servers that are lost


def test_a_card_killed_while_loading(large: Path, two_cards: list[Card], tmp_path: Path) -> None:
    """It is named, tried once more, and that is the end: exit code 2, nothing left."""
    with serving(tmp_path, str(large), *flags(rpc_of(two_cards), "900MiB")) as run:
        run.wait(lambda: "model buffer size" in run.log_text(), "buffers")
        family = run.family()
        two_cards[1].kill()
        assert run.exit_code() == 2
        assert_gone(family)
    last = run.err.splitlines()[-1]
    assert f"the RPC server at {two_cards[1].port.endpoint} does not answer" in last
    assert "http" not in run.out


def test_a_card_killed_while_generating_and_back_again(
    model: Path, two_cards: list[Card], tmp_path: Path
) -> None:
    """The server goes down with its card, waits for it, and serves again once it is back."""
    with serving(tmp_path, str(model), *flags(rpc_of(two_cards), "40MiB")) as run:
        run.wait_ready()
        before = run.complete()["content"]
        errors: list[Exception] = []

        def generate() -> None:
            try:
                run.complete(n_predict=900)
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=generate)
        thread.start()
        run.wait(lambda: "processing task" in run.log_text(), "a task")
        time.sleep(0.3)
        two_cards[0].kill()
        thread.join(WAIT_S)
        assert errors
        run.wait_said(f"the RPC server at {two_cards[0].port.endpoint} does not answer")
        two_cards[0].start()
        run.wait_said("serving again at")
        assert run.complete()["content"] == before
        assert run.end() == 0


def test_a_card_that_freezes_while_loading(
    large: Path, two_cards: list[Card], tmp_path: Path
) -> None:
    """No byte comes through and nothing is said: the server is ended, and once more started."""
    cards = [parse_device(f"RPC{i}[{c.port.endpoint}]:900MiB") for i, c in enumerate(two_cards)]
    options = PlanOptions(n_ctx=512, margin_bytes=(MIB,))
    plan = make_plan(make_model(read_header(large)), cards, options)
    frozen = psutil.Process(two_cards[1].pid)
    said: list[str] = []
    stop = StopRequest()

    def say(text: str) -> None:
        said.append(text)
        if "no sign of life" in text:
            # woken up it would die of writing to a client that is gone
            two_cards[1].kill()
            two_cards[1].start()

    def loading(progress: LoadProgress | None) -> None:
        if progress is not None and progress.percent > 5 and len(said) == 1:
            frozen.suspend()

    settings = ServeOptions(
        program=find_program(),
        port=0,
        log=tmp_path / "log",
        patience=Patience(quiet_min_s=3, share=0),
    )
    watchdog = threading.Timer(WAIT_S, stop.stop.set)
    watchdog.start()
    voice = Voice(say=say, loading=loading, ready=lambda _: stop.stop.set())
    outcome = serve(plan, request_of_plan(plan), settings, stop, voice)
    watchdog.cancel()
    assert outcome.was_ready and outcome.error is None
    assert ["no sign of life" in text for text in said] == [False, True]


# ---- the log, the port, the program


def test_a_full_disk_for_the_log(model: Path, tmp_path: Path) -> None:
    """It is said once, and the server serves."""
    with serving(tmp_path, str(model), *HOST_ONLY, "--log", "/dev/full") as run:
        run.wait_ready()
        for _ in range(3):
            assert run.complete()["tokens_predicted"] == 4
        assert run.end() == 0
    assert run.err.count("cannot be written (No space left on device)") == 1


def test_a_port_in_use_is_noticed_before_loading(model: Path, tmp_path: Path) -> None:
    """Exit code 2 and a clear line; llama-server was not started, no log was made."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with serving(tmp_path, str(model), *HOST_ONLY, "--port", port) as run:
            assert run.exit_code() == 2
    assert f"port {port} of 127.0.0.1 is in use; choose another with --port" in run.err
    assert len(run.err.splitlines()) == 1
    assert not (tmp_path / "server.log").exists()


def test_listening_for_others_is_warned_of(model: Path, tmp_path: Path) -> None:
    """Only where somebody else can connect."""
    with serving(tmp_path, str(model), *HOST_ONLY, "--host", "0.0.0.0") as run:
        run.wait_ready()
        assert run.complete()["tokens_predicted"] == 4
        assert run.end() == 0
    assert "listening on 0.0.0.0: other machines can connect, without any key" in run.err


def script(path: Path, text: str) -> str:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("name", ["/bin/true", "directory", "missing", "text"])
def test_a_program_that_is_not_llama_server(model: Path, tmp_path: Path, name: str) -> None:
    """Exit code 2, one line that names it, nothing started."""
    path = Path(name) if name.startswith("/") else tmp_path / name
    if name == "directory":
        path.mkdir()
    elif name == "text":
        path.write_text("not a program")
        path.chmod(0o755)
    args = ["--llama-server", str(path), *HOST_ONLY]
    with serving(tmp_path / "run", str(model), *args) as run:
        assert run.exit_code() == 2
    assert len(run.err.splitlines()) == 1 and str(path) in run.err
    assert run.out == ""


def test_a_program_that_hangs_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up on after a while (20 s for users), and killed."""
    monkeypatch.setattr("offload.engine.binaries._ASK_TIMEOUT_S", 1.0)
    hangs = script(tmp_path / "hangs", "exec sleep 1000")
    with pytest.raises(LlamaCppError, match="hangs --help did not end within 1 s"):
        find_program(Path(hangs))
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "1000"]
    ]


def test_a_build_too_old_for_a_flag(model: Path, llama_server: Path, tmp_path: Path) -> None:
    """A flag the plan needs is not in --help: said by name; an optional one is left out."""

    def old(name: str, missing: str) -> str:
        real = f'"{llama_server}"'
        text = f'if [ "$1" = --help ]; then {real} --help | grep -v -e "{missing}"; else'
        return script(tmp_path / name, f'{text} exec {real} "$@"; fi')

    needs = old("needs", "--ubatch-size")
    with serving(tmp_path / "1", str(model), "--llama-server", needs, *HOST_ONLY) as run:
        assert run.exit_code() == 2
    assert "does not know -ub" in run.err and len(run.err.splitlines()) == 1
    lacks = old("lacks", "^-fit,")
    with serving(tmp_path / "2", str(model), "--llama-server", lacks, *HOST_ONLY) as run:
        run.wait_ready()
        assert "-fit" not in run.server().cmdline()
        assert run.end() == 0


def test_an_unknown_flag_is_not_passed_on(model: Path, tmp_path: Path) -> None:
    """A mistyped flag of ours must not reach llama-server: only what follows -- does."""
    with serving(tmp_path, str(model), *HOST_ONLY, "--canray", "--", "-t", "1") as run:
        assert run.exit_code() == 2
    assert "--canray is unknown; flags for llama-server go after --" in run.err


def test_a_death_is_not_laid_to_memory_because_of_an_old_failure(
    model: Path, tmp_path: Path
) -> None:
    """A card was short of memory for the pipeline, llama.cpp did without, and was killed later."""
    with virtual_cards(2) as cards:
        limit_growth(cards[1].pid, 64 * MIB)
        rpc = ",".join(card.endpoint for card in cards)
        args = [*flags(rpc), "-c", "4096", "-ub", "1024"]
        with serving(tmp_path, str(model), *args) as run:
            run.wait_ready()
            if "retrying without pipeline parallelism" not in run.log_text():
                pytest.skip("the pipeline's buffers fitted")
            run.server().kill()
            run.wait_said("serving again at")
            assert run.end() == 0
    assert "planned again" not in run.err


def test_flags_that_would_undo_the_plan_are_refused(model: Path, tmp_path: Path) -> None:
    """llama.cpp takes the last of two -ngl: the plan would not hold."""
    with serving(tmp_path, str(model), *HOST_ONLY, "--", "-ngl", "99") as run:
        assert run.exit_code() == 2
    assert "-ngl belongs to the plan" in run.err


def test_a_plan_that_does_not_fit_is_not_started(model: Path, tmp_path: Path) -> None:
    """Exit code 1, as for `offload plan`, with what would help."""
    args = ["--gpus", "1", "--vram", "3MiB", "--margin", "1MiB", "-ngl", "99"]
    with serving(tmp_path, str(model), *args) as run:
        assert run.exit_code() == 1
    assert "not started" in run.err and run.out == ""


def test_cards_that_are_not_here(model: Path, tmp_path: Path) -> None:
    """A plan for cards this llama-server does not see would run on the host without a word."""
    args = ["--gpus", "2", "--vram", "60MiB", "--margin", "1MiB", "-c", "512", "--strategy", "even"]
    with serving(tmp_path, str(model), *args) as run:
        assert run.exit_code() == 2
    assert "sees no CUDA0, CUDA1 (no card at all); plan for the cards that are here" in run.err
    assert len(run.err.splitlines()) == 1
    assert not (tmp_path / "server.log").exists()


def test_a_model_llama_cpp_cannot_load(model: Path, tmp_path: Path) -> None:
    """The file is cut short after its header: llama.cpp's own words, no second try."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[: 20 << 20])
    with serving(tmp_path / "run", str(cut), *HOST_ONLY) as run:
        assert run.exit_code() == 2
    assert "starting again" not in run.err
    assert "offload: " in run.err.splitlines()[-1]


# ---- stopping, at every stage


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_while_loading(large: Path, tmp_path: Path, number: signal.Signals) -> None:
    """128 + signal, since it never served; nothing left."""
    with virtual_cards(1) as (card,):
        args = ["--rpc", card.endpoint, "--vram", "900MiB", "--margin", "1MiB", "-c", "512"]
        with serving(tmp_path, str(large), *args) as run:
            run.wait(lambda: "model buffer size" in run.log_text(), "loading")
            assert "http" not in run.out
            assert run.end(number) == 128 + number
    assert run.err.rstrip().endswith("stopped")


def test_interrupted_before_anything_is_started(large: Path, tmp_path: Path) -> None:
    """While the program is asked for its flags: exit code 130, one line."""
    hangs = script(tmp_path / "hangs", "exec sleep 500")
    with serving(tmp_path / "run", str(large), "--llama-server", hangs, *HOST_ONLY) as run:
        run.wait(lambda: len(run.family()) >= 2, "a question to the program")
        assert run.end(signal.SIGINT) == 130
    assert run.err == "offload: interrupted; nothing was started\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_stopped_when_ready(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 0: it did what it was asked for."""
    with serving(tmp_path, str(model), *HOST_ONLY) as run:
        run.wait_ready()
        assert run.end(number) == 0
    assert run.err.rstrip().endswith("stopped")


def test_stopped_during_the_canary(model: Path, tmp_path: Path) -> None:
    """Nothing is recorded of a canary that did not end."""
    args = ["--gpus", "0", "-c", "4096", "-ub", "32", "--canary"]
    with serving(tmp_path, str(model), *args) as run:
        run.wait_said("canary: ")
        assert "tokens read; memory" not in run.err
        assert run.end(signal.SIGINT) == 0
    assert not run.state.exists()


def test_stopped_during_back_off(model: Path, tmp_path: Path) -> None:
    """While it waits there is no server, and the wait is cut short."""
    with serving(tmp_path, str(model), *HOST_ONLY) as run:
        run.wait_ready()
        run.server().kill()
        run.wait_said("starting again in 1 s")
        assert run.end(signal.SIGINT) == 0
    assert "serving again" not in run.err


def test_a_second_signal_hurries(model: Path, tmp_path: Path, llama_server: Path) -> None:
    """A server that ignores SIGTERM is killed at the second Ctrl-C, not after the grace."""
    deaf = script(
        tmp_path / "deaf",
        f'case "$1" in --help|--version) exec "{llama_server}" "$1";; esac\ntrap "" TERM INT\n'
        "while :; do sleep 1; done",
    )
    args = ["--llama-server", deaf, *HOST_ONLY, "--grace", "600"]
    with serving(tmp_path / "run", str(model), *args) as run:
        run.wait_said("llama-server's log")
        run.wait(lambda: len(run.family()) >= 3, "the server")
        family = run.family()
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.process.poll() is None
        run.process.send_signal(signal.SIGINT)
        assert run.exit_code() == 130
        assert_gone(family)


def test_a_server_without_a_sign_of_life_is_given_up_on(
    model: Path, tmp_path: Path, llama_server: Path
) -> None:
    """It sleeps instead of loading: ended, tried once more, and the end is told."""
    asleep = script(
        tmp_path / "asleep",
        f'case "$1" in --help|--version) exec "{llama_server}" "$1";; esac\nexec sleep 999',
    )
    plan = make_plan(make_model(read_header(model)), (), PlanOptions(n_ctx=512))
    told: list[str] = []
    options = ServeOptions(
        program=find_program(Path(asleep)),
        port=0,
        log=tmp_path / "log",
        policy=Policy(first_delay_s=0.1),
        patience=Patience(quiet_min_s=0.3, share=0.0),
    )
    outcome = serve(plan, request_of_plan(plan), options, StopRequest(), Voice(say=told.append))
    assert outcome.error is not None and not outcome.was_ready
    assert "no sign of life" in str(outcome.error)
    assert any("starting again in 0.1 s (1 of 1)" in text for text in told)
    assert os.listdir(tmp_path).count("log") == 1
    assert sys.platform != "linux" or not [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "999"]
    ]
