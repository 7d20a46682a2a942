"""The emitted command lines, accepted by the real programs."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from offload.device import parse_device
from offload.emit import emit_bench_args, emit_server_args, make_launch
from offload.engine.binaries import supported_flags
from offload.engine.virtual_cards import VirtualCard
from offload.model import make_model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.units import GIB, MIB


@pytest.fixture(scope="module")
def plan(small_moe: Path, cards: tuple[VirtualCard, ...]) -> Plan:
    """A small model that three small cards do not hold."""
    model = make_model(read_header(small_moe))
    options = PlanOptions(
        n_ctx=512,
        n_ubatch=64,
        margin_bytes=(MIB,),
        rpc=",".join(card.endpoint for card in cards),
        device_names=tuple(card.name for card in cards),
    )

    def planned(room_bytes: int, strategy: Strategy) -> Plan:
        devices = [parse_device(f"{c.name}[{c.endpoint}]:{room_bytes}") for c in cards]
        return make_plan(model, devices, replace(options, strategy=strategy))

    bare = planned(GIB, Strategy.ALL).memory.devices
    least = max(memory.total_bytes for memory in bare)
    made = planned(least + model.expert_bytes // 6 + 2 * MIB, Strategy.OWN)
    assert made.rules
    return made


def test_llama_bench_runs_the_plan(plan: Plan, llama_server: Path) -> None:
    """llama-bench takes the emitted shares, devices and rules, and measures."""
    bench = llama_server.with_name("llama-bench")
    if not bench.exists():
        pytest.skip("no llama-bench beside llama-server")
    argv = emit_bench_args(make_launch(plan), str(bench))
    done = subprocess.run(
        [*argv, "-p", "32", "-n", "2", "-r", "1", "-t", "1", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    samples = json.loads(done.stdout)
    assert len(samples) == 2
    assert samples[0]["tensor_buft_overrides"] != "none"


def test_llama_server_knows_every_flag(plan: Plan, llama_server: Path) -> None:
    """Only flags of the build's own --help are emitted, and none is missing."""
    known = supported_flags(llama_server)
    argv = emit_server_args(make_launch(plan), str(llama_server), known)
    assert argv == emit_server_args(make_launch(plan), str(llama_server))
    flags = [text for text in argv[1:] if text.startswith("-")]
    assert set(flags) <= known
