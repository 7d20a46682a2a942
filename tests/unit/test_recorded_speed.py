"""Do recorded machines keep to the law, within what the report says?"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.recorded_speed import REASONS
from benchmarks.speed_cases import all_series, load
from benchmarks.speed_guesses import PHASES, Guess, fitted, two_ends, unmeasured, with_mid_points


@cache
def ends() -> tuple[list[Guess], list[Guess]]:
    """All levels between two ends: by the straight line, by the model."""
    return two_ends()


@cache
def mids() -> dict[str, list[Guess]]:
    """All levels beside two ends and one inner level."""
    return with_mid_points()


def errors(guesses: list[Guess], phase: str) -> list[float]:
    """Absolute relative errors of one phase."""
    return [abs(g.error) for g in guesses if g.phase == phase]


def coverage(guesses: list[Guess], phase: str) -> float:
    """Share of levels inside their interval."""
    inside = [g.is_inside for g in guesses if g.phase == phase]
    return sum(bool(i) for i in inside) / len(inside)


def test_seconds_add_and_rates_do_not() -> None:
    """The case study: from 113 and 47.6 tok/s half the layers give 67 to 69, measured 69.1."""
    series = next(s for s in all_series() if s.case == "seed-2080ti")
    (half,) = fitted(series, "decode", (0, 2))
    assert half.x == 15 and half.is_inside
    t_s = 69.1 / (1 + half.error)
    assert 66.9 <= t_s <= 69
    assert abs((113 + 47.6) / 2 - 69.1) > 5 * abs(t_s - 69.1)


@pytest.mark.parametrize(("phase", "median"), [("decode", 0.05), ("prefill", 0.10)])
def test_two_levels_predict_the_others(phase: str, median: float) -> None:
    """Fitted on two ends: median error 5 % decode, 10 % prefill; 15 % at the 90th percentile."""
    for guesses in ends():
        found = errors(guesses, phase)
        assert len(found) > 90
        assert np.median(found) <= median
        assert np.percentile(found, 90) <= 0.15
    assert 0.85 <= coverage(ends()[1], phase) <= 0.98


@pytest.mark.parametrize("phase", PHASES)
def test_waiting_cards_explain_the_bend_better_than_a_step(phase: str) -> None:
    """One inner level more: the 90th percentile falls below the line's, and below the step's."""
    p90 = {name: np.percentile(errors(found, phase), 90) for name, found in mids().items()}
    assert p90["waiting"] < 0.85 * p90["line"] < p90["step"]
    assert coverage(mids()["waiting"], phase) > 0.85 > coverage(mids()["line"], phase)


@pytest.mark.parametrize("phase", PHASES)
def test_priors_hold_what_they_promise(phase: str) -> None:
    """Data sheets alone: nine of ten recorded levels within the 90 % interval."""
    assert 0.8 <= coverage(list(unmeasured()), phase) <= 0.98


def test_every_failure_has_a_reason() -> None:
    """A level more than 10 % off is of a case whose reason stands in the report."""
    for guess in ends()[1]:
        if abs(guess.error) > 0.1:
            assert (guess.case, guess.phase) in REASONS, guess


def test_facts_have_sources() -> None:
    """Every case and every exclusion says where it comes from, and of which machine it is."""
    facts = load()
    for case in facts["cases"]:
        assert case["source"] and case["machine"] in facts["machines"]
        assert case["series"]
    assert all(row["reason"] and row["source"] for row in facts["excluded"])
