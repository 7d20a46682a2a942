"""Settings that are left open are chosen by the turn, and only where it pays."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload.clock import clock_of_plan
from offload.device import Device, parse_device
from offload.free_settings import UBATCHES, best_settings
from offload.machine import Host
from offload.model import Model, make_model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.speeds import Speeds
from offload.turn import Turn
from offload.units import GIB
from tuner.synth import write_shape

SPEEDS = Speeds(host=Host(bandwidth_bytes_per_s=80 * 10**9))
OPTIONS = PlanOptions(n_ctx=8192)
SLOW_LINK, FAST_LINK = "24GiB:936GB/s:3GB/s", "24GiB:936GB/s:25GB/s"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model that does not fit on two cards of 24 GiB."""
    path: Path = tmp_path_factory.mktemp("m") / "m.gguf"
    return make_model(read_header(write_shape("gpt-oss-120b", path)))


def cards(*texts: str) -> tuple[Device, ...]:
    """CUDA cards of these sizes and rates."""
    return tuple(parse_device(f"CUDA{d}:{text}") for d, text in enumerate(texts))


def seconds(plan: Plan, speeds: Speeds = SPEEDS) -> float:
    """What the clock says of a plan's turn."""
    return clock_of_plan(plan, speeds).seconds(plan.placement)


def test_the_card_with_the_faster_link_comes_first(model: Model) -> None:
    """Host experts of all layers cross the first card's link; its margin goes with it."""
    devices = cards(SLOW_LINK, FAST_LINK)
    options = PlanOptions(n_ctx=8192, margin_bytes=(GIB, 2 * GIB))
    speeds = SPEEDS._replace(may_drop_cards=False)
    plan = best_settings(model, devices, options, speeds=speeds, ubatches=(), may_reorder=True)
    given = make_plan(model, devices, options, speeds=speeds)
    assert [d.name for d in plan.devices] == ["CUDA1", "CUDA0"]
    assert plan.options.device_names == ("CUDA1", "CUDA0")
    assert plan.margins_bytes == (2 * GIB, GIB)
    assert seconds(plan) < 0.9 * seconds(given)


def test_equal_cards_stay_in_order(model: Model) -> None:
    """What gains nothing is not changed."""
    plan = best_settings(
        model,
        cards(FAST_LINK, FAST_LINK),
        OPTIONS,
        speeds=SPEEDS,
        ubatches=(),
        may_reorder=True,
        may_switch=True,
    )
    assert plan.options.device_names == () and plan.options.op_offload


def test_the_physical_batch_of_the_shortest_turn(model: Model) -> None:
    """No other of those tried is 1 % shorter; a turn without a prompt wants the smallest."""
    devices = cards(FAST_LINK)
    reads = SPEEDS._replace(turn=Turn(8000, 10, 0))
    plan = best_settings(model, devices, OPTIONS, speeds=reads)
    assert plan.feasible and plan.advice is not None
    for n_ubatch in UBATCHES:
        asked = PlanOptions(n_ctx=8192, n_ubatch=n_ubatch, n_batch=max(2048, n_ubatch))
        other = make_plan(model, devices, asked, speeds=reads)
        assert not other.feasible or seconds(plan, reads) <= 1.011 * seconds(other, reads)
    assert plan.options.n_ubatch > 512
    writes = SPEEDS._replace(turn=Turn(1, 500, 0))
    assert best_settings(model, devices, OPTIONS, speeds=writes).options.n_ubatch == 128


def test_a_slow_link_keeps_experts_where_they_are(model: Model) -> None:
    """Behind 0.2 GB/s the processor computes them faster than the card could get them."""
    plan = best_settings(
        model, cards("24GiB:936GB/s:200MB/s"), OPTIONS, speeds=SPEEDS, ubatches=(), may_switch=True
    )
    assert not plan.options.op_offload or plan.options.no_host
