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
from offload.fastest.effort import Effort
from offload.fastest.problem import Answer, CardProblem, HostProblem
from offload.fastest.ranges import Asked, Edge, Found, Way, bound_rows, find_ranges
from offload.fastest.referee import priced
from offload.fastest.relief import LEVELS, Relief, Reliever
from offload.fastest.tables import Snap, Table, make_snap

EFFORT: Final = 100_000
"""Steps of search in all, a deterministic stand-in for seconds."""

_TIE_STEPS: Final = 5_000
"""Steps for one question of ties."""

_TRIES: Final = 24
"""Prices of a byte on the host that are tried."""

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
    solver = _Solver(cards, host, snap, effort)
    found = solver.solve(starts, counts, 0.0)
    if found is None:
        return None
    answer = solver.answer(found, tick_s)
    if answer is not None:
        return answer
    return None


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

    def __init__(
        self, cards: Sequence[CardProblem], host: HostProblem, snap: Snap, effort: int
    ) -> None:
        self._cards, self._host, self._snap = cards, host, snap
        self._effort = Effort(effort)
        self._tables: list[Table] = []
        self._reliefs: dict[Edge, Relief] = {}

    def solve(
        self, starts: Sequence[int], counts: Sequence[int] | None, host_price: float
    ) -> Solved | None:
        n_units = len(self._cards[0].units)
        self._tables = [Table(card, self._snap, host_price) for card in self._cards]
        self._reliefs = {}
        self._arrangements: dict[tuple[Reliever, tuple[int, ...], int], Arranged] = {}
        relievers: dict[tuple[object, ...], Reliever] = {}
        self._relievers = [
            relievers.setdefault(
                tuple(table.kinds),
                Reliever(
                    table.kinds, table.steps, [sums[-1] for sums in table.counts], self._effort
                ),
            )
            for table in self._tables
        ]
        sums = list(
            accumulate(
                (
                    self._snap(unit.base_s) + round(host_price * unit.n_bytes)
                    for unit in self._host.units[:n_units]
                ),
                initial=0.0,
            )
        )
        start = [inf] * (n_units + 1)
        for n in starts:
            start[n] = sums[n]
        if counts is None:
            rows = [bound_rows(table, n_units) for table in self._tables]
            found = find_ranges(rows, start, self._ask, self._effort)
        else:
            found = self._given(start, starts[0], counts)
        return None if found is None else self._settle(found, start)

    def _given(self, start: Sequence[float], first: int, counts: Sequence[int]) -> Found | None:
        """The only way there is when the user said how many units each card owns."""
        way = tuple(accumulate(counts, initial=first))
        ticks = bound = start[first]
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

    def _settle(self, found: Found, start: Sequence[float]) -> Solved:
        """The best of all ways of the same ticks: fewest runs, then largest smallest headroom."""
        n_units = len(start) - 1
        best: dict[int, tuple[float, int, float, Way, tuple[Arranged | None, ...]]] = {
            n: (ticks, 0, -inf, (n,), ()) for n, ticks in enumerate(start) if ticks < inf
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
        ticks, _, _, way, arranged = best[n_units]
        return Solved(way, arranged, ticks, found.bound)

    def _arranged(self, edge: Edge) -> Arranged:
        c, first, end = edge
        table, relief = self._tables[c], self._reliefs[edge]
        units, need = tuple(table.kind_of[first:end]), table.need(first, end)
        key = (self._relievers[c], units, need)
        found = self._arrangements.get(key)
        if found is None and self._effort.is_left:
            found = arrange(
                table.kinds,
                units,
                need=need,
                ticks=relief.ticks,
                price=relief.price,
                effort=min(_TIE_STEPS, self._effort.left),
            )
            self._effort.spend(_TIE_STEPS if found is None else found.spent)
        if found is None:
            found = lay_out(table.kinds, units, relief.choice)
        self._arrangements[key] = found
        return found

    def answer(self, solved: Solved, tick_s: float) -> Answer | None:
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
        answer = priced(
            self._cards,
            self._host,
            n_host_units=solved.way[0],
            counts=[end - first for first, end in pairwise(solved.way)],
            away=away,
        )
        if answer is None:
            return None
        gap_s = (solved.ticks - solved.bound) * tick_s
        return answer._replace(bound_s=answer.seconds - gap_s)
