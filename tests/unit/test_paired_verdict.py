"""Same, slower, faster, or cannot tell: how often each is said, where the truth is known."""

from __future__ import annotations

import math
import random

import pytest

from tuner.paired.verdict import (
    ALPHA,
    LOOKS,
    N_LOOKS,
    Comparison,
    Verdict,
    compare_pairs,
    compare_separate,
    looks_due,
    widest,
)


def _ratios(n: int, true: float, noise: float, seed: int) -> list[float]:
    """Ratios of pairs with wild ones among them, as beside a busy neighbour."""
    generator = random.Random(seed)

    def time() -> float:
        wild = 1.6 if generator.random() < 0.1 else 1.0
        return wild * math.exp(generator.gauss(0, noise / math.sqrt(2)))

    return [true * time() / time() for _ in range(n)]


def _sequential(true: float, noise: float, seed: int, n: int = 80) -> Verdict:
    """As a check does: a look after each share of it, until one decides."""
    ratios = _ratios(n, true, noise, seed)
    for share in LOOKS:
        comparison = compare_pairs(ratios[: int(n * share)], tolerance=0.05)
        if comparison.is_decided:
            return comparison.verdict
    return Verdict.CANNOT_TELL


@pytest.mark.parametrize("noise", [0.04, 0.2])
def test_false_alarms_are_rare_at_any_noise(noise: float) -> None:
    """Of 200 checks of equal builds at most 2 % say slower, however noisy the machine."""
    said = [_sequential(1.0, noise, seed) for seed in range(200)]
    assert said.count(Verdict.SLOWER) <= 4
    assert said.count(Verdict.FASTER) <= 4


def test_ten_per_cent_is_found() -> None:
    """Of 200 checks of a build that is 10 % slower at least 90 % say so, at a noise of 8 %."""
    said = [_sequential(1.1, 0.08, 1000 + seed) for seed in range(200)]
    assert said.count(Verdict.SLOWER) >= 180
    assert Verdict.FASTER not in said and Verdict.SAME not in said


def test_a_tenth_less_time_is_faster() -> None:
    """The same to the other side."""
    said = [_sequential(1 / 1.1, 0.04, 2000 + seed) for seed in range(50)]
    assert said.count(Verdict.FASTER) >= 45


def test_within_the_tolerance_is_the_same() -> None:
    """A build that is 1 % slower is the same, when the noise is small enough to see that."""
    said = [_sequential(1.01, 0.03, 3000 + seed) for seed in range(50)]
    assert said.count(Verdict.SAME) >= 45


def test_too_noisy_cannot_be_told_and_says_what_would_do() -> None:
    """Equal builds at a noise of 30 %: nobody can tell; four times the pairs say half as wide."""
    few = compare_pairs(_ratios(60, 1.0, 0.3, 1), tolerance=0.05)
    assert few.verdict is Verdict.CANNOT_TELL
    assert few.needed_times is not None and few.needed_times > 2
    n = math.ceil(60 * few.needed_times * 1.5)
    many = compare_pairs(_ratios(n, 1.0, 0.3, 1), tolerance=0.05)
    assert many.verdict is Verdict.SAME


def test_one_cannot_tell_from_nothing_or_a_few() -> None:
    """No pairs, or fewer than any test could be sure by, is no verdict."""
    for n in (0, 1, 8):
        comparison = compare_pairs([1.5] * n, tolerance=0.05)
        assert comparison.verdict is Verdict.CANNOT_TELL
        assert comparison.needed_times is not None
    assert compare_pairs([1.5] * 9, tolerance=0.05).verdict is Verdict.SLOWER


def test_a_difference_at_the_tolerance_is_not_promised_an_answer() -> None:
    """Where the truth is the tolerance itself, no amount of time is named."""
    ratios = [1.0499 * math.exp(0.02 * (-1) ** i * (i % 7)) for i in range(40)]
    comparison = compare_pairs(ratios, tolerance=0.05)
    assert comparison.verdict is Verdict.CANNOT_TELL
    assert comparison.needed_times is None


def test_separate_series_are_judged_alike() -> None:
    """Twelve values a side: equal ones are no alarm, 12 % is found at a noise of 3 %."""
    generator = random.Random(4)

    def said(true: float) -> Verdict:
        a = [true * math.exp(generator.gauss(0, 0.03)) for _ in range(12)]
        b = [math.exp(generator.gauss(0, 0.03)) for _ in range(12)]
        return compare_separate(a, b, tolerance=0.05).verdict

    equal = [said(1.0) for _ in range(200)]
    assert equal.count(Verdict.SLOWER) <= 4
    slower = [said(1.12) for _ in range(100)]
    assert slower.count(Verdict.SLOWER) >= 90


def _comparison(middle: float, half: float) -> Comparison:
    ratios = [middle * math.exp(half * (i - 19.5) / 20) for i in range(40)]
    return compare_pairs(ratios, tolerance=0.05)


def test_views_that_differ_decide_nothing() -> None:
    """Slower by one view and the same by another is: cannot tell. Two that agree decide."""
    slow, equal = _comparison(1.12, 0.02), _comparison(1.0, 0.02)
    assert slow.verdict is Verdict.SLOWER and equal.verdict is Verdict.SAME
    assert widest([slow, equal]).verdict is Verdict.CANNOT_TELL
    assert widest([equal, slow]).verdict is Verdict.CANNOT_TELL
    assert widest([slow, _comparison(1.10, 0.02)]).verdict is Verdict.SLOWER
    assert widest([equal, _comparison(0.99, 0.02)]).verdict is Verdict.SAME
    assert widest([slow, _comparison(0.88, 0.02)]).verdict is Verdict.CANNOT_TELL


def test_looks_are_due_at_their_shares_of_the_time() -> None:
    """None before the first, all at the end, and later than the end no more."""
    assert [looks_due(s, 16.0) for s in (0.5, 1.0, 2.0, 5.0, 8.0, 15.9, 16.0, 99.0)] == [
        0, 1, 2, 3, 4, 4, 5, 5,
    ]  # fmt: skip


def test_the_looks_share_the_false_alarms() -> None:
    """One look may spend a fifth; its interval is as wide as that."""
    comparison = compare_pairs(_ratios(30, 1.0, 0.05, 1), tolerance=0.05)
    assert comparison.confidence == pytest.approx(1 - 2 * ALPHA / N_LOOKS)
