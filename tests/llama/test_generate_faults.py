"""Whatever dies while a model is loaded or runs, the caller gets one clear error and no orphans."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offload.device import devices_from_flags
from offload.engine.conversation import answers
from offload.engine.load_options import LoadOptions
from offload.engine.session import LoadProgress, Session, load
from offload.engine.virtual_cards import VirtualCard, virtual_cards
from offload.errors import LlamaCppError, UsageError
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.source import read_header
from offload.units import GIB, MIB
from tuner.synth import write_random

pytestmark = pytest.mark.usefixtures("llama_cpp_python")

LONG_PROMPT = [n % 500 for n in range(2000)]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """55 MiB of F16: enough to be caught while loading, with scratch memory for long prompts."""
    path = tmp_path_factory.mktemp("faults") / "m.gguf"
    return write_random(path, arch="qwen3moe", n_layer=4, quant="F16", n_embd=512, n_ff_exp=512)


@pytest.fixture(scope="module")
def options(model_path: Path) -> LoadOptions:
    """Two cards, a rule that matches nothing (one copy of the graph), large batches."""
    return LoadOptions(
        path=str(model_path),
        tensor_split=(1, 1),
        overrides=(("nothing", "CPU"),),
        n_ctx=4096,
        n_batch=2048,
        n_ubatch=2048,
    )


@pytest.fixture(scope="module")
def total_bytes(options: LoadOptions) -> int:
    """What the second card holds; it also shows that a long prompt runs where memory is plenty."""
    with load(options, virtual=True) as session:
        assert len(session.generate(LONG_PROMPT, n_predict=1).tokens) == 1
        return session.report.devices[1].total_bytes


@pytest.fixture
def two_cards() -> Iterator[tuple[VirtualCard, ...]]:
    """Two cards of this test's own, which it may kill."""
    with virtual_cards(2) as cards:
        yield cards


def endpoints(cards: tuple[VirtualCard, ...]) -> list[str]:
    """Where they are served."""
    return [card.endpoint for card in cards]


def children() -> set[int]:
    """Processes whose parent we are, the dead that nobody waited for included."""
    own = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return {int(pid) for pid in own.read_text().split()}


class KillOnce:
    """Kills what `find` names as soon as loading has begun."""

    def __init__(self, find: Callable[[], int]) -> None:
        self._find = find
        self._done = False

    def __call__(self, progress: LoadProgress) -> None:
        """Be a progress hook."""
        if not self._done:
            self._done = True
            os.kill(self._find(), signal.SIGKILL)


def test_killed_while_loading(options: LoadOptions, two_cards: tuple[VirtualCard, ...]) -> None:
    """SIGKILL, as the kernel's out-of-memory killer sends it: said so, with what to try."""
    before = children()
    stopped: list[int] = []

    def stop_and_kill(progress: LoadProgress) -> None:
        if not stopped:
            stopped.extend(children() - before)
            os.kill(stopped[0], signal.SIGKILL)

    with pytest.raises(LlamaCppError, match=r"loading.* was ended by SIGKILL.*out of memory"):
        load(options, endpoints=endpoints(two_cards), on_progress=stop_and_kill)
    assert stopped
    assert children() == before


def test_killed_while_generating(options: LoadOptions) -> None:
    """What was generated until then is kept, the session is over, and its cards are gone."""
    before = children()
    with load(options, virtual=True) as session:
        stream = session.stream("Hello", n_predict=-1)
        pieces = [next(stream) for _ in range(4)]
        os.kill(session.pid, signal.SIGKILL)
        with pytest.raises(LlamaCppError, match=r"generating.* was ended by SIGKILL"):
            pieces.extend(stream)
        assert stream.is_finished
        assert stream.result.text == "".join(pieces)
        assert len(stream.result.tokens) >= 4
        with pytest.raises(LlamaCppError):
            session.generate("Hello")
    assert children() == before


