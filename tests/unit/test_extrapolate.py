"""Does a profile made with a few layers predict the whole model, and other models?

Planted truth: a machine with known seconds per unit, timed with a little noise on small
versions of a real model; nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed_cases import model_of_shape
from offload.context import ContextOptions
from offload.cost import Work, decode_work, prefill_work
from offload.device import Device, device_by_name
from offload.forecast import plan_work
from offload.model import Model
from offload.options import PlanOptions, Strategy
from offload.placement import Placement
from offload.plan import Plan, make_plan
from offload.split import HOST, split_layers
from tuner.extrapolate import extrapolate
from tuner.fit import Run, fit
from tuner.profile import Card, Hardware, Profile, read_profile, write_profile
from tuner.shapes import SHAPES
from tuner.synth import make_like

NOISE = 0.01
SHAPE = SHAPES["qwen3-30b-a3b"]
KINDS = {
    "const": 3e-4, "hop": 2e-5, "ubatch": 1e-3, "carry": 1e-10,
    "layer": 5e-5, "read": 2e-12, "context": 5e-12, "flops": 3e-14, "attention": 5e-14,
    "stream": 5e-11,
}  # fmt: skip


def seconds_of(work: Work) -> float:
    """The truth: the host reads ten times slower; types differ by a few percent."""
    total = 0.0
    for name, amount in work.amounts.items():
        value = KINDS[name.split(".")[1]]
        if ".CPU" in name:
            value *= 10
        total += amount * value * (1.06 if name.endswith("Q6_K") else 1.0)
    return total


def card(name: str = "CUDA0") -> Device:
    """A card with a name of its own."""
    return replace(device_by_name(name, 64 << 30), description="a card")


def timed(model: Model, n_host: int, n_ubatch: int) -> list[tuple[str, Work]]:
    """The work of one token and of a prompt, experts of the first `n_host` layers on the host."""
    placed = {t.name: HOST for t in model.expert_tensors if (t.il or 0) < n_host}
    places = Placement(
        split=split_layers(model.n_layer, 999, [1.0]), placed=placed, has_rules=bool(placed)
    )
    context = ContextOptions(n_ctx=4096, n_ubatch=n_ubatch)
    works = [
        decode_work(model, places, [card()], context=context, n_depth=depth) for depth in (0, 2048)
    ]
    works += [
        prefill_work(model, places, [card()], context=context, n_prompt=1024, n_depth=depth)
        for depth in (0, 2048)
    ]
    return [(f"{model.n_layer} {n_host} {n_ubatch} {i}", work) for i, work in enumerate(works)]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """What 4 and 8 of the 48 layers teach, written and read back."""
    rng = np.random.default_rng(4)
    runs = []
    for n_layer in (4, 8):
        model = model_of_shape(make_like(SHAPE, n_layer=n_layer), "Q4_K_M")
        for n_host in (0, n_layer // 4, n_layer // 2, n_layer):
            for n_ubatch in (128, 512):
                for label, work in timed(model, n_host, n_ubatch):
                    seconds = seconds_of(work) * float(np.exp(rng.normal(0, NOISE)))
                    runs.append(Run(label=label, work=work, seconds=seconds, noise=NOISE))
    made = Profile(
        hardware=Hardware(cards=(Card(name="CUDA0", description="a card"),)),
        build_number=11434,
        build_commit="",
        created="2026-12-01T00:00:00Z",
        coefficients=fit(runs).coefficients,
    )
    path: Path = tmp_path_factory.mktemp("profile") / "p.json"
    write_profile(made, path)
    return read_profile(path)


def full_plan(strategy: Strategy, more: Mapping[str, int], shape: str = "qwen3-30b-a3b") -> Plan:
    """A whole model on one such card, named differently there."""
    model = model_of_shape(SHAPES[shape], "Q4_K_M")
    options = {"n_ctx": 4096, **more}
    return make_plan(model, [card("CUDA1")], PlanOptions(strategy=strategy, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [Strategy.NONE, Strategy.ALL])
@pytest.mark.parametrize("more", [{}, {"n_cpu_moe": 13}, {"n_ubatch": 1024}])
@pytest.mark.parametrize("n_depth", [0, 1000])
def test_a_few_layers_predict_all(
    profile: Profile, strategy: Strategy, more: dict[str, int], n_depth: int
) -> None:
    """From 8 of 48 layers: decode within 5 %, prefill within 10 %, the truth inside the interval.

    Other placements, physical batches and depths than were timed.
    """
    plan = full_plan(strategy, more)
    found = extrapolate(profile, plan, n_depth=n_depth, routing_skew=0.0)
    assert found is not None and found.source == "profile"
    works = plan_work(plan, n_depth=n_depth, routing_skew=0.0)
    for guess, work, tolerance in zip(
        (found.decode, found.prefill), works, (0.05, 0.1), strict=True
    ):
        truth_s = seconds_of(work)
        assert guess.seconds == pytest.approx(truth_s, rel=tolerance)
        assert guess.low_s < truth_s < guess.high_s


def test_another_model_is_predicted_less_surely(profile: Profile) -> None:
    """Other widths lean on what the runs could not part: wider, and the truth inside."""
    same, other = full_plan(Strategy.ALL, {}), full_plan(Strategy.ALL, {}, "gpt-oss-20b")
    found, known = extrapolate(profile, other), extrapolate(profile, same)
    assert found is not None and known is not None
    decode, _ = plan_work(other)
    assert found.decode.low_s < seconds_of(decode) < found.decode.high_s
    assert found.decode.high_s / found.decode.low_s > known.decode.high_s / known.decode.low_s
