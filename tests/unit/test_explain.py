"""Why each layer is where it is: facts of the plan, not phrases."""

from __future__ import annotations

import pytest

from benchmarks.speed_cases import model_of
from offload.device import parse_device
from offload.explain import BETWEEN, FIXED, PHASES, Explanation, explain, places_of
from offload.machine import Host
from offload.model import Model
from offload.options import PlanOptions, Strategy
from offload.question import Answered, Question, planned
from offload.render.explanation import explanation_to_json, render_explanation
from offload.rules import parse_overrides
from offload.speeds import Speeds
from offload.units import GIB

MODEL = model_of("qwen3-30b-a3b", "Q4_K_M")
DENSE = model_of("qwen3-14b", "Q4_K_M")


def answer(
    *cards: str, options: PlanOptions | None = None, model: Model = MODEL, host_gib: int = 90
) -> Answered:
    """A plan on these cards."""
    return planned(
        Question(
            model=model,
            devices=tuple(parse_device(card) for card in cards),
            options=PlanOptions(n_ctx=8192) if options is None else options,
            host_free_bytes=host_gib * GIB,
            speeds=Speeds(host=Host(bandwidth_bytes_per_s=80 * 10**9)),
        )
    )


@pytest.fixture(scope="module")
def tight() -> Explanation:
    """Two cards that hold about two thirds of the model."""
    return explain(answer("CUDA0:8GiB:600GB/s", "CUDA1:8GiB:600GB/s"))


def test_a_full_card_is_limited_by_memory(tight: Explanation) -> None:
    """Less is left than the smallest matrix that left, and the sentence says so."""
    plan = tight.answer.plan
    for d, place in enumerate(tight.places[:2]):
        away = [
            plan.devices[d].backend.padded_bytes(t.type, t.shape)
            for t in plan.model.expert_tensors
            if t.name in plan.placement.host_tensors and t.il in plan.split.layers_of(d)
        ]
        assert place.next_bytes == min(away) > plan.headroom_bytes(d) == place.headroom_bytes
        assert place.is_full
        n_away, n_own = len(plan.experts_on_host(d)), len(plan.split.layers_of(d))
        assert any(
            reason == f"CUDA{d} has no room for experts of {n_away} of its {n_own} layers"
            for reason in tight.reasons
        )


def test_places_are_cards_host_and_the_rest(tight: Explanation) -> None:
    """Streams belong to the first card, crossings to nobody."""
    places = {place.name: place for place in tight.places}
    assert list(places) == ["CUDA0", "CUDA1", "CPU", BETWEEN, FIXED]
    assert "link" in places["CUDA0"].seconds["prefill"]
    assert "link" not in places["CUDA1"].seconds["prefill"]
    assert set(places["CPU"].seconds["decode"]) == {"bandwidth"}
    assert places["CPU"].seconds["prefill"] == {}
    assert places["CPU"].limit("decode") == "bandwidth" and places["CPU"].limit("prefill") is None


def test_shares_in_json_add_up(tight: Explanation) -> None:
    """All shares of a phase are 1 together, by place and by limit."""
    data = explanation_to_json(tight)
    for phase in PHASES:
        assert sum(place[f"{phase}_share"] for place in data["places"]) == pytest.approx(1)
        shares = [s for place in data["places"] for s in place[f"{phase}_shares"].values()]
        assert sum(shares) == pytest.approx(1)
    assert data["turn"]["n_depth"] == 4096
    assert data["places"][0]["limited_by"]["memory"] is True
    assert data["next_best"]["difference"]["seconds"] > 0
    assert {p["code"] for p in data["shadow_prices"]} >= {"memory:CUDA0", "ubatch", "kv-q8_0"}


def test_the_text_names_what_the_json_has(tight: Explanation) -> None:
    """Sentences, limits, the next best plan and a line for each change."""
    text = render_explanation(tight)
    assert tight.next_best is not None
    assert f"next best plan: {tight.next_best.name}, +" in text
    for price in tight.prices:
        assert sum(line.startswith(f"{price.change.text} ") for line in text.splitlines()) == 1
    assert "~ " in text and max(map(len, text.splitlines())) < 180


def test_what_fits_is_said_to_fit() -> None:
    """One large card: nothing leaves it, and it is not full."""
    one = answer("CUDA0:40GiB:936GB/s")
    found = explain(one)
    assert "everything fits on the cards, so nothing leaves them" in found.reasons
    assert "CUDA0 holds all experts of its 48 layers" in found.reasons
    assert not found.places[0].is_full and found.places[0].next_bytes is None
    assert "link:CUDA0" not in [price.change.code for price in found.prices]


def test_what_the_user_fixed_is_named() -> None:
    """-ts, -ngl and -ot are the user's, not the planner's."""
    options = PlanOptions(
        n_ctx=8192,
        tensor_split=(1.0, 1.0),
        n_gpu_layers=40,
        override_rules=parse_overrides(r"blk\.20\.ffn_.*exps=CPU"),
    )
    reasons = explain(answer("CUDA0:16GiB", "CUDA1:16GiB", options=options)).reasons
    for flag in ("(-ts)", "by your -ngl", "(-ot, -ncmoe, -cmoe)"):
        assert sum(flag in reason for reason in reasons) == 1
    assert any(reason.startswith("9 whole layers are on the host") for reason in reasons)


def test_a_card_that_is_left_out_is_named() -> None:
    """A slow card that only costs owns nothing, and a sentence says why."""
    found = explain(answer("CUDA0:40GiB:936GB/s", "CUDA1:40GiB:20GB/s"))
    assert any("CUDA1 owns nothing" in reason for reason in found.reasons)
    assert not any(reason.startswith("CUDA1 h") for reason in found.reasons)


@pytest.mark.parametrize("cards", [(), ("CUDA0:6GiB:300GB/s",)])
def test_dense_models_and_no_cards(cards: tuple[str, ...]) -> None:
    """Whole layers on the host, or everything: it is said, and shares still add up."""
    one = answer(*cards, model=DENSE)
    text = render_explanation(explain(one))
    said = "there is no card" if not cards else "whole layers are on the host"
    assert said in text
    places = places_of(one)
    assert one.turn is not None
    total = sum(place.phase_s(phase) for place in places for phase in PHASES)
    assert total == pytest.approx(one.turn.seconds)


def test_what_does_not_fit_is_explained_too() -> None:
    """Nothing has a price then, and no other plan is the next best."""
    found = explain(answer("CUDA0:2GiB", host_gib=4))
    assert not found.answer.plan.feasible and found.next_best is None
    text = render_explanation(found)
    assert "next best plan: none" in text and "does not fit" in text


def test_other_strategies_are_explained_as_they_are() -> None:
    """`--strategy first`: the better plans are named, with less than no seconds more."""
    options = PlanOptions(n_ctx=8192, strategy=Strategy.FIRST)
    found = explain(answer("CUDA0:12GiB:600GB/s", "CUDA1:12GiB:600GB/s", options=options))
    assert found.next_best is not None and found.next_best.difference.seconds < 0
