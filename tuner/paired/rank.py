"""How sure is it that one series of times is longer than another, and by how much?

Ranks only, so that a few runs beside a busy neighbour decide nothing: Wilcoxon's signed
ranks for pairs, Mann and Whitney's for two separate series, both with exact chances (also
with ties: by counting over the ranks that are there). The size is that of Hodges and
Lehmann, a median of all means (or differences) of two, and its interval holds the sizes
that the test would not refuse.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

_EXACT_PAIRS_MAX: Final = 120
_EXACT_MAX: Final = 60
"""For more pairs, or more values of two series, the normal curve is as good, and quick."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """By how much one is larger than the other: the middle, and both ends of the interval."""

    middle: float
    low: float
    high: float


def signed_rank_p(differences: Sequence[float]) -> float:
    """How often chance alone makes paired `differences` this much above zero (one side)."""
    values = np.asarray([d for d in differences if d], dtype=float)
    if not len(values):
        return 1.0
    doubled = _doubled_ranks(np.abs(values))
    above = int(doubled[values > 0].sum())
    if len(values) > _EXACT_PAIRS_MAX:
        ranks = doubled / 2
        spread = float((ranks**2).sum()) ** 0.5 / 2
        return _upper_tail((above / 2 - ranks.sum() / 2 - 0.5) / spread)
    return float(_signed_rank_chances(doubled)[above:].sum())


def paired_shift(differences: Sequence[float], alpha: float) -> Shift:
    """The size of paired `differences`; each end of the interval is missed with `alpha`.

    Too few differences for that leave the ends open.
    """
    values = np.asarray(differences, dtype=float)
    n = len(values)
    rows, columns = np.triu_indices(n)
    means = np.sort((values[rows] + values[columns]) / 2)
    if n > _EXACT_PAIRS_MAX:
        return _shift_of_many(
            means, n * (n + 1) / 4, (n * (n + 1) * (2 * n + 1) / 24) ** 0.5, alpha
        )
    chances = _signed_rank_chances(2 * np.arange(1, n + 1))[::2]
    return _shift(means, np.cumsum(chances), alpha)


def rank_sum_p(values: Sequence[float], others: Sequence[float]) -> float:
    """How often chance alone puts `values` this much above `others` (one side)."""
    n, m = len(values), len(others)
    if not n or not m:
        return 1.0
    doubled = _doubled_ranks(np.asarray([*values, *others], dtype=float))
    total = int(doubled[:n].sum())
    if n + m > _EXACT_MAX:
        return _normal_tail(doubled / 2, n, total / 2)
    has_ties = len(set(doubled.tolist())) < n + m
    chances = _rank_sum_chances(doubled, n) if has_ties else _plain_rank_sum_chances(n, m)
    return float(chances[total:].sum())


def separate_shift(values: Sequence[float], others: Sequence[float], alpha: float) -> Shift:
    """By how much `values` are above `others`; each end of the interval is missed with `alpha`."""
    n, m = len(values), len(others)
    differences = np.sort(np.subtract.outer(np.asarray(values), np.asarray(others)).ravel())
    if n + m > _EXACT_MAX:
        return _shift_of_many(differences, n * m / 2, (n * m * (n + m + 1) / 12) ** 0.5, alpha)
    least = n * (n + 1)
    chances = _plain_rank_sum_chances(n, m)[least::2]
    return _shift(differences, np.cumsum(chances), alpha)


def _shift(ordered: Floats, cumulated: Floats, alpha: float) -> Shift:
    """`cumulated[k]`: the chance of at most k of the `ordered` on the wrong side."""
    k = int(np.searchsorted(cumulated, alpha, side="right"))
    if not k:
        return Shift(middle=float(np.median(ordered)), low=-np.inf, high=np.inf)
    return Shift(
        middle=float(np.median(ordered)), low=float(ordered[k - 1]), high=float(ordered[-k])
    )


def _doubled_ranks(values: Floats) -> npt.NDArray[np.int64]:
    """Twice the ranks, so that shared ranks are whole numbers too."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((2 * last - counts + 1)[inverse], dtype=np.int64)


def _signed_rank_chances(doubled: npt.NDArray[np.int64]) -> Floats:
    """Of each sum of (doubled) ranks that are above zero, when each is so by a coin."""
    chances = np.zeros(int(doubled.sum()) + 1)
    chances[0] = 1.0
    for rank in doubled:
        added = np.zeros_like(chances)
        added[rank:] = chances[: len(chances) - rank]
        chances = (chances + added) / 2
    return chances


@functools.lru_cache(maxsize=8)
def _plain_rank_sum_chances(n: int, m: int) -> Floats:
    return _rank_sum_chances(2 * np.arange(1, n + m + 1), n)


def _rank_sum_chances(doubled: npt.NDArray[np.int64], n: int) -> Floats:
    """Of each sum of `n` of the (doubled) ranks, when every choice is as likely."""
    largest = int(np.sort(doubled)[-n:].sum())
    ways = np.zeros((n + 1, largest + 1))
    ways[0, 0] = 1.0
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, : largest + 1 - rank].copy()
    return np.asarray(ways[n] / ways[n].sum())


def _normal_tail(ranks: Floats, n: int, total: float) -> float:
    """The upper tail for many ranks; their own spread takes account of ties."""
    size = len(ranks)
    variance = n * (size - n) / size * float(np.var(ranks, ddof=1))
    if not variance:
        return 1.0
    z = (total - n * (size + 1) / 2 - 0.5) / variance**0.5
    return _upper_tail(z)


def _shift_of_many(ordered: Floats, mean: float, spread: float, alpha: float) -> Shift:
    k = max(int(mean + NormalDist().inv_cdf(alpha) * spread), 1)
    return Shift(
        middle=float(np.median(ordered)), low=float(ordered[k - 1]), high=float(ordered[-k])
    )


def _upper_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))
