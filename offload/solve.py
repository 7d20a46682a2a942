"""Which layers on which card, and which of their experts must leave it?

The own-layer spread. Ranges are contiguous and in device order because
llama.cpp assigns layers that way; a card that is short sends routed experts of
its *own* layers to the host: one run of neighbouring layers, topped up by
single matrices of the next two, the fewest bytes that make it fit.
Bytes sent by each card depend only on its range, so the ranges are chosen by a
dynamic programme over (card, first unit), in a window around the even fill.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from offload.memory import ExpertUnit, LayerBytes

_WINDOWS: Final = (2, 8, 512)
"""How far a boundary may move from the even fill, tried in turn until all cards fit."""

_DRIFT_PER_LAYER: Final = 0.002
"""A boundary leaves the even fill only for a saving of this share of the host bytes a layer."""

_BISECTIONS: Final = 24

_UNITS_MAX: Final = 6
"""Matrices of one layer that may move alone; up, gate and down, each with a channel twin."""


class Relief(NamedTuple):
    """What one card sends to the host, and by how much it is still short."""

    units: tuple[ExpertUnit, ...] = ()
    n_bytes: int = 0
    short_bytes: int = 0


class Solution(NamedTuple):
    """Units per device and the relief of each; units not counted stay on the host first."""

    counts: tuple[int, ...]
    reliefs: tuple[Relief, ...]

    @property
    def host_bytes(self) -> int:
        """Expert bytes that leave the cards."""
        return sum(r.n_bytes for r in self.reliefs)

    @property
    def short_bytes(self) -> int:
        """Bytes by which the cards together are still short; 0 means it fits."""
        return sum(r.short_bytes for r in self.reliefs)


class CardTable:
    """One card's costs with prefix sums: bytes of any range in constant time."""

    __slots__ = ("_memo", "budget_bytes", "expert_sum", "fixed_sum", "layer_bytes", "unit_sizes")

    def __init__(self, *, layer_bytes: LayerBytes, budget_bytes: int) -> None:
        self.layer_bytes = layer_bytes
        self.budget_bytes = budget_bytes
        self.fixed_sum = [0, *accumulate(layer_bytes.fixed_bytes)]
        self.expert_sum = [0, *accumulate(layer_bytes.expert_bytes)]
        self.unit_sizes = [
            tuple(unit.n_bytes for unit in units) for units in layer_bytes.expert_units
        ]
        self._memo: dict[tuple[int, int], Relief] = {}

    def fixed(self, first: int, end: int) -> int:
        """Bytes that must stay when the card owns units [first, end)."""
        if first == end:
            return 0
        return self.fixed_sum[end] - self.fixed_sum[first] + self.layer_bytes.once_bytes

    def experts(self, first: int, end: int) -> int:
        """Routed-expert bytes of units [first, end)."""
        return self.expert_sum[end] - self.expert_sum[first]

    def relief(self, first: int, end: int) -> Relief:
        """The cheapest relief that makes the range fit, or all of it and the bytes still short."""
        key = (first, end)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._solve(first, end)
        return found

    def _solve(self, first: int, end: int) -> Relief:
        fixed, experts = self.fixed(first, end), self.experts(first, end)
        need = fixed + experts - self.budget_bytes
        if need <= 0:
            return Relief()
        if need > experts:
            units = _units(self.layer_bytes, first, end)
            return Relief(units=units, n_bytes=experts, short_bytes=need - experts)
        return self._cheapest_run(first, end, need)

    def _cheapest_run(self, first: int, end: int, need: int) -> Relief:
        """Whole layers [i, j) and parts of j and j + 1, the smallest sum of `need` or more."""
        sums = self.expert_sum
        best = sums[end] - sums[first] + 1
        choice: tuple[int, int, int, int] = (first, end, 0, 0)
        j = first
        for i in range(first, end):
            j = max(j, i)
            while j < end and sums[j + 1] - sums[i] < need:
                j += 1
            if j == end:
                break
            # layer j is the one that would do; the cut may also begin one layer before it
            for start in range(max(i, j - 1), j + 1):
                whole = sums[start] - sums[i]
                found = self._tail(start, end, need - whole)
                if found is not None and whole + found[0] < best:
                    best, choice = whole + found[0], (i, start, found[1], found[2])
        i, start, mask, mask_next = choice
        units = _units(self.layer_bytes, i, start)
        if start < end:
            units += _masked(self.layer_bytes.expert_units[start], mask)
        if start + 1 < end:
            units += _masked(self.layer_bytes.expert_units[start + 1], mask_next)
        return Relief(units=units, n_bytes=best)

    def _tail(self, j: int, end: int, missing: int) -> tuple[int, int, int] | None:
        """Cheapest matrices of layers j and j + 1 of `missing` bytes or more: sum and two masks."""
        sizes = self.unit_sizes[j]
        sizes_next = self.unit_sizes[j + 1] if j + 1 < end else ()
        table = _pair_sums(sizes, sizes_next)
        at = bisect_left(table, (missing, 0, 0, 0))
        if at == len(table):
            return None
        total, _, mask_next, mask = table[at]
        return total, mask, mask_next


def _units(table: LayerBytes, first: int, end: int) -> tuple[ExpertUnit, ...]:
    return tuple(unit for row in table.expert_units[first:end] for unit in row)


def _masked(units: tuple[ExpertUnit, ...], mask: int) -> tuple[ExpertUnit, ...]:
    return tuple(unit for k, unit in enumerate(units) if mask >> k & 1)