def test_a_card_killed_while_loading(
    options: LoadOptions, two_cards: tuple[VirtualCard, ...]
) -> None:
    """The address of the lost card is named."""
    kill = KillOnce(lambda: two_cards[1].pid)
    with pytest.raises(
        LlamaCppError, match=f"nothing answers at {two_cards[1].endpoint}"
    ) as caught:
        load(options, endpoints=endpoints(two_cards), on_progress=kill)
    assert "loading" in str(caught.value)
    assert "an RPC server was lost" in str(caught.value)


def test_a_card_killed_while_generating(
    options: LoadOptions, two_cards: tuple[VirtualCard, ...]
) -> None:
    """The same for a card that is lost later."""
    with load(options, endpoints=endpoints(two_cards)) as session:
        stream = session.stream("Hello", n_predict=-1)
        next(stream)
        os.kill(two_cards[0].pid, signal.SIGKILL)
        with pytest.raises(LlamaCppError, match=f"nothing answers at {two_cards[0].endpoint}"):
            list(stream)
        assert stream.result.tokens


def test_a_card_that_hangs(options: LoadOptions, two_cards: tuple[VirtualCard, ...]) -> None:
    """A machine that fell asleep answers nothing for ever; we do not wait for ever."""
    with load(options, endpoints=endpoints(two_cards), timeout_s=3.0) as session:
        session.generate("Hello", n_predict=1)
        os.kill(two_cards[1].pid, signal.SIGSTOP)
        try:
            with pytest.raises(LlamaCppError, match="said nothing for 3 s"):
                session.generate("Hello")
        finally:
            os.kill(two_cards[1].pid, signal.SIGCONT)


@pytest.mark.parametrize("missing_mib", [60, 25])
def test_out_of_memory_at_load(options: LoadOptions, total_bytes: int, missing_mib: int) -> None:
    """For the weights or for the compute buffer: which card and how much it wanted."""
    limits = [2 * GIB, max(total_bytes - missing_mib * MIB, MIB)]
    with (
        virtual_cards(2, limit_bytes=limits) as cards,
        pytest.raises(
            LlamaCppError, match=r"buffer of size \d+; .* has too little memory"
        ) as caught,
    ):
        load(options, endpoints=endpoints(cards))
    assert f"RPC0[{cards[1].endpoint}] has too little memory" in str(caught.value)


def test_the_error_calls_cards_as_the_plan_does(model_path: Path) -> None:
    """Whoever planned for CUDA1 reads of CUDA1, whichever server plays it."""
    model = make_model(read_header(str(model_path)))
    devices = devices_from_flags(None, None, ("CUDA0:1GiB", "CUDA1:1GiB"), found=())
    plan = make_plan(model, devices, PlanOptions(n_ctx=256, margin_bytes=(0,)))
    with virtual_cards(2, limit_bytes=[2 * GIB, 4 * MIB]) as cards:
        with pytest.raises(LlamaCppError, match=r"CUDA1\[[\d.:]+\] has too little memory"):
            load(plan, endpoints=endpoints(cards))
        os.kill(cards[1].pid, signal.SIGKILL)
        assert wait_for(lambda: not answers(cards[1].endpoint))
        with pytest.raises(LlamaCppError, match=rf"nothing answers at {cards[1].endpoint} \(CUDA1"):
            load(plan, endpoints=endpoints(cards))


def test_out_of_memory_at_the_first_long_prompt(options: LoadOptions, total_bytes: int) -> None:
    """A card that holds the model but not a long prompt's scratch memory: load, then the error."""
    limits = [2 * GIB, total_bytes + 7 * MIB]
    with (
        virtual_cards(2, limit_bytes=limits) as cards,
        load(options, endpoints=endpoints(cards)) as session,
    ):
        assert len(session.generate("Hello", n_predict=3).tokens) == 3
        with pytest.raises(LlamaCppError, match=r"generating.*RPC server was lost.*-ub"):
            session.generate(LONG_PROMPT, n_predict=3)


