"""The record of memory growth: found again, bounded, whole, and without names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from offload.device import Device, parse_device
from offload.engine.serving.growth import (
    machine_key,
    margins_with_growth,
    record_growth,
    recorded_growth,
    state_file,
)
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.units import GIB, MIB
from tuner.synth import write_random

CARDS = (parse_device("CUDA0:2GiB"), parse_device("CUDA1:2GiB"))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A small model on two cards."""
    path = tmp_path_factory.mktemp("growth") / "moe.gguf"
    write_random(path, arch="qwen3moe", quant="Q8_0", n_layer=2, n_vocab=512)
    return make_plan(make_model(read_header(path)), CARDS, PlanOptions(n_ctx=512))


def record(plan: Plan, path: Path, growth: dict[str, int]) -> None:
    """One canary."""
    record_growth(plan, growth, n_tokens=500, survived=True, path=path)


def test_the_largest_growth_is_found_again(plan: Plan, tmp_path: Path) -> None:
    """Device by device, over all runs of this machine and model."""
    path = tmp_path / "offload" / "growth.json"
    record(plan, path, {"CUDA0": 5 * MIB, "CUDA1": 9 * MIB})
    record(plan, path, {"CUDA0": 7 * MIB, "CUDA1": 0, "CPU": 1})
    found = recorded_growth(plan.model, CARDS, path=path)
    assert found == {"CUDA0": 7 * MIB, "CUDA1": 9 * MIB, "CPU": 1}


def test_other_machines_and_models_are_not_meant(plan: Plan, tmp_path: Path) -> None:
    """Other cards, or a model of another size: nothing is known."""
    path = tmp_path / "growth.json"
    record(plan, path, {"CUDA0": 5 * MIB})
    assert recorded_growth(plan.model, CARDS[:1], path=path) == {}
    other = replace(plan.model, arch="other")
    assert recorded_growth(other, CARDS, path=path) == {}


def test_free_memory_and_endpoints_do_not_make_another_machine() -> None:
    """A card with less free memory today is the same card; so is one behind another port."""
    busy = replace(CARDS[0], memory_free_bytes=GIB)
    assert machine_key((busy, CARDS[1])) == machine_key(CARDS)

    def rpc(port: int) -> Device:
        card = parse_device(f"RPC0[127.0.0.1:{port}]:1GiB")
        return replace(card, description=f"127.0.0.1:{port}")

    assert machine_key((rpc(1),)) == machine_key((rpc(2),))


def test_the_record_is_bounded(plan: Plan, tmp_path: Path) -> None:
    """The oldest of more than 200 runs are forgotten, and no other file is left behind."""
    path = tmp_path / "growth.json"
    for i in range(205):
        record(plan, path, {"CUDA0": i})
    runs = json.loads(path.read_text())["runs"]
    assert len(runs) == 200 and runs[0]["growth_bytes"] == {"CUDA0": 5}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["growth.json", "growth.lock"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"schema_version": 1, "runs": 3}', '{"schema_version": 2, "runs": []}',
     '{"schema_version": 1, "runs": [1, {"growth_bytes": {"CUDA0": "x"}}]}', "[" * 100_000],
)  # fmt: skip
def test_a_broken_record_is_none_and_is_replaced(plan: Plan, tmp_path: Path, text: str) -> None:
    """It is a cache of measurements, not worth an error."""
    path = tmp_path / "growth.json"
    path.write_text(text)
    assert recorded_growth(plan.model, CARDS, path=path) == {}
    record(plan, path, {"CUDA0": 1})
    assert recorded_growth(plan.model, CARDS, path=path) == {"CUDA0": 1}


def test_margins_are_raised_and_never_lowered() -> None:
    """A growth of 1600 MiB wants an eighth more than itself; one below the margin nothing."""
    growth = {"CUDA0": 1600 * MIB, "CUDA1": 100 * MIB}
    assert margins_with_growth((GIB, GIB), CARDS, growth) == (1800 * MIB, GIB)
    assert margins_with_growth((0, GIB), CARDS, {}) == (0, GIB)
    assert margins_with_growth((0, 0), CARDS, {"CUDA0": 1}) == (MIB, 0)


def test_where_the_record_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_STATE_HOME where it is an absolute path, else ~/.local/state."""
    monkeypatch.setenv("HOME", "/home/x")
    assert state_file({"XDG_STATE_HOME": "/s"}) == Path("/s/offload/growth.json")
    for env in ({}, {"XDG_STATE_HOME": "relative"}):
        assert state_file(env) == Path("/home/x/.local/state/offload/growth.json")
