"""Which placement is fastest, and is that proven?

Ranges by `ranges`, what each sends away by `relief`, ties by `arrange`. The host's bytes, which
couple the cards, get a price where they are too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Final, NamedTuple

from offload.fastest.arrange import Arranged, arrange, lay_out
from offload.fastest.bounds import bound_rows
from offload.fastest.effort import Effort
from offload.fastest.problem import Answer, CardProblem, HostProblem
from offload.fastest.ranges import Asked, Edge, Found, Way, find_ranges
from offload.fastest.referee import priced
from offload.fastest.relief import LEVELS, Relief, Reliever
from offload.fastest.tables import TICKS, Snap, Table, make_snap

EFFORT: Final = 150_000
"""Steps of search in all, a deterministic stand-in for seconds."""

_TIE_STEPS: Final = 5_000
"""Steps for one question of ties."""

_TRIES: Final = 24
_PRICE_MAX: Final = 64.0
_PRICE_CLOSE: Final = 1e-4
"""Prices of a byte on the host that are tried: how many, the largest, and how close at last."""

_ITEMS_MAX: Final = 10


def solve_fastest(
    cards: Sequence[CardProblem],
    host: HostProblem,
    *,
    n_host_units: int | range | None = None,
    counts: Sequence[int] | None = None,
    effort: int = EFFORT,
) -> Answer | None:
    """The placement of fewest seconds; None where none fits.

    `n_host_units` are the numbers of whole units that may lie on the host (None: any),
    `counts` the units of each card where they are given; the others then lie on the host.
    Of equally fast ones it has the fewest runs of units that send the same away, then the
    largest smallest headroom, as far as `effort` goes; the same question has the same answer.
    """
    n_units = _check(cards, counts)
    starts = _starts(n_units, host, n_host_units)
    if counts is not None:
        starts = [n for n in starts if n == n_units - sum(counts)]
    if not starts:
        return None
    snap, tick_s = make_snap(cards, host)
    asked = _Asked(cards, host, starts, counts, effort)
    found = asked.at_price(snap, 0.0)
    if found is None:
        return None
    answer = asked.priced(found)
    if answer is not None:
        return answer._replace(bound_s=answer.seconds - (found.ticks - found.bound) * tick_s)
    return _within_host(asked, snap, tick_s, found.bound)


class _Asked(NamedTuple):
    """The question, and the effort it is worth."""

    cards: Sequence[CardProblem]
    host: HostProblem
    starts: Sequence[int]
    counts: Sequence[int] | None
    effort: int

    def at_price(self, snap: Snap, host_price: float) -> Solved | None:
        """The fastest when a byte on the host costs so many ticks, and may be any number."""
        return _Solver(self, snap, host_price).solve()

    def priced(self, solved: Solved) -> Answer | None:
        """The answer, its bound still open; None where it is too much for the host."""
        away: list[tuple[tuple[int, int], ...]] = []
        for (first, end), arranged in zip(pairwise(solved.way), solved.arranged, strict=True):
            masks = () if arranged is None else arranged.masks
            away.append(
                tuple(
                    (u, i)
                    for u, mask in zip(range(first, end), masks, strict=True)
                    for i in range(mask.bit_length())
                    if mask >> i & 1
                )
            )
        return priced(
            self.cards,
            self.host,
            n_host_units=solved.way[0],
            counts=[end - first for first, end in pairwise(solved.way)],
            away=away,
        )


def _within_host(asked: _Asked, snap: Snap, tick_s: float, bound: float) -> Answer | None:
    """The fastest that the host can hold, when the fastest of all is too much for it.

    Bytes on the host get a price, raised until what is fastest at that price fits: what it
    costs less the price of the limit is below the seconds of anything that fits. Between two
    prices there may be better answers than are found; the gap says by how much at most.
    """
    limit = asked.host.budget_bytes
    assert limit is not None
    asked = asked._replace(effort=asked.effort // 4)
    least = asked.at_price(lambda _: 0.0, 1.0)
    best = None if least is None else asked.priced(least)
    if best is None:
        return None
    n_values = sum(len(unit.items) + 2 for unit in asked.cards[0].units)
    low, high = 0.0, _PRICE_MAX * TICKS / max(limit, 1)
    price = high / (1 << _TRIES // 2)
    for _ in range(_TRIES):
        found = asked.at_price(snap, price)
        assert found is not None
        bound = max(bound, found.bound - price * limit - n_values)
        answer = asked.priced(found)
        if answer is None:
            low = price
        else:
            high = price
            best = min(best, answer, key=lambda a: (a.seconds, a.n_rules))
        if high - low <= _PRICE_CLOSE * high:
            break
        price = (low + high) / 2 if low else price / 4
        if low and high > 8 * low:
            price = low * 4
    return best._replace(bound_s=min(best.seconds, bound * tick_s))


def _check(cards: Sequence[CardProblem], counts: Sequence[int] | None) -> int:
    """The number of units; raises ValueError for cards that do not speak of the same ones."""
    numbers = {len(card.units) for card in cards}
    if len(numbers) != 1:
        raise ValueError("every card needs an entry for every unit")
    if counts is not None and (len(counts) != len(cards) or min(counts) < 0):
        raise ValueError("counts need one number for each card, none below 0")
    if any(len(unit.items) > _ITEMS_MAX for card in cards for unit in card.units):
        raise ValueError(f"a unit has at most {_ITEMS_MAX} items")
    return numbers.pop()


def _starts(n_units: int, host: HostProblem, asked: int | range | None) -> list[int]:
    most = min(n_units, len(host.units))
    if asked is None:
        return list(range(most + 1))
    wanted = (asked,) if isinstance(asked, int) else asked
    return sorted({n for n in wanted if 0 <= n <= most})


class Solved(NamedTuple):
    """A way, what its ranges send away, and ticks: found, and not to be beaten."""

    way: Way
    arranged: tuple[Arranged | None, ...]
    ticks: float
    bound: float


class _Solver:
    """One problem at one price of a byte on the host, and the effort spent on it."""

    def __init__(self, asked: _Asked, snap: Snap, host_price: float) -> None:
        self._asked = asked
        self._effort = Effort(asked.effort)
        self._tables = [Table(card, snap, host_price) for card in asked.cards]
        self._reliefs: dict[Edge, Relief] = {}
        self._arrangements: dict[tuple[Reliever, tuple[int, ...], int], Arranged] = {}
        relievers: dict[tuple[object, ...], Reliever] = {}
        self._relievers = [
            relievers.setdefault(
                tuple(table.patterns),
                Reliever(table.kinds, table.steps, self._effort),
            )
            for table in self._tables
        ]
        n_units = len(asked.cards[0].units)
        ticks = [snap(unit.base_s) + round(host_price * unit.n_bytes) for unit in asked.host.units]
        sums = list(accumulate(ticks[:n_units], initial=0.0))
        self._start = [inf] * (n_units + 1)
        for n in asked.starts:
            self._start[n] = sums[n]

    def solve(self) -> Solved | None:
        """The best way there is; None where nothing fits the cards."""
        asked = self._asked
        if asked.counts is not None:
            found = self._given(asked.starts[0], asked.counts)
        else:
            n_units = len(self._start) - 1
            rows = [bound_rows(table, n_units) for table in self._tables]
            found = find_ranges(rows, self._start, self._ask, self._effort)
        return None if found is None else self._settle(found)

    def _given(self, first: int, counts: Sequence[int]) -> Found | None:
        """The only way there is when the user said how many units each card owns."""
        way = tuple(accumulate(counts, initial=first))
        ticks = bound = self._start[first]
        ties: list[dict[tuple[int, int], float]] = []
        for c, (low, high) in enumerate(pairwise(way)):
            if low == high:
                ties.append({})
                continue
            if self._tables[c].reach(low) < high:
                return None
            asked = self._ask((c, low, high), LEVELS - 1)
            ticks += asked.ticks
            bound += asked.bound
            ties.append({(low, high): asked.ticks})
        return Found(way, ticks, bound, tuple(ties))

    def _ask(self, edge: Edge, level: int) -> Asked:
        c, first, end = edge
        table = self._tables[c]
        counts = tuple(sums[end] - sums[first] for sums in table.counts)
        relief = self._relievers[c].relief(counts, table.need(first, end), level)
        self._reliefs[edge] = relief
        fixed = table.once_ticks + table.base[end] - table.base[first]
        return Asked(fixed + relief.ticks, fixed + relief.bound)

    def _settle(self, found: Found) -> Solved:
        """The best of all ways of the same ticks: fewest runs, then largest smallest headroom."""
        best: dict[int, tuple[float, int, float, Way, tuple[Arranged | None, ...]]] = {
            n: (ticks, 0, -inf, (n,), ()) for n, ticks in enumerate(self._start) if ticks < inf
        }
        for c, ties in enumerate(found.ties):
            after = {
                n: (ticks, rules, room, (*way, n), (*all_, None))
                for n, (ticks, rules, room, way, all_) in best.items()
            }
            for (first, end), ticks in ties.items():
                before = best.get(first)
                if before is None:
                    continue
                total = before[0] + ticks
                known = after.get(end)
                if known is not None and known[0] < total:
                    continue
                sent = self._arranged((c, first, end))
                room = self._tables[c].need(first, end) - sent.freed
                new = (
                    total,
                    before[1] + sent.n_rules,
                    max(before[2], float(room)),
                    (*before[3], end),
                    (*before[4], sent),
                )
                if known is None or new[:3] < known[:3]:
                    after[end] = new
            best = after
        ticks, _, _, way, arranged = best[len(self._start) - 1]
        return Solved(way, arranged, ticks, found.bound)

    def _arranged(self, edge: Edge) -> Arranged:
        c, first, end = edge
        table, relief = self._tables[c], self._reliefs[edge]
        units, need = tuple(table.pattern_of[first:end]), table.need(first, end)
        key = (self._relievers[c], units, need)
        found = self._arrangements.get(key)
        if found is None and self._effort.is_left:
            found = arrange(
                table.patterns,
                units,
                need=need,
                ticks=relief.ticks,
                price=relief.price,
                effort=min(_TIE_STEPS, self._effort.left),
            )
            self._effort.spend(_TIE_STEPS if found is None else found.spent)
        if found is None:
            found = lay_out(table.patterns, table.kind_of_pattern, units, relief.choice)
        self._arrangements[key] = found
        return found
