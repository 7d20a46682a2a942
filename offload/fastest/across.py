"""Which items are better off on a card that does not own them, and how much is proven then?

Where cards differ, what is read as a whole belongs on the fast ones and what is read in part
may lie on the slow ones, at the price of crossings. Every card's memory is then shared by
the units of all, so there is no sum over ranges. Instead each byte of each card gets a price:
at any prices the best choice of every unit is a lower bound once the budgets are taken off
(Lagrange), and prices are moved by what is over and under. Ranges found on the way are filled
for real, their neighbours tried, and the best that fits is the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Final, NamedTuple

from offload.fastest.effort import Effort
from offload.fastest.filling import Group, Option, fill, groups_of

_ROUNDS: Final = 80
"""Times that prices are moved."""

_NEAR: Final = (1, 4, 12)
"""Units by which a range's end is moved, to see whether that is better."""

_STALE: Final = 5
"""Rounds without a better bound after which prices move half as far."""

_PACE_MIN: Final = 0.02
"""Prices that move less far than this, of what would close the gap, are as good as still."""

_CLOSE: Final = 0.005
"""A bound within this share of the best is not raised further."""

_KEPT: Final = 0.7
"""The share of the last push on prices that goes into the next."""

_FIRST_SHARES: Final = (0.5, 0.1, 0.02, 0.004, 0.0)
"""Where prices begin, as shares of what a byte on a card saves."""

_EFFORT: Final = 30_000
"""Choices looked at when ranges are filled."""

_WAYS: Final = 4
"""Ways of the best bounds whose neighbours are tried."""


class AcrossItem(NamedTuple):
    """What may leave its owner: bytes on each card, seconds on each card and, last, on the host."""

    n_bytes: tuple[int, ...]
    seconds: tuple[float, ...]


class AcrossKind(NamedTuple):
    """Units that are alike: what stays with the owner, by card, and items that may lie anywhere.

    `host_s` are the seconds of the whole unit on the host, `cross_s[owner][place]` what is
    added as soon as any item lies there. Items of the bit mask `tied` go to another card all
    together (the bound does not know).
    """

    fixed_bytes: tuple[int, ...]
    base_s: tuple[float, ...]
    host_s: float
    items: tuple[AcrossItem, ...]
    cross_s: tuple[tuple[float, ...], ...]
    tied: int = 0


class AcrossProblem(NamedTuple):
    """Kinds of units, which is which, and what cards may hold; `once` is for owning anything.

    `starts` are the numbers of whole units that may lie on the host, `counts` the units of
    each card where they are given.
    """

    kinds: tuple[AcrossKind, ...]
    kind_of: tuple[int, ...]
    budget_bytes: tuple[int, ...]
    once_bytes: tuple[int, ...]
    once_s: float
    starts: Sequence[int]
    counts: tuple[int, ...] | None = None

    @property
    def n_cards(self) -> int:
        """Cards; the same number stands for the host as a place."""
        return len(self.budget_bytes)


class AcrossAnswer(NamedTuple):
    """Where units end (the host's first), and for each unit of a card the place of its items.

    `seconds` are inf and `places` empty where nothing better than asked for was found;
    `bound_s` holds for every placement all the same.
    """

    way: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]
    seconds: float
    bound_s: float


def solve_across(
    problem: AcrossProblem,
    best_s: float,
    enough_s: float,
    ways: Sequence[tuple[int, ...]] = (),
) -> AcrossAnswer:
    """Fewer seconds than `best_s`, if that is found, and a bound of all there are.

    `ways` are ends of ranges to look at as well, such as those of what is best so far. Given up
    as soon as nothing can be below `enough_s`. Deterministic.
    """
    return _Across(problem, best_s, enough_s).solve(ways)


