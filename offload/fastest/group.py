"""How little is wasted when whole units must free just so many bytes?

At a price of a byte, one step of one kind is free of waste and may be taken any number of
times; so of what other choices free only the rest by that step's bytes matters. The least
waste for every rest is a shortest way in a cycle of rests (Gomory's group relaxation), found
once for all ranges with the same kinds. It leaves out that units are only so many: where its
choice has enough of them, it is the best there is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

from offload.fastest.tables import Kind, Step

_STEPS_MAX: Final = 6_000
"""Rests that are settled, times differences; what is not is bounded by the waste of the last."""

_MANY: Final = 48
"""With more differences than this kinds are many and units of each few: the group says little."""


class Difference(NamedTuple):
    """One unit that chooses otherwise than the relaxation: waste, bytes and ticks more."""

    waste: float
    freed: int
    kind: int
    option: int
    ticks: float


class Closing(NamedTuple):
    """The least waste for some missing bytes: differences to make, by their index."""

    value: float
    bound: float
    differences: tuple[int, ...]


def find_differences(
    kinds: Sequence[Kind], present: Sequence[bool], at: Sequence[int], step: Step
) -> tuple[Difference, ...]:
    """All that waste less than the step itself, the least first; `at` are the kinds' corners."""
    found = []
    for k, kind in enumerate(kinds):
        if not present[k]:
            continue
        corner = kind.options[at[k]]
        for o, option in enumerate(kind.options):
            if o == at[k] or (k == step.kind and o == step.after):
                continue
            ticks, freed = option.ticks - corner.ticks, option.freed - corner.freed
            waste = max(ticks - step.slope * freed, 0.0)
            if waste < step.ticks:
                found.append(Difference(waste, freed, k, o, ticks))
    # of equal waste the biggest first: fewer units then differ
    found.sort(key=lambda d: (d.waste, -d.freed, d.kind, d.option))
    return tuple(found)


class Group:
    """The least waste for every rest of bytes by one step."""

    __slots__ = ("_cut", "_paths", "_rests", "_suffix", "differences", "spent", "step")

    def __init__(self, step: Step, differences: tuple[Difference, ...]) -> None:
        self.step = step
        self.differences = differences
        self._paths = self._settle()
        self._rests = sorted(self._paths)
        self.spent = len(self._rests) * max(1, len(differences))
        # fewest ticks from this rest on, and whose they are
        slope = step.slope
        values = [(self._paths[rest][0] + slope * rest, rest) for rest in self._rests]
        self._suffix = list(accumulate(reversed(values), min))
        self._suffix.reverse()

    def _settle(self) -> dict[int, tuple[float, int, int]]:
        """By rest: waste, the rest before, and the difference that led here (-1: none)."""
        size = self.step.freed
        n = len(self.differences)
        most = _STEPS_MAX // max(1, n) + 1 if n <= _MANY else 8
        settled: dict[int, tuple[float, int, int]] = {}
        heap: list[tuple[float, int, int, int]] = [(0.0, 0, 0, -1)]
        self._cut = inf
        while heap:
            waste, rest, before, difference = heappop(heap)
            if rest in settled:
                continue
            if len(settled) >= most or waste >= self.step.ticks:
                self._cut = waste
                break
            settled[rest] = (waste, before, difference)
            for d, more in enumerate(self.differences):
                following = (rest + more.freed) % size
                if following not in settled and waste + more.waste < self.step.ticks:
                    heappush(heap, (waste + more.waste, following, rest, d))
        return settled

    def close(self, missing: int) -> Closing:
        """The least waste, with what is freed beyond `missing`, and the way to it."""
        size, slope = self.step.freed, self.step.slope
        rest = missing % size
        at = bisect_left(self._rests, rest)
        around = self._suffix[0]
        value, end = around[0] + slope * (size - rest), around[1]
        if at < len(self._rests) and self._suffix[at][0] - slope * rest <= value:
            value, end = self._suffix[at][0] - slope * rest, self._suffix[at][1]
        path = []
        while self._paths[end][2] >= 0:
            path.append(self._paths[end][2])
            end = self._paths[end][1]
        path.reverse()
        return Closing(value, min(value, self._cut), tuple(path))
