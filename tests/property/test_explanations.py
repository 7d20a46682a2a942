"""What holds of every explanation and of every price, whatever the machine?"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.speed_cases import model_of
from offload.choice import SAME_SHARE
from offload.device import parse_device
from offload.explain import PHASES, next_best, places_of
from offload.forecast import make_forecast
from offload.machine import Host
from offload.model import Model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.question import Answered, Question, between, planned
from offload.speeds import Speeds
from offload.turn import Turn
from offload.units import GIB
from offload.what_if import describe_machines, plan_machines

SHAPES = ("qwen3-30b-a3b", "gpt-oss-120b", "glm-4.5-air")
BANDWIDTHS = ("936GB/s", "360GB/s", "1792GB/s")


@lru_cache
def shape(name: str) -> Model:
    """A model of the catalogue."""
    return model_of(name, "Q4_K_M")


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """A model on one to three cards, unequal in memory, bandwidth and link."""
    n = draw(st.integers(1, 3))
    cards = tuple(
        parse_device(
            f"CUDA{d}:{draw(st.integers(4, 30))}GiB:{draw(st.sampled_from(BANDWIDTHS))}"
            f":{draw(st.sampled_from(('25GB/s', '6GB/s')))}"
        )
        for d in range(n)
    )
    turn = Turn(draw(st.integers(1, 4000)), draw(st.integers(1, 1000)), draw(st.integers(0, 6000)))
    return Question(
        model=shape(draw(st.sampled_from(SHAPES))),
        devices=cards,
        options=PlanOptions(n_ctx=8192, n_ubatch=draw(st.sampled_from((256, 512, 1024)))),
        host_free_bytes=200 * GIB,
        speeds=Speeds(turn=turn, host=Host(bandwidth_bytes_per_s=80 * 10**9)),
    )


def turn_s(answer: Answered) -> float:
    """Seconds of its turn."""
    assert answer.turn is not None
    return answer.turn.seconds


@given(questions())
@settings(max_examples=12, deadline=None)
def test_places_share_the_whole_turn(question: Question) -> None:
    """Seconds of all places and limits are the turn's seconds, none twice and none missing."""
    answer = planned(question)
    places = places_of(answer)
    total = sum(place.phase_s(phase) for place in places for phase in PHASES)
    assert total == pytest.approx(turn_s(answer), rel=1e-9)
    for phase in PHASES:
        whole = sum(place.phase_s(phase) for place in places)
        shares = [s / whole for place in places for s in place.seconds[phase].values()]
        assert sum(shares) == pytest.approx(1.0) and min(shares) >= 0.0


@given(questions(), st.integers(0, 2), st.sampled_from((GIB // 2, GIB, 4 * GIB)))
@settings(max_examples=12, deadline=None)
def test_more_memory_never_costs(question: Question, card: int, n_bytes: int) -> None:
    """A turn with more memory is no longer, but for what is taken as equally long."""
    d = card % len(question.devices)
    device = question.devices[d]
    more = replace(device, memory_free_bytes=device.memory_free_bytes + n_bytes)
    devices = (*question.devices[:d], more, *question.devices[d + 1 :])
    before, after = planned(question), planned(question._replace(devices=devices))
    if before.plan.feasible:
        assert after.plan.feasible
        assert turn_s(after) <= turn_s(before) * (1 + SAME_SHARE + 1e-9)


@given(questions())
@settings(max_examples=6, deadline=None)
def test_the_next_best_is_not_better(question: Question) -> None:
    """What people use is no shorter than the plan, but for what is taken as equally long."""
    answer = planned(question)
    found = next_best(answer)
    if found is not None and answer.plan.feasible:
        assert found.answer.plan.feasible
        assert turn_s(found.answer) >= turn_s(answer) / (1 + SAME_SHARE + 1e-9)
        assert found.difference.seconds == pytest.approx(turn_s(found.answer) - turn_s(answer))


@given(questions())
@settings(max_examples=8, deadline=None)
def test_the_machine_here_is_planned_as_by_plan(question: Question) -> None:
    """The row `here`, and the same cards written out, are the plan itself."""
    own = make_plan(
        question.model, question.devices, question.options,
        host_free_bytes=question.host_free_bytes, speeds=question.speeds,
    )  # fmt: skip
    forecast = make_forecast(own, question.speeds.host)
    text = ",".join(
        f"{d.memory_free_bytes}B:{d.bandwidth_bytes_per_s}:{d.link_bytes_per_s}"
        for d in question.devices
    )
    machines = describe_machines(["here", text], question.devices)
    rows = plan_machines(
        machines, question.devices, question.model, question.options,
        host_free_bytes=question.host_free_bytes, speeds=question.speeds,
    )  # fmt: skip
    for row in rows:
        assert row.machine.devices == question.devices
        assert row.answer.plan.placement == own.placement
        assert row.answer.plan.memory == own.memory
        assert row.answer.forecast == forecast
        if own.feasible:
            assert row.difference is not None and row.difference == (0.0, 0.0, 0.0)


@given(questions(), questions())
@settings(max_examples=8, deadline=None)
def test_an_interval_holds_its_difference(a: Question, b: Question) -> None:
    """Between any two answers, of other machines and models too."""
    before, after = planned(a), planned(b)
    found = between(before, after)
    assert found is not None
    assert found.seconds == pytest.approx(turn_s(after) - turn_s(before))
    assert found.low_s <= found.seconds <= found.high_s
