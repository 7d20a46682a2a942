"""Rank tests: against scipy where it is there, against counting by hand, and in coverage."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from tuner.paired.rank import paired_shift, rank_sum_p, separate_shift, signed_rank_p


def test_signed_ranks_by_counting() -> None:
    """For a few differences, ties among them: the share of signs that are as extreme."""
    for values in ([1.0, -2.0, 3.0, 4.5], [1.0, 1.0, -1.0, 2.0, 2.0], [5.0], [-1.0, 0.0, 2.0]):
        kept = [v for v in values if v]
        ranks = [
            sum(abs(w) < abs(v) for w in kept) + (sum(abs(w) == abs(v) for w in kept) + 1) / 2
            for v in kept
        ]
        seen = sum(r for r, v in zip(ranks, kept, strict=True) if v > 0)
        signs = list(itertools.product((0, 1), repeat=len(kept)))
        as_large = sum(
            sum(r * s for r, s in zip(ranks, sign, strict=True)) >= seen for sign in signs
        )
        assert signed_rank_p(values) == pytest.approx(as_large / len(signs))


def test_rank_sums_by_counting() -> None:
    """For two short series, ties among them: the share of choices that are as extreme."""
    for a, b in (([3.0, 4.0, 9.0], [1.0, 2.0, 5.0]), ([1.0, 1.0, 2.0], [1.0, 0.0, 2.0, 2.0])):
        both = [*a, *b]
        ranks = [sum(w < v for w in both) + (both.count(v) + 1) / 2 for v in both]
        seen = sum(ranks[: len(a)])
        choices = list(itertools.combinations(range(len(both)), len(a)))
        as_large = sum(sum(ranks[i] for i in choice) >= seen for choice in choices)
        assert rank_sum_p(a, b) == pytest.approx(as_large / len(choices))


def test_against_scipy() -> None:
    """The exact p values of scipy, for pairs and for separate series; and its normal curve."""
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(1)
    for n in (5, 12, 25):
        d = generator.normal(0.3, 1, n)
        expected = stats.wilcoxon(d, alternative="greater", method="exact").pvalue
        assert signed_rank_p(list(d)) == pytest.approx(expected)
        a, b = generator.normal(0.4, 1, n), generator.normal(0, 1, n + 3)
        expected = stats.mannwhitneyu(a, b, alternative="greater", method="exact").pvalue
        assert rank_sum_p(list(a), list(b)) == pytest.approx(expected)
    a, b = generator.normal(0.3, 1, 90), generator.normal(0, 1, 80)
    expected = stats.mannwhitneyu(a, b, alternative="greater", method="asymptotic").pvalue
    assert rank_sum_p(list(a), list(b)) == pytest.approx(expected, rel=1e-6)


def test_nothing_tells_nothing() -> None:
    """No differences, none but zeros, an empty series: chance explains all of it."""
    assert signed_rank_p([]) == signed_rank_p([0.0, 0.0]) == 1.0
    assert rank_sum_p([], [1.0]) == rank_sum_p([1.0], []) == 1.0
    assert paired_shift([0.1] * 3, 0.002).low == -math.inf
    assert separate_shift([1.0] * 3, [2.0] * 3, 0.002).high == math.inf


def test_the_interval_is_what_the_test_does_not_refuse() -> None:
    """A shift just inside either end is refused by nobody, one just outside is."""
    generator = random.Random(2)
    d = [generator.gauss(0.1, 0.05) for _ in range(20)]
    alpha, e = 0.01, 1e-9
    shift = paired_shift(d, alpha)
    assert signed_rank_p([x - (shift.low - e) for x in d]) <= alpha
    assert signed_rank_p([x - (shift.low + e) for x in d]) > alpha
    assert signed_rank_p([(shift.high + e) - x for x in d]) <= alpha
    assert signed_rank_p([(shift.high - e) - x for x in d]) > alpha
    others = [generator.gauss(0.0, 0.05) for _ in range(15)]
    shift = separate_shift(d, others, alpha)
    assert rank_sum_p([x - (shift.low - e) for x in d], others) <= alpha
    assert rank_sum_p([x - (shift.low + e) for x in d], others) > alpha
    assert rank_sum_p(others, [x - (shift.high + e) for x in d]) <= alpha


def test_intervals_cover_as_often_as_they_say() -> None:
    """Of 400 series with wild outliers, each end of a 90 % interval is missed by about 5 %."""
    generator = random.Random(3)

    def draw(n: int) -> list[float]:
        wild = [generator.random() < 0.1 for _ in range(n)]
        return [0.1 + generator.gauss(0, 0.5 if w else 0.05) for w in wild]

    missed = {"low": 0, "high": 0}
    for _ in range(400):
        shift = paired_shift(draw(15), 0.05)
        missed["low"] += shift.low > 0.1
        missed["high"] += shift.high < 0.1
    assert all(8 <= n <= 34 for n in missed.values()), missed
