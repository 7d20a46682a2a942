"""Which card owns which range of units?

A shortest way through (card, end of its range). A range's length is first only bounded from
below, by the relaxation of its relief, for all ranges at once; the exact length is asked only
of ranges on a way that could be shortest, until the shortest way is exact all along. What the
shortest way is then below no other way, whatever the lengths that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, pairwise
from math import ceil, inf
from operator import add
from typing import Final, NamedTuple

from offload.fastest.effort import Effort
from offload.fastest.relief import LEVELS

_BATCH: Final = 16
"""Ranges asked for in the first round; each round may ask for twice as many."""

_TOLERANCE: Final = 1.0
"""Ticks by which rounding may make the sum of a way's bounds too large."""

Edge = tuple[int, int, int]
"""(card, first, end) of a range."""

Way = tuple[int, ...]
"""Where the first card's range begins, and where each card's range ends."""


class Found(NamedTuple):
    """The best way, its ticks, and a bound on those of any way.

    `ties` are the ranges that lie on ways of exactly as many ticks, each with its ticks.
    """

    way: Way
    ticks: float
    bound: float
    ties: tuple[dict[tuple[int, int], float], ...]


class Asked(NamedTuple):
    """Ticks of a range with the relief that was found, and what no relief of it is below."""

    ticks: float
    bound: float


Ask = Callable[[Edge, int], Asked]
"""Prices a range; the higher the level, the closer are both."""


def find_ranges(
    rows: Sequence[Sequence[Sequence[float]]], start: Sequence[float], ask: Ask, effort: Effort
) -> Found | None:
    """The best way over all cards; `start[i]` are the ticks of leaving i units to the host.

    None where no way leads through.
    """
    before = _forward(rows, start)
    if before[-1][-1] == inf:
        return None
    lazy = _Lazy(start, ask, effort)
    limit = lazy.ask_way(_first_way(rows, before))
    after = _backward(rows, len(start) - 1)
    lazy.keep([_near(*args, limit) for args in zip(rows, before, after[1:], strict=False)])
    return lazy.run()


def _forward(
    rows: Sequence[Sequence[Sequence[float]]], start: Sequence[float]
) -> list[list[float]]:
    """Fewest ticks of the first cards when they and the host own the first so many units."""
    tables = [list(start)]
    for card in rows:
        here = tables[-1]
        best = list(here)
        for first, row in enumerate(card):
            ticks = here[first]
            if ticks < inf and row:
                low, high = first + 1, first + 1 + len(row)
                best[low:high] = [
                    a if a < (b := ticks + w) else b
                    for a, w in zip(best[low:high], row, strict=True)
                ]
        tables.append(best)
    return tables


def _backward(rows: Sequence[Sequence[Sequence[float]]], n_units: int) -> list[list[float]]:
    """Fewest ticks of the cards from this one on, when units from so many on are theirs."""
    rest = [inf] * n_units + [0.0]
    tables = [rest]
    for card in reversed(rows):
        best = list(rest)
        for first, row in enumerate(card):
            if row:
                ticks = min(map(add, row, rest[first + 1 : first + 1 + len(row)]))
                if ticks < best[first]:
                    best[first] = ticks
        rest = best
        tables.append(rest)
    tables.reverse()
    return tables


def _first_way(rows: Sequence[Sequence[Sequence[float]]], before: list[list[float]]) -> Way:
    """A way that is shortest by the bounds."""
    end = len(before[0]) - 1
    way = [end]
    for c in range(len(rows) - 1, -1, -1):
        ticks, here = before[c + 1][end], before[c]
        if here[end] != ticks:
            end = next(
                first
                for first in range(end)
                if end - first <= len(rows[c][first])
                and here[first] + rows[c][first][end - first - 1] == ticks
            )
        way.append(end)
    return tuple(reversed(way))


def _near(
    card: Sequence[Sequence[float]], before: Sequence[float], after: Sequence[float], limit: float
) -> dict[tuple[int, int], float]:
    """The card's ranges on ways that may be as short as `limit`, with their bounds."""
    near = {}
    for first, row in enumerate(card):
        room = limit + _TOLERANCE - before[first]
        if room == -inf:
            continue
        for end, (ticks, beyond) in enumerate(
            zip(row, after[first + 1 :], strict=False), first + 1
        ):
            if ticks + beyond <= room:
                near[first, end] = float(ceil(ticks - 0.5))
    return near


