"""Where in a series of results did the level change, and not only the noise?

Binary segmentation: a stretch is split when a shuffled one has as clear a step (the largest
standardised difference of ranks, Mann-Whitney, over all splits) at most once in 50 times, and
when the medians differ by a share that matters; then both sides are looked at likewise.
Ranks, so one run beside a busy neighbour moves nothing. With fewer than about nine results
no order of them is that unlikely, and nothing is found.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ALPHA: Final = 0.02
EFFECT_MIN: Final = 0.03
"""Smaller changes of the median are nobody's business."""

_N_SHUFFLES: Final = 1000
_SIDE_MIN: Final = 2
_SEED: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """The first result of a new level, with the medians before and after it.

    `p` is how often chance alone makes as clear a step; 0 in exact series.
    """

    index: int
    before: float
    after: float
    p: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before if self.before else float("inf")


def change_points(
    values: Sequence[float],
    *,
    is_exact: bool = False,
    alpha: float = ALPHA,
    effect_min: float = EFFECT_MIN,
) -> tuple[ChangePoint, ...]:
    """The changes of level in `values`, by index.

    `is_exact` is for what has no noise, such as bytes: there every change is one.
    """
    if is_exact:
        return tuple(
            ChangePoint(index=i, before=values[i - 1], after=values[i], p=0.0)
            for i in range(1, len(values))
            if values[i] != values[i - 1]
        )
    found = _splits(values, 0, len(values), alpha, effect_min)
    edges = [0, *sorted(found), len(values)]
    return tuple(
        ChangePoint(
            index=at,
            before=statistics.median(values[before:at]),
            after=statistics.median(values[at:after]),
            p=found[at],
        )
        for before, at, after in zip(edges, edges[1:], edges[2:], strict=False)
    )


def _splits(
    values: Sequence[float], start: int, end: int, alpha: float, effect_min: float
) -> dict[int, float]:
    """Index of each split between `start` and `end`, with its p."""
    ranks = _ranks(values[start:end])
    height = _clearest(ranks)
    if not height:
        return {}
    p = _chance(ranks, height)
    at = start + _sharpest(values[start:end])
    before, after = statistics.median(values[start:at]), statistics.median(values[at:end])
    if p > alpha or abs(after - before) < effect_min * abs(before):
        return {}
    left = _splits(values, start, at, alpha, effect_min)
    return left | {at: p} | _splits(values, at, end, alpha, effect_min)


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, equal values sharing the mean of theirs."""
    order = sorted(values)
    first = {value: i for i, value in reversed(list(enumerate(order, 1)))}
    count = {value: order.count(value) for value in first}
    return [first[value] + (count[value] - 1) / 2 for value in values]


def _clearest(ranks: Sequence[float]) -> float:
    """The largest standardised difference of ranks that a split has."""
    n = len(ranks)
    mean = (n + 1) / 2
    best, total = 0.0, 0.0
    for k, rank in enumerate(ranks[:-1], 1):
        total += rank - mean
        if _SIDE_MIN <= k <= n - _SIDE_MIN:
            best = max(best, abs(total) / (k * (n - k) * (n + 1) / 12) ** 0.5)
    return best


def _sharpest(values: Sequence[float]) -> int:
    """The split whose sides keep closest to their medians.

    Ranks tell whether there is a step, but with two clean levels they favour the middle.
    """
    splits = range(_SIDE_MIN, len(values) - _SIDE_MIN + 1)
    return min(splits, key=lambda k: _scatter(values[:k]) + _scatter(values[k:]))


def _scatter(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return sum(abs(value - middle) for value in values)


def _chance(ranks: Sequence[float], height: float) -> float:
    """How often a shuffled stretch has a split at least as clear; never 0."""
    generator = random.Random(_SEED)
    shuffled = list(ranks)
    n_as_clear = 0
    for _ in range(_N_SHUFFLES):
        generator.shuffle(shuffled)
        n_as_clear += _clearest(shuffled) >= height - 1e-9
    return (n_as_clear + 1) / (_N_SHUFFLES + 1)
