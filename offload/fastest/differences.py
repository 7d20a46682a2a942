"""Which units should differ from the relaxation, when they are only so many?

One range at its break: a quick search that finds good sets of differences, and a thorough one
that puts together what each kind can do alone and so proves the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, inf
from typing import NamedTuple

from offload.fastest.front import Front
from offload.fastest.group import Difference, Group


class Merged(NamedTuple):
    """The best found with its differences, a bound on all, and the effort."""

    ticks: float
    bound: float
    path: tuple[int, ...]
    spent: int


class Break:
    """Units that may still differ, ticks and bytes missing: one range at its break."""

    def __init__(self, group: Group, counts: Sequence[int], ticks: float, missing: int) -> None:
        self.step = group.step
        self.differences: tuple[Difference, ...] = group.differences
        self.counts = counts
        self.ticks = ticks
        self.missing = missing

    def n_steps(self, path: Sequence[int]) -> int | None:
        """Steps that complete these differences; None where units are too few."""
        left = list(self.counts)
        missing = self.missing
        for d in path:
            difference = self.differences[d]
            left[difference.kind] -= 1
            missing -= difference.freed
        n = -(-missing // self.step.freed) if missing > 0 else 0
        left[self.step.kind] -= n
        return None if min(left) < 0 else n

    def total(self, path: Sequence[int]) -> float:
        """Ticks with these differences made and completed by steps; without end if units lack."""
        n = self.n_steps(path)
        if n is None:
            return inf
        return self.ticks + n * self.step.ticks + sum(self.differences[d].ticks for d in path)

    def search(
        self, relaxed: float, bound: float, limit: float, *, effort: int
    ) -> tuple[tuple[float, tuple[int, ...]] | None, int]:
        """A set of differences below `limit`, the least waste first; and the effort.

        Of sets that miss as many bytes only the first is followed, though it may use up the
        units that a later one would have spared: good, not proven.
        """
        step, counts, differences = self.step, self.counts, self.differences
        broken, size = step.kind, step.freed
        best: tuple[int, ...] | None = None
        seen = {self.missing}
        heap: list[tuple[float, int, tuple[int, ...], float, tuple[int, ...]]] = [
            (0.0, self.missing, (0,) * len(counts), self.ticks, ())
        ]
        spent, effort = 0, max(effort, 2 * len(differences))
        while heap and spent < effort:
            waste, missing, used, ticks, path = heappop(heap)
            room = limit - 0.5 - relaxed - waste
            if room < 0 or limit <= bound:
                break
            for d, (more, freed, kind, _, ticks_more) in enumerate(differences):
                spent += 1
                if more > room:
                    break
                rest = missing - freed
                if used[kind] >= counts[kind] or rest in seen:
                    continue
                seen.add(rest)
                total = ticks + ticks_more
                now_used = (*used[:kind], used[kind] + 1, *used[kind + 1 :])
                n = -(-rest // size) if rest > 0 else 0
                if n <= counts[broken] - now_used[broken] and total + n * step.ticks < limit:
                    limit = total + n * step.ticks
                    best = (*path, d)
                    room = limit - 0.5 - relaxed - waste
                heappush(heap, (waste + more, rest, now_used, total, (*path, d)))
        return None if best is None else (limit, best), spent + len(seen) * (1 + len(counts) // 8)

    def merge(
        self, fronts: Sequence[tuple[int, Front]], relaxed: float, limit: float, *, effort: int
    ) -> Merged:
        """The best of all sets, from what each kind can do alone; the broken kind comes last."""
        price, size = self.step.slope, self.step.freed
        room = limit - 0.5 - relaxed
        cut = min((front.cut for _, front in fronts), default=inf)
        spent = 0
        labels: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())]
        for kind, front in fronts[:-1]:
            found: dict[int, tuple[float, int, tuple[int, ...]]] = {}
            own = front.labels(self.counts[kind])
            for waste, freed, path in labels:
                for more, freed_more, _, path_more in own:
                    total = waste + more
                    if total > room:
                        break
                    spent += 1
                    known = found.get(freed + freed_more)
                    if known is None or total < known[0]:
                        found[freed + freed_more] = (total, freed + freed_more, path + path_more)
                if spent > effort:
                    return Merged(inf, -inf, (), spent)
            labels = sorted(found.values())
        kind, front = fronts[-1]
        own = front.labels(self.counts[kind])
        best: tuple[int, ...] | None = None
        n_units = self.counts[kind]
        for waste, freed, path in labels:
            if waste > room:
                break
            for more, freed_more, n_used, path_more in own:
                if waste + more > room:
                    break
                spent += 1
                missing = self.missing - freed - freed_more
                n = -(-missing // size) if missing > 0 else 0
                if n <= n_units - n_used:
                    total = waste + more + price * (n * size - missing)
                    if total < room:
                        room, best = total - 0.5, path + path_more
            if spent > effort:
                return Merged(inf, -inf, (), spent)
        path = () if best is None else best
        ticks = limit if best is None else self.total(path)
        return Merged(
            ticks, min(ticks, float(ceil(relaxed + cut - 0.5))) if cut < inf else ticks, path, spent
        )