def test_the_host_runs_out_of_memory(options: LoadOptions) -> None:
    """Our own process may be the one that is short."""
    import resource

    with load(replace(options, n_gpu_layers=0)) as session:
        status = Path(f"/proc/{session.pid}/status").read_text()
        used = next(line for line in status.splitlines() if line.startswith("VmData"))
        limit = int(used.split()[1]) * 1024
        resource.prlimit(session.pid, resource.RLIMIT_DATA, (limit, limit))
        with pytest.raises(LlamaCppError, match=r"generating.*short of memory") as caught:
            session.generate(LONG_PROMPT, n_predict=40)
        assert "SIGABRT" in str(caught.value)


@pytest.mark.parametrize("share", [0.9, 0.3, 0.001])
def test_a_truncated_file(model_path: Path, tmp_path: Path, share: float) -> None:
    """An incomplete download is called that, before anything is generated."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model_path.read_bytes()[: int(model_path.stat().st_size * share)])
    with pytest.raises(LlamaCppError, match="could not load the model") as caught:
        load(LoadOptions(path=str(cut), n_gpu_layers=0))
    assert "incomplete" in str(caught.value)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    """Missing, a folder, or something else."""
    with pytest.raises(UsageError, match="No such file"):
        load(LoadOptions(path=str(tmp_path / "none.gguf")))
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(LlamaCppError, match="could not load the model"):
        load(LoadOptions(path=str(tmp_path / "text.gguf")))
    with pytest.raises(LlamaCppError, match="could not load the model"):
        load(LoadOptions(path=str(tmp_path)))


def test_file_names_of_any_bytes(model_path: Path, tmp_path: Path) -> None:
    """A name that is no text in any encoding is still a name."""
    path = tmp_path / os.fsdecode(b"m-\xff-\xe2\x82\xac.gguf")
    path.symlink_to(model_path)
    with load(LoadOptions(path=str(path), n_gpu_layers=0, n_ctx=64)) as session:
        assert session.generate("Hi", n_predict=1).tokens


def test_interrupted_while_loading(options: LoadOptions) -> None:
    """Ctrl-C ends the load, its process and its cards."""
    before = children()

    def interrupt(progress: LoadProgress) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        load(options, virtual=True, on_progress=interrupt)
    assert children() == before


def test_an_error_of_the_caller_while_loading(options: LoadOptions) -> None:
    """Also where the caller's own hook fails."""
    before = children()

    def fail(progress: LoadProgress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        load(options, virtual=True, on_progress=fail)
    assert children() == before


def test_nobody_serves_there(options: LoadOptions) -> None:
    """An address without a server is an error that names it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LlamaCppError, match=f"nothing answers at {address}.*start the RPC"):
            load(options, endpoints=[address, address])


def test_a_log_that_cannot_be_written(
    options: LoadOptions, two_cards: tuple[VirtualCard, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk cuts the log short; the model is loaded and runs all the same."""
    full = open("/dev/full", "w+b", buffering=0)  # noqa: SIM115
    monkeypatch.setattr("offload.engine.session.nameless_log", lambda: full)
    with load(options, endpoints=endpoints(two_cards)) as session:
        assert len(session.generate("Hello", n_predict=3).tokens) == 3
        assert session.report.devices[0].model_bytes > 0
        assert session.check() is None


def test_sessions_side_by_side(options: LoadOptions) -> None:
    """Two at once are two processes; the end of one is nothing to the other."""
    with load(options, virtual=True) as one:
        with load(options, virtual=True) as other:
            assert one.pid != other.pid
            first = other.generate("Hello", n_predict=3)
        assert one.generate("Hello", n_predict=3).tokens == first.tokens


def wait_for(condition: Callable[[], bool]) -> bool:
    """Whether it holds within a few seconds."""
    deadline_s = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def test_a_session_that_is_forgotten(options: LoadOptions) -> None:
    """Without `close` or `with` the processes end with the object."""
    before = children()

    def forget() -> Session:
        return load(options, virtual=True)

    session = forget()
    assert len(children() - before) == 3
    del session
    assert wait_for(lambda: children() == before)
