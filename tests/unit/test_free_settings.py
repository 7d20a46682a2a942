"""Settings that are left open are chosen by the turn, and only where it pays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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


TWO = cards("24GiB:936GB/s:25GB/s", "24GiB:936GB/s:25GB/s")


def chosen(model: Model, devices: tuple[Device, ...] = TWO, **asked: Any) -> Plan:
    """What is planned with nothing open but what `asked` says."""
    options = asked.pop("options", PlanOptions())
    return best_settings(model, devices, options, speeds=SPEEDS, ubatches=(), **asked)


def notes_of(plan: Plan) -> dict[str, str]:
    """Remarks by code."""
    return {one.code: one.text for one in plan.advice}


def priced_at(model: Model, n_ctx: int, like: Plan) -> float:
    """The turn with this context, at the depth that `like` was priced at."""
    assert like.speeds is not None
    options = replace(like.options, n_ctx=n_ctx, device_names=())
    return seconds(make_plan(model, TWO, options, speeds=like.speeds), like.speeds)


def test_the_longest_context_that_costs_nothing(model: Model) -> None:
    """-c auto is within 1 % of a context just long enough, and 1024 tokens more are not."""
    plan = chosen(model, context="auto")
    n_ctx = plan.context.n_ctx
    assert n_ctx % 1024 == 0 and plan.feasible and plan.speeds is not None
    assert plan.speeds.turn.n_depth == 16384
    least = priced_at(model, 16384 + 3072, plan)
    assert priced_at(model, n_ctx, plan) <= 1.01 * least < priced_at(model, n_ctx + 1024, plan)
    assert f"-c {n_ctx}" in notes_of(plan)["context-chosen"]


def test_the_longest_context_that_fits(model: Model) -> None:
    """-c max is the training context where that fits, else 1024 more do not fit."""
    assert chosen(model, context="max").context.n_ctx == model.n_ctx_train
    small = cards("4GiB", "4GiB")
    plan = chosen(model, small, context="max", options=PlanOptions(n_gpu_layers=-2))
    n_ctx = plan.context.n_ctx
    assert plan.feasible and n_ctx < (model.n_ctx_train or 0)
    longer = replace(plan.options, n_ctx=n_ctx + 1024)
    assert not make_plan(model, small, longer, speeds=plan.speeds).feasible


def test_cache_types_are_halved_only_where_it_pays(model: Model, tmp_path: Path) -> None:
    """q8_0 where the cache drives experts off the cards, f16 where everything fits."""
    plan = chosen(model, options=PlanOptions(n_ctx=131072), free_k=True, free_v=True)
    names = plan.options.type_k.name, plan.options.type_v.name
    assert names == ("Q8_0", "Q8_0") and "q8_0/q8_0" in notes_of(plan)["cache-types-chosen"]
    keys_only = chosen(model, options=PlanOptions(n_ctx=131072), free_k=True)
    assert keys_only.options.type_v.name == "F16"
    roomy = cards("80GiB:936GB/s:25GB/s", "80GiB:936GB/s:25GB/s")
    brief = SPEEDS._replace(turn=Turn(n_prompt=64, n_generate=64, n_depth=0))
    short = best_settings(
        model,
        roomy,
        PlanOptions(n_ctx=4096),
        speeds=brief,
        ubatches=(),
        free_k=True,
        free_v=True,
    )
    assert short.options.type_k.name == short.options.type_v.name == "F16"


def test_cache_types_that_llama_cpp_refuses_are_not_tried(model: Model) -> None:
    """Without flash attention values stay f16, whatever they would save."""
    options = PlanOptions(n_ctx=131072, flash_attn=False)
    plan = chosen(model, options=options, free_k=True, free_v=True)
    assert plan.options.type_v.name == "F16"
