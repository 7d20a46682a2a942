"""A real llama-server under `offload serve`: plans are loaded as planned and answer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from offload.engine.serving.growth import recorded_growth
from offload.engine.virtual_cards import VirtualCard, virtual_cards
from offload.model import make_model
from offload.saved import read_plan
from offload.source import read_header
from offload.units import MIB
from tests.llama.serving import can_bind, serving
from tuner.synth import write_random

pytestmark = pytest.mark.usefixtures("llama_cpp_python", "llama_server")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MoE of 44 MB whose experts are most of it."""
    path = tmp_path_factory.mktemp("serve") / "moe.gguf"
    return write_random(
        path, arch="qwen3moe", quant="Q8_0",
        n_layer=6, n_vocab=1024, n_embd=256, n_ff_exp=256, n_expert=32,
    )  # fmt: skip


def save_plan(path: Path, model: Path, cards: tuple[VirtualCard, ...], vram: str) -> Path:
    """`offload plan -o json` for these cards."""
    argv = [sys.executable, "-m", "offload", "plan", str(model), "-o", "json"]
    argv += ["--rpc", ",".join(card.endpoint for card in cards), "--vram", vram]
    argv += ["--margin", "1MiB", "-c", "1024", "-ub", "256", "--host-ram", "8GiB"]
    done = subprocess.run(argv, capture_output=True, timeout=120, check=True)
    path.write_bytes(done.stdout)
    return path


@pytest.mark.parametrize(
    ("n_cards", "vram"), [(2, "24MiB"), (3, "18MiB"), (3, "22MiB,16MiB,14MiB")]
)
def test_a_plan_is_served_as_planned(model: Path, tmp_path: Path, n_cards: int, vram: str) -> None:
    """/completion answers, and llama-server's own memory breakdown is the plan's, device by device.

    The table rounds down to whole MiB; compute, an estimate, is within 2 % or 0.3 MiB.
    """
    with virtual_cards(n_cards) as cards:
        path = save_plan(tmp_path / "plan.json", model, cards, vram)
        plan = read_plan(str(path))
        assert plan.placement.placed and plan.feasible
        with serving(tmp_path / "run", str(path)) as run:
            run.wait_ready()
            answer = run.complete()
            assert answer["tokens_predicted"] == 4 and answer["content"]
            server = run.server()
            port = int(run.url.rsplit(":", 1)[1])
            assert run.end() == 0
            log = run.log()
    assert not server.is_running() and can_bind(port)
    assert run.err.rstrip().endswith("stopped")
    rows = {row.name: row for row in log.table}
    for d, memory in enumerate(plan.memory.devices):
        row = rows[plan.devices[d].name]
        assert row.model_mib == memory.model_bytes // MIB
        assert row.context_mib == memory.context_bytes // MIB
        compute = log.bytes_of("compute")[plan.devices[d].buffer_type]
        assert compute == pytest.approx(memory.compute_bytes, rel=0.02, abs=0.3 * MIB)
    host = rows["Host"]
    assert host.model_mib == plan.memory.host.model_bytes // MIB
    assert host.context_mib == plan.memory.host.context_bytes // MIB


def test_a_model_is_planned_and_served_with_more_flags(
    model: Path, cards: tuple[VirtualCard, ...], tmp_path: Path
) -> None:
    """MODEL instead of PLAN; what follows -- reaches llama-server; progress is told."""
    rpc = ",".join(card.endpoint for card in cards)
    flags = ["--rpc", rpc, "--vram", "40MiB", "--margin", "1MiB", "-c", "1024", "-ub", "64"]
    with serving(tmp_path, str(model), *flags, "--", "--alias", "mine", "-t", "1") as run:
        run.wait_ready()
        command = run.server().cmdline()
        assert command[-4:] == ["--alias", "mine", "-t", "1"]
        assert command[command.index("--host") + 1] == "127.0.0.1"
        assert run.complete()["model"]
        assert run.end() == 0
    assert "offload: loading: 100 % read" in run.err


def test_the_canary_reads_a_whole_context_and_is_remembered(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads what a slot holds; the record names no path, host, user or endpoint."""
    with virtual_cards(2) as cards:
        rpc = ",".join(card.endpoint for card in cards)
        flags = ["--rpc", rpc, "--vram", "40MiB", "--margin", "1MiB", "-c", "1024", "-ub", "64"]
        with serving(tmp_path / "run", str(model), *flags, "--canary") as run:
            run.wait_said("canary: 1016 tokens read; memory")
            assert run.end() == 0
    text = run.state.read_text()
    (run_record,) = json.loads(text)["runs"]
    assert run_record["survived"] is True and run_record["n_tokens"] == 1016
    assert set(run_record["growth_bytes"]) == {"CPU", "RPC0", "RPC1"}
    for secret in ("127.0.0.1", str(model), str(tmp_path), "/"):
        assert secret not in text
    plan_devices = devices_of(rpc)
    growth = recorded_growth(make_model(read_header(model)), plan_devices, path=run.state)
    assert growth == run_record["growth_bytes"]


def devices_of(rpc: str) -> Any:
    """The cards the command line makes of these servers."""
    from offload.device import devices_from_flags

    return devices_from_flags(None, (40 * MIB,), (), rpc=tuple(rpc.split(",")))


def test_a_killed_server_is_started_again(model: Path, tmp_path: Path) -> None:
    """SIGKILL of llama-server: said, started again after a second, and it answers again."""
    with virtual_cards(2) as cards:
        rpc = ",".join(card.endpoint for card in cards)
        flags = ["--rpc", rpc, "--vram", "40MiB", "--margin", "1MiB", "-c", "1024", "-ub", "64"]
        with serving(tmp_path, str(model), *flags) as run:
            run.wait_ready()
            first = run.server()
            before = run.complete()["content"]
            first.kill()
            run.wait_said("serving again at")
            assert "was ended by SIGKILL" in run.err and "starting again in 1 s (1 of 5)" in run.err
            assert run.server().pid != first.pid
            assert run.complete()["content"] == before
            assert run.out.count("http") == 1
            assert run.end() == 0


def test_no_orphan_when_we_are_killed(model: Path, tmp_path: Path) -> None:
    """SIGKILL of ourselves takes llama-server with us, and frees the port."""
    with serving(tmp_path, str(model), "--gpus", "0", "-c", "512") as run:
        run.wait_ready()
        family = run.family()
        assert len(family) >= 2
        port = int(run.url.rsplit(":", 1)[1])
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
        _, alive = psutil.wait_procs(family, timeout=10)
        assert not alive
        assert can_bind(port)


def test_a_stop_by_somebody_else_is_respected(model: Path, tmp_path: Path) -> None:
    """Whoever sends llama-server itself a SIGTERM wants it to end: no restart, exit code 0."""
    with serving(tmp_path, str(model), "--gpus", "0", "-c", "512") as run:
        run.wait_ready()
        run.server().terminate()
        assert run.exit_code() == 0
    assert "not started again" in run.err