class _Across:
    def __init__(self, problem: AcrossProblem, best_s: float, enough_s: float) -> None:
        self._problem, self._enough_s = problem, enough_s
        self._best = AcrossAnswer((), (), inf, -inf)
        self._best_s = best_s
        self._least_cross = [
            [min(s for e, s in enumerate(row) if e != d) for d, row in enumerate(kind.cross_s)]
            for kind in problem.kinds
        ]
        self._options: dict[tuple[int, int], tuple[Option, ...]] = {}
        self._tried: dict[tuple[tuple[int, ...], bool], float] = {}
        self._effort = Effort(_EFFORT)
        self._found: dict[tuple[int, ...], tuple[float, list[float]]] = {}

    def solve(self, ways: Sequence[tuple[int, ...]]) -> AcrossAnswer:
        """Bound by prices, then ways for real; again with what was found, where that may help."""
        bound_s, prices = self._climb(self._first_prices(), _KEPT)
        for kept in (0.0, None):
            if bound_s >= self._enough_s:
                break
            for way in ways:
                self._descend(way, (prices,))
            for _, at, way in self._ways()[:_WAYS]:
                self._descend(way, (at, prices))
            if kept is None or bound_s >= self._upper_s * (1 - _CLOSE):
                break
            bound_s, prices = self._climb(prices, kept)
        return self._best._replace(bound_s=bound_s)

    @property
    def _upper_s(self) -> float:
        return min(self._best.seconds, self._best_s)

    def _ways(self) -> list[tuple[float, list[float], tuple[int, ...]]]:
        """Ways in order of the best bound each had, with the prices of that."""
        ways = ((bound, prices, way) for way, (bound, prices) in self._found.items())
        return sorted(ways, key=lambda one: (-one[0], one[2]))

    def _climb(self, prices: list[float], kept: float) -> tuple[float, list[float]]:
        """The best bound from these prices on, and its prices."""
        problem = self._problem
        scale = max(problem.budget_bytes)
        top, top_prices, stale, pace = -inf, prices, 0, 1.0
        push = [0.0] * problem.n_cards
        for _ in range(_ROUNDS):
            bound, way, used = self._at(prices)
            known = self._found.get(way)
            if known is None or bound > known[0]:
                self._found[way] = bound, prices
            stale = 0 if bound > top + 1e-4 * abs(top) else stale + 1
            if bound > top:
                top, top_prices = bound, prices
            if top >= self._enough_s or pace < _PACE_MIN:
                break
            if stale >= _STALE:
                stale, pace, prices = 0, pace / 2, top_prices
                bound, _, used = self._at(prices)
                push = [0.0] * len(prices)
            over = [(u - b) / scale for u, b in zip(used, problem.budget_bytes, strict=True)]
            # where cards are alike their units jump to and fro, which a part of the last evens out
            push = [o + kept * p for o, p in zip(over, push, strict=True)]
            # what is left over does not pull a price of nothing down
            push = [0.0 if o < 0 and not p else o for o, p in zip(push, prices, strict=True)]
            norm = sum(o * o for o in push)
            if not norm:
                break
            step = pace * max(self._upper_s - bound, 1e-3 * self._upper_s) / norm / scale
            prices = [max(0.0, p + step * o) for p, o in zip(prices, push, strict=True)]
        return top, top_prices

    def _first_prices(self) -> list[float]:
        """The best of a few, of what a byte saves on average that is not read from the host."""
        saved = n_bytes = 0.0
        for k in self._problem.kind_of:
            for item in self._problem.kinds[k].items:
                saved += item.seconds[-1] - min(item.seconds[:-1])
                n_bytes += item.n_bytes[0]
        most = max(0.0, saved / n_bytes if n_bytes else 0.0)
        tried = ([most * share] * self._problem.n_cards for share in _FIRST_SHARES)
        return max(tried, key=lambda prices: self._at(prices)[0])

    def _at(self, prices: Sequence[float]) -> tuple[float, tuple[int, ...], list[int]]:
        """The bound at these prices, the way that has it, and bytes on each card then."""
        problem = self._problem
        costs, chosen = [], []
        for k in range(len(problem.kinds)):
            row, choice = self._kind_at(k, prices)
            costs.append(row)
            chosen.append(choice)
        total, way = self._shortest(costs, prices)
        used = [0] * problem.n_cards
        for d, (first, end) in enumerate(pairwise(way)):
            if first == end:
                continue
            used[d] += problem.once_bytes[d]
            for k in problem.kind_of[first:end]:
                kind = problem.kinds[k]
                used[d] += kind.fixed_bytes[d]
                for item, e in zip(kind.items, chosen[k][d], strict=True):
                    if e < problem.n_cards:
                        used[e] += item.n_bytes[e]
        held = sum(p * b for p, b in zip(prices, problem.budget_bytes, strict=True))
        return total - held, way, used

    def _kind_at(
        self, k: int, prices: Sequence[float]
    ) -> tuple[list[float], list[tuple[int, ...]]]:
        """For each owner the least that a unit takes at these prices, and its items' places.

        More than one place beside the owner is bounded, not worked out.
        """
        kind, n = self._problem.kinds[k], self._problem.n_cards
        items = [
            [s + p * b for s, p, b in zip(item.seconds, prices, item.n_bytes, strict=False)]
            + [item.seconds[-1]]
            for item in kind.items
        ]
        anywhere = sum(min(item) for item in items)
        row, places = [], []
        for d in range(n):
            best, where = sum(item[d] for item in items), d
            for e in range(n + 1) if items else ():
                if e != d:
                    away = kind.cross_s[d][e]
                    for item in items:
                        away += item[e] if item[e] < item[d] else item[d]
                    if away < best:
                        best, where = away, e
            places.append(tuple(where if item[where] < item[d] else d for item in items))
            best = min(best, anywhere + 2 * self._least_cross[k][d])
            row.append(kind.base_s[d] + prices[d] * kind.fixed_bytes[d] + best)
        return row, places

    def _shortest(
        self, costs: Sequence[Sequence[float]], prices: Sequence[float]
    ) -> tuple[float, tuple[int, ...]]:
        """The cheapest way: ends of the host's units and of each card's."""
        problem = self._problem
        n_units, starts = len(problem.kind_of), set(problem.starts)
        host = [0.0, *accumulate(problem.kinds[k].host_s for k in problem.kind_of)]
        best = [total if n in starts else inf for n, total in enumerate(host)]
        froms = []
        for d in range(problem.n_cards):
            once = problem.once_s + prices[d] * problem.once_bytes[d]
            if problem.counts is not None:
                end = problem.starts[0] + sum(problem.counts[: d + 1])
                first = end - problem.counts[d]
                total = sum(costs[k][d] for k in problem.kind_of[first:end])
                after = [inf] * (n_units + 1)
                after[end] = best[first] + total + (once if problem.counts[d] else 0.0)
                came = [first] * (n_units + 1)
            else:
                after, came = list(best), list(range(n_units + 1))
                running, since = inf, 0
                for u, k in enumerate(problem.kind_of):
                    if best[u] + once < running:
                        running, since = best[u] + once, u
                    running += costs[k][d]
                    if running < after[u + 1]:
                        after[u + 1], came[u + 1] = running, since
            best = after
            froms.append(came)
        way = [n_units]
        for came in reversed(froms):
            way.append(came[way[-1]])
        return best[n_units], tuple(reversed(way))

    def _descend(self, way: tuple[int, ...], prices: Sequence[Sequence[float]]) -> None:
        """This way for real, then its neighbours while that helps."""
        here = self._fill(way, prices)
        while self._effort.is_left:
            at, nearest = min(
                ((self._fill(near, prices[-1:]), near) for near in self._near(way)),
                default=(inf, way),
            )
            if at >= here:
                break
            here, way = at, nearest
        self._fill(way, prices, exchanges=True)

    def _near(self, way: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if self._problem.counts is not None:
            return
        starts = self._problem.starts
        for c in range(len(way) - 1):
            for end in sorted(way[c] + sign * step for step in _NEAR for sign in (-1, 1)):
                low = way[c - 1] if c else 0
                if not self._effort.is_left:
                    return
                if low <= end <= way[c + 1] and (c or end in starts):
                    yield (*way[:c], end, *way[c + 1 :])

    def _fill(
        self, way: tuple[int, ...], prices: Sequence[Sequence[float]], *, exchanges: bool = False
    ) -> float:
        """Seconds of the best found for these ranges; what is the best so far is kept."""
        key = way, exchanges
        if key in self._tried:
            return self._tried[key]
        self._tried[key] = inf
        problem = self._problem
        room, seconds = self._without_items(way)
        if min(room) < 0:
            return inf
        groups = groups_of(problem.kind_of, way, self._options_of)
        for at in prices:
            filled = fill(groups, room, at, self._effort, exchanges=exchanges)
            if filled is None:
                continue
            total = seconds + filled[0]
            self._tried[key] = min(self._tried[key], total)
            if total < self._upper_s:
                places = _places(len(problem.kind_of), groups, filled[1])
                self._best = AcrossAnswer(way, places, total, -inf)
        return self._tried[key]

    def _without_items(self, way: Sequence[int]) -> tuple[list[int], float]:
        """What stays free beside items, and seconds of everything else."""
        problem = self._problem
        room = list(problem.budget_bytes)
        seconds = sum(problem.kinds[k].host_s for k in problem.kind_of[: way[0]])
        for d, (first, end) in enumerate(pairwise(way)):
            if first == end:
                continue
            room[d] -= problem.once_bytes[d]
            seconds += problem.once_s
            for k in problem.kind_of[first:end]:
                room[d] -= problem.kinds[k].fixed_bytes[d]
                seconds += problem.kinds[k].base_s[d]
        return room, seconds

    def _options_of(self, k: int, owner: int) -> tuple[Option, ...]:
        """All choices of a unit with at most one place beside its owner, each once."""
        key = (k, owner)
        if key not in self._options:
            self._options[key] = tuple(_options(self._problem, k, owner))
        return self._options[key]


def _options(problem: AcrossProblem, k: int, owner: int) -> Iterator[Option]:
    kind, n = problem.kinds[k], problem.n_cards
    seen = set()
    for e in (owner, *(e for e in range(n + 1) if e != owner)):
        for mask in (0,) if e == owner else range((1 << len(kind.items)) - 1, 0, -1):
            if e < n and mask & kind.tied not in (0, kind.tied):
                continue
            places = tuple(e if mask >> i & 1 else owner for i in range(len(kind.items)))
            n_bytes = [0] * n
            seconds = kind.cross_s[owner][e] if mask else 0.0
            for item, place in zip(kind.items, places, strict=True):
                seconds += item.seconds[place]
                if place < n:
                    n_bytes[place] += item.n_bytes[place]
            key = (round(seconds, 12), *n_bytes)
            if key not in seen:
                seen.add(key)
                yield Option(places, seconds, tuple(n_bytes))


def _places(
    n_units: int, groups: Sequence[Group], chosen: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Places of each unit's items; units of a group that choose alike are neighbours."""
    places: list[tuple[int, ...]] = [()] * n_units
    for group, counts in zip(groups, chosen, strict=True):
        units = iter(group.units)
        for option, count in zip(group.options, counts, strict=True):
            for _ in range(count):
                places[next(units)] = option.places
    return tuple(places)
