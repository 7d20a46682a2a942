"""Where does each item of given ranges lie, so that every card holds its share?

Units of one kind and owner are told apart only by what they choose, so whole groups are moved
from one choice to another: first the cheapest moves until nothing is over its budget, then
whatever saves seconds and still fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from offload.fastest.effort import Effort

_STEPS: Final = 200
"""Moves of units from one choice to another, for one way."""


_EXCHANGES: Final = 12
_TRIED: Final = 5
"""How often others make room for a move that saves seconds, and moves tried each time."""


class Option(NamedTuple):
    """One choice of a unit: where each item is, its seconds, and bytes on each card."""

    places: tuple[int, ...]
    seconds: float
    n_bytes: tuple[int, ...]


class Group(NamedTuple):
    """Units of one kind and owner, in order, and the choices they have."""

    units: tuple[int, ...]
    options: tuple[Option, ...]


class _Move(NamedTuple):
    group: int
    before: int
    after: int
    n: int
    score: float


OptionsOf = Callable[[int, int], tuple[Option, ...]]


def groups_of(kind_of: Sequence[int], way: Sequence[int], options_of: OptionsOf) -> list[Group]:
    """The groups of ranges that end where `way` says."""
    found: dict[tuple[int, int], list[int]] = {}
    for d, (first, end) in enumerate(pairwise(way)):
        for u in range(first, end):
            found.setdefault((kind_of[u], d), []).append(u)
    return [Group(tuple(units), options_of(*key)) for key, units in found.items()]


def fill(
    groups: Sequence[Group],
    budgets: Sequence[int],
    prices: Sequence[float],
    effort: Effort,
    *,
    exchanges: bool = False,
) -> tuple[float, list[list[int]]] | None:
    """Seconds, and how many units of each group choose what; None where nothing fits.

    Begins with what is best at `prices`, seconds per byte of each card. With `exchanges` also
    moves that others have to make room for, which takes far longer.
    """
    filling = _Filling(groups, budgets, prices, effort)
    if not filling.make_fit():
        return None
    filling.take_savings()
    if exchanges:
        filling.exchange()
    return filling.seconds, filling.chosen


class _Filling:
    def __init__(
        self,
        groups: Sequence[Group],
        budgets: Sequence[int],
        prices: Sequence[float],
        effort: Effort,
    ) -> None:
        self._groups, self._effort = groups, effort
        self._room = list(budgets)
        self.seconds = 0.0
        self.chosen: list[list[int]] = []
        for group in groups:
            costs = [
                option.seconds + sum(p * b for p, b in zip(prices, option.n_bytes, strict=True))
                for option in group.options
            ]
            at = costs.index(min(costs))
            counts = [0] * len(group.options)
            counts[at] = len(group.units)
            self.chosen.append(counts)
            option = group.options[at]
            self.seconds += option.seconds * len(group.units)
            for d, n_bytes in enumerate(option.n_bytes):
                self._room[d] -= n_bytes * len(group.units)

    def make_fit(self) -> bool:
        """Cheapest moves off the card that is most over, until none is."""
        for _ in range(_STEPS):
            short = min(range(len(self._room)), key=lambda d: (self._room[d], d))
            if self._room[short] >= 0:
                return True
            move = min(self._off(short), key=lambda m: (m.score, m), default=None)
            if move is None:
                return False
            self._apply(move)
        return False

    def take_savings(self) -> None:
        """Moves that save seconds and fit, most for a byte first."""
        for _ in range(_STEPS):
            move = min(self._savings(), key=lambda m: (m.score, m), default=None)
            if move is None:
                return
            self._apply(move)

    def exchange(self) -> None:
        """Moves that save seconds though others have to make room for them."""
        for _ in range(_EXCHANGES):
            if not any(self._exchange(move) for move in self._too_large()):
                return

    def _too_large(self) -> list[_Move]:
        """The few moves of one unit that would save most and have no room, the most first."""
        moves = [
            _Move(g, before, after, 1, seconds)
            for g, before, after, _, seconds, more in self._moves()
            if seconds < -1e-12 and not self._that_fit(more, 1)
        ]
        return sorted(moves, key=lambda m: (m.score, m))[:_TRIED]

    def _exchange(self, move: _Move) -> bool:
        """Make a move and room for it; undone where that saves nothing."""
        if not self._effort.is_left:
            return False
        before = self.seconds, list(self._room), [list(counts) for counts in self.chosen]
        self._apply(move)
        if self.make_fit():
            self.take_savings()
            if self.seconds < before[0] - 1e-12:
                return True
        self.seconds, self._room, self.chosen = before
        return False

    def _moves(self) -> Iterator[tuple[int, int, int, int, float, list[int]]]:
        """Group, choices, units that make the first, seconds and bytes that the other adds."""
        for g, (group, counts) in enumerate(zip(self._groups, self.chosen, strict=True)):
            for before, count in enumerate(counts):
                if not count:
                    continue
                old = group.options[before]
                self._effort.spend(len(group.options) * len(self._room) // 2)
                for after, new in enumerate(group.options):
                    if after != before:
                        more = [b - a for a, b in zip(old.n_bytes, new.n_bytes, strict=True)]
                        yield g, before, after, count, new.seconds - old.seconds, more

    def _off(self, short: int) -> Iterator[_Move]:
        for g, before, after, count, seconds, more in self._moves():
            if more[short] < 0:
                n = min(count, -(self._room[short] // -more[short]))
                n = self._that_fit(more, n)
                if n:
                    yield _Move(g, before, after, n, seconds / -more[short])

    def _savings(self) -> Iterator[_Move]:
        for g, before, after, count, seconds, more in self._moves():
            if seconds < -1e-12:
                n = self._that_fit(more, count)
                if n:
                    taken = sum(m for m in more if m > 0)
                    yield _Move(g, before, after, n, seconds / taken if taken else -inf)

    def _that_fit(self, more: Sequence[int], n: int) -> int:
        """How many of `n` units no card is too small for."""
        for room, add in zip(self._room, more, strict=True):
            if add > 0:
                n = min(n, room // add)
        return max(n, 0)

    def _apply(self, move: _Move) -> None:
        g, before, after, n, _ = move
        old, new = self._groups[g].options[before], self._groups[g].options[after]
        self.chosen[g][before] -= n
        self.chosen[g][after] += n
        self.seconds += n * (new.seconds - old.seconds)
        for d, (a, b) in enumerate(zip(old.n_bytes, new.n_bytes, strict=True)):
            self._room[d] -= n * (b - a)
