"""A command as its author wrote it: lint prices what llama-server really does with it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from offload.device import parse_device
from offload.engine.virtual_cards import VirtualCard
from offload.lint import Machine, lint, parse_command
from offload.model import make_model
from offload.rules import HOST as CPU
from offload.source import read_header
from offload.units import GIB
from tests.llama.server import load_for_real

COMMANDS = (
    "-ngl 99 -ts 3,1,2 -ncmoe 3",
    "-ngl 5 -ts 1/1/1 --cpu-moe",
    "-ngl all -ts 0.5,0.25,0.25 -ot 'blk\\.4\\.ffn_up_exps=BUFFER1,exps=CPU'",
    "-ngl 99 -dev RPC2,RPC0 -ts 2,3 -ot 'blk\\.(1|2)\\.ffn=CPU' -ncmoe 1",
    "-ngl 99 -sm none -mg 1 -ncmoe 2",
    "-ngl 99 -ts 1,1,1 -ot 'blk.1.*=CPU' -cmoe -ctk q8_0 -ctv q8_0 -np 2",
)


@pytest.mark.parametrize("flags", COMMANDS)
def test_layers_and_tensors_are_where_lint_says(
    flags: str,
    small_moe: Path,
    llama_server: Path,
    cards: tuple[VirtualCard, ...],
    tmp_path: Path,
) -> None:
    """Owner of every layer, tensors on the host, KV bytes per card: as the real log has them."""
    flags = flags.replace("BUFFER1", f"RPC0[{cards[1].endpoint}]")
    endpoints = ",".join(card.endpoint for card in cards)
    text = f"-m {small_moe} --rpc {endpoints} -c 512 -ub 64 -fit off {flags}"
    devices = tuple(parse_device(f"{card.name}[{card.endpoint}]:{GIB}") for card in cards)
    model = make_model(read_header(str(small_moe)))
    report = lint(
        parse_command([f"llama-server {text}"]), model=model, machine=Machine(devices=devices)
    )
    plan = report.plan
    assert plan is not None and not report.has_errors

    log = load_for_real(llama_server, shlex.split(text), tmp_path, dict(os.environ))
    names = {d: card.name for d, card in enumerate(plan.devices)} | {-1: "CPU"}
    assert log.layers == tuple(names[owner] for owner in plan.split.owners)
    hosted = {name for name, buffer in log.overridden.items() if buffer.startswith("CPU")}
    assert hosted == plan.placement.host_tensors
    elsewhere = {name: b for name, b in log.overridden.items() if not b.startswith("CPU")}
    index = {card.buffer_type: d for d, card in enumerate(plan.devices)} | {CPU: -1}
    assert {n: index[b] for n, b in elsewhere.items()} == {
        n: d for n, d in plan.placement.placed.items() if d != -1
    }
    kv = log.bytes_of("KV")
    for d, card in enumerate(plan.devices):
        assert kv.get(card.buffer_type, 0) == pytest.approx(
            plan.memory.devices[d].context_bytes, abs=16_000
        )