@lru_cache(maxsize=4096)
def _pair_sums(
    sizes: tuple[int, ...], sizes_next: tuple[int, ...]
) -> list[tuple[int, int, int, int]]:
    """(sum, units, mask of the next layer, mask) of every choice, sorted.

    Of equal sums the fewest units come first, then those that leave the next layer whole.
    """
    table = [
        (a + b, mask.bit_count() + mask_next.bit_count(), mask_next, mask)
        for mask, a in enumerate(_subset_sums(sizes))
        for mask_next, b in enumerate(_subset_sums(sizes_next))
    ]
    table.sort()
    return table


def _subset_sums(sizes: tuple[int, ...]) -> list[int]:
    """Sum of each subset, indexed by its bit mask; a layer has at most a handful of matrices."""
    sums = [0]
    for size in sizes[:_UNITS_MAX]:
        sums += [total + size for total in sums]
    return sums


def solve_spread(cards: Sequence[CardTable], n_host_layers: int = 0) -> Solution:
    """Choose every card's range and relief; the first `n_host_layers` stay on the host.

    Cards fill evenly: without relief to equal shares of their budgets, with
    relief so that each keeps a like share of its own experts. Never raises;
    `short_bytes` says when nothing fits.
    """
    n_units = len(cards[0].layer_bytes.fixed_bytes)
    even = _even_boundaries(cards, n_host_layers, n_units)
    solution = None
    for window in _WINDOWS:
        solution = _solve_window(cards, n_host_layers, n_units, even, window)
        if solution.short_bytes == 0 or window >= n_units:
            break
    assert solution is not None
    return solution


def relieve(cards: Sequence[CardTable], counts: Sequence[int], n_host_layers: int) -> Solution:
    """The cheapest relief of each card when the ranges are given (the user's `-ts`)."""
    first, reliefs = n_host_layers, []
    for card, count in zip(cards, counts, strict=True):
        reliefs.append(card.relief(first, first + count))
        first += count
    return Solution(counts=tuple(counts), reliefs=tuple(reliefs))


def _even_boundaries(cards: Sequence[CardTable], start: int, n_units: int) -> list[int]:
    """Ends of the ranges that fill all cards alike, whatever granularity allows.

    First the largest share of the experts that still fits is found; when all of
    them fit, the lowest fill level that holds them.
    """
    if _fill(cards, start, n_units, 1.0, 1.0) is None:
        return _bisect(cards, start, n_units, level=None)
    return _bisect(cards, start, n_units, level=1.0)


def _bisect(cards: Sequence[CardTable], start: int, n_units: int, level: float | None) -> list[int]:
    low, high = 0.0, 1.0
    best: list[int] | None = None
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if level is None:
            ends = _fill(cards, start, n_units, 1.0, middle)
            low, high = (low, middle) if ends is None else (middle, high)
        else:
            ends = _fill(cards, start, n_units, middle, 1.0)
            low, high = (middle, high) if ends is None else (low, middle)
        best = ends if ends is not None else best
    if best is None:
        # not even without experts: share what must stay by budget
        best = _fill_by_share(cards, start, n_units)
    return best


def _fill(
    cards: Sequence[CardTable], start: int, n_units: int, level: float, kept: float
) -> list[int] | None:
    """Ends when each card in turn takes units up to `level` of its budget, or None if some remain.

    `kept` is the share of expert bytes that stays on the card.
    """
    ends: list[int] = []
    first = start
    for card in cards:
        room = level * card.budget_bytes
        fixed_sum, expert_sum = card.fixed_sum, card.expert_sum
        used = fixed_sum[first] + kept * expert_sum[first] - card.layer_bytes.once_bytes
        end = first
        while end < n_units and fixed_sum[end + 1] + kept * expert_sum[end + 1] - used <= room:
            end += 1
        ends.append(end)
        first = end
    return ends if first == n_units else None


def _fill_by_share(cards: Sequence[CardTable], start: int, n_units: int) -> list[int]:
    total = sum(max(card.budget_bytes, 1) for card in cards)
    shares = accumulate(max(card.budget_bytes, 1) for card in cards)
    return [start + round((n_units - start) * share / total) for share in shares]


def _solve_window(
    cards: Sequence[CardTable], start: int, n_units: int, even: list[int], window: int
) -> Solution:
    """Dynamic programme over the end of each card's range, each within `window` of `even`."""
    scale = _DRIFT_PER_LAYER * sum(
        card.relief(first, end).n_bytes
        for card, first, end in zip(cards, [start, *even], even, strict=False)
    )
    # state: end of the ranges so far -> (cost, ends); cost is compared in order
    states: dict[int, tuple[tuple[int, float, float], tuple[int, ...]]] = {
        start: ((0, 0.0, 0.0), ())
    }
    for d, card in enumerate(cards):
        is_last = d == len(cards) - 1
        budget = max(card.budget_bytes, 1)
        low = n_units if is_last else max(start, even[d] - window)
        high = n_units if is_last else min(n_units, even[d] + window)
        after: dict[int, tuple[tuple[int, float, float], tuple[int, ...]]] = {}
        for end in range(low, high + 1):
            drift = scale * abs(end - even[d])
            for first, (cost, ends) in states.items():
                if first > end:
                    continue
                relief = card.relief(first, end)
                fill = (card.fixed(first, end) + card.experts(first, end) - relief.n_bytes) / budget
                total = (
                    cost[0] + relief.short_bytes,
                    cost[1] + relief.n_bytes + drift,
                    cost[2] + budget * fill * fill,
                )
                if end not in after or total < after[end][0]:
                    after[end] = (total, (*ends, end))
        states = after
    ends = states[n_units][1]
    counts = tuple(end - first for first, end in zip((start, *ends), ends, strict=False))
    return relieve(cards, counts, start)