class _Lazy:
    """The ranges that can still be on a best way, and what is known of their ticks."""

    def __init__(self, start: Sequence[float], ask: Ask, effort: Effort) -> None:
        self._start = start
        self._ask = ask
        self._asked: dict[Edge, Asked] = {}
        self._cards: list[dict[tuple[int, int], float]] = []
        self._best = inf
        self._way: Way = ()
        self._levels: dict[Edge, int] = {}
        self._effort = effort

    def keep(self, cards: list[dict[tuple[int, int], float]]) -> None:
        """Go on with these ranges only."""
        self._cards = cards
        for (c, first, end), asked in self._asked.items():
            if (first, end) in cards[c]:
                cards[c][first, end] = asked.bound

    def ask_way(self, way: Way) -> float:
        """Price every range of a way; its ticks, with which it may become the best."""
        total = self._start[way[0]]
        for c, (first, end) in enumerate(pairwise(way)):
            if end > first:
                total += self._price((c, first, end))
        if total < self._best:
            self._best, self._way = total, way
        return total

    def _price(self, edge: Edge, level: int = 0) -> float:
        asked = self._asked.get(edge)
        if asked is None or level > self._levels[edge]:
            asked = self._asked[edge] = self._ask(edge, level)
            self._levels[edge] = level
            if self._cards and edge[1:] in self._cards[edge[0]]:
                self._cards[edge[0]][edge[1:]] = asked.bound
        return asked.ticks

    def run(self) -> Found:
        """Ask until no range that might be on a shortest way is left to ask for."""
        for n_rounds in count():
            before, way = self._sweep()
            after = self._sweep_back()
            self._effort.spend(sum(map(len, self._cards)))
            n_asked = len(self._asked)
            self.ask_way(way)
            new = self._near_and_new(before, after)
            if not self._effort.is_left:
                break
            if new:
                for _, edge in new[: _BATCH << n_rounds]:
                    self._price(edge)
                    if not self._effort.is_left:
                        break
            elif not self._look_closer(way) and len(self._asked) == n_asked:
                break
        before, way = self._sweep()
        self.ask_way(way)
        bound = min(before[-1][-1], self._best)
        return Found(self._way, self._best, bound, self._ties(before, self._sweep_back()))

    def _near_and_new(
        self, before: list[list[float]], after: list[list[float]]
    ) -> list[tuple[float, Edge]]:
        """Drop ranges on no way that may be best; of the others, those never asked for."""
        new = []
        for c, card in enumerate(self._cards):
            here, rest = before[c], after[c + 1]
            near = {}
            for (first, end), ticks in card.items():
                through = here[first] + ticks + rest[end]
                if through <= self._best:
                    near[first, end] = ticks
                    if (c, first, end) not in self._asked:
                        new.append((through, (c, first, end)))
            self._cards[c] = near
        new.sort()
        return new

    def _look_closer(self, way: Way) -> bool:
        """Price those ranges of a way again that are not known exactly; False if there are none."""
        found = False
        for c, (first, end) in enumerate(pairwise(way)):
            edge = (c, first, end)
            if end > first:
                asked, level = self._asked[edge], self._levels[edge] + 1
                if asked.bound < asked.ticks and level < LEVELS:
                    self._price(edge, level)
                    found = True
        return found

    def _sweep(self) -> tuple[list[list[float]], Way]:
        tables = [list(self._start)]
        came: list[dict[int, int]] = []
        for card in self._cards:
            here = tables[-1]
            best = list(here)
            back: dict[int, int] = {}
            for (first, end), ticks in card.items():
                total = here[first] + ticks
                if total < best[end]:
                    best[end] = total
                    back[end] = first
            tables.append(best)
            came.append(back)
        end = len(self._start) - 1
        way = [end]
        for back in reversed(came):
            end = back.get(end, end)
            way.append(end)
        return tables, tuple(reversed(way))

    def _sweep_back(self) -> list[list[float]]:
        rest = [inf] * (len(self._start) - 1) + [0.0]
        tables = [rest]
        for card in reversed(self._cards):
            best = list(rest)
            for (first, end), ticks in card.items():
                total = ticks + rest[end]
                if total < best[first]:
                    best[first] = total
            rest = best
            tables.append(rest)
        tables.reverse()
        return tables

    def _ties(
        self, before: list[list[float]], after: list[list[float]]
    ) -> tuple[dict[tuple[int, int], float], ...]:
        """Ranges of all ways as short as the best; its own only, where that is unproven."""
        best = self._best
        ties: list[dict[tuple[int, int], float]] = [{} for _ in self._cards]
        for c, (first, end) in enumerate(pairwise(self._way)):
            if end > first:
                ties[c][first, end] = self._asked[c, first, end].ticks
        if before[-1][-1] < best:
            return tuple(ties)
        for (c, first, end), asked in self._asked.items():
            is_shortest = before[c][first] + asked.ticks + after[c + 1][end] <= best
            if is_shortest and asked.ticks == asked.bound:
                ties[c][first, end] = asked.ticks
        return tuple(dict(sorted(card.items())) for card in ties)
