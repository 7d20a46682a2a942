"""Which items of one card's range cost least to send away, so that what is left fits?

A knapsack with few kinds of units, turned over: free at least so many bytes for the fewest
ticks. The linear relaxation fills corner after corner of the kinds' hulls and breaks one of
them; its price of a byte bounds everything from below. The best whole choice differs from it
in a few units, because each difference costs what that price says it wastes: `group` says
which, and where it takes more units than there are, a search over the differences does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd, inf
from typing import Final, NamedTuple

from offload.fastest.differences import Break
from offload.fastest.effort import Effort
from offload.fastest.front import Front
from offload.fastest.group import Group, find_differences
from offload.fastest.tables import Kind, Step

LEVELS: Final = 4
_SEARCH_STEPS: Final = (200, 600, 1000, 1000)
_MERGE_STEPS: Final = (0, 3_000, 12_000, 60_000)
_LABELS_MAX: Final = (0, 300, 1000, 4000)
"""How long to look at each level."""

Choice = tuple[tuple[int, int, int], ...]
"""(kind, option, how many units): all that do not take their kind's cheapest option."""


class Relief(NamedTuple):
    """Ticks of the choice found, and a bound that no choice is below; equal when proven.

    `price` is ticks per byte at the break: what one more byte of room would save.
    """

    ticks: float
    bound: float
    choice: Choice
    price: float

    @property
    def is_proven(self) -> bool:
        """Whether nothing is cheaper."""
        return self.bound >= self.ticks


_NOTHING = Relief(0.0, 0.0, (), 0.0)
_IMPOSSIBLE = Relief(inf, inf, (), inf)


class Reliever:
    """All reliefs of cards with the same kinds; it remembers what ranges have in common."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        steps: Sequence[Step],
        effort: Effort,
    ) -> None:
        self._effort = effort
        self._kinds, self._steps = kinds, steps
        self._fronts: dict[tuple[int, int, int, int], Front] = {}
        self._groups: dict[tuple[int, tuple[bool, ...]], Group] = {}
        self._divisors: dict[tuple[bool, ...], int] = {}
        self._known: dict[tuple[tuple[int, ...], int], tuple[int, Relief]] = {}

    def relief(self, counts: tuple[int, ...], need: int, level: int) -> Relief:
        """The cheapest relief of `need` bytes from `counts` units of each kind.

        The higher the level, the longer it is looked for; a higher one is never worse.
        """
        self._effort.spend(2)
        if need <= 0:
            return _NOTHING
        present = tuple(map(bool, counts))
        need = self._rounded_up(present, need)
        known = self._known.get((counts, need))
        if known is not None and (known[0] >= level or known[1].is_proven):
            return known[1]
        self._effort.spend(20)
        relief = self._find(present, counts, need, level)
        if known is not None:
            better = min(relief, known[1], key=lambda r: r.ticks)
            relief = better._replace(bound=min(max(relief.bound, known[1].bound), better.ticks))
        self._known[counts, need] = (level, relief)
        return relief

    def _find(
        self, present: tuple[bool, ...], counts: tuple[int, ...], need: int, level: int
    ) -> Relief:
        at = [0] * len(self._kinds)  # each kind's corner, as an option
        ticks, missing = 0.0, need
        broken = -1
        for number, step in enumerate(self._steps):
            n = counts[step.kind]
            if n and missing <= n * step.freed:
                broken = number
                break
            ticks += n * step.ticks
            missing -= n * step.freed
            if n:
                at[step.kind] = step.after
        if broken < 0:
            return _IMPOSSIBLE
        group = self._groups.get((broken, present))
        if group is None:
            step = self._steps[broken]
            differences = find_differences(self._kinds, present, at, step)
            group = self._groups[broken, present] = Group(step, differences)
            self._effort.spend(group.spent)
        return self._finish(group, counts, at, ticks, missing, level)

    def _fronts_of(
        self, group: Group, counts: Sequence[int], level: int
    ) -> list[tuple[int, Front]]:
        """What each kind that is there can do alone; the broken one last."""
        fronts = []
        for kind, n in enumerate(counts):
            if n:
                n_units = 1 << (n - 1).bit_length()  # shared by ranges of about the same length
                key = (id(group), kind, n_units, _LABELS_MAX[level])
                front = self._fronts.get(key)
                if front is None:
                    own = [(d, x) for d, x in enumerate(group.differences) if x.kind == kind]
                    front = self._fronts[key] = Front(own, n_units, group.step.ticks, key[3])
                    self._effort.spend(front.spent)
                fronts.append((kind, front))
        fronts.sort(
            key=lambda pair: (pair[0] == group.step.kind, len(pair[1].labels(counts[pair[0]])))
        )
        return fronts

    def _rounded_up(self, present: tuple[bool, ...], need: int) -> int:
        """Bytes can only be freed in multiples of the options' common divisor."""
        divisor = self._divisors.get(present)
        if divisor is None:
            options = (
                option.freed
                for kind, is_there in zip(self._kinds, present, strict=True)
                if is_there
                for option in kind.options
            )
            divisor = self._divisors[present] = max(gcd(*options), 1)
        return -(-need // divisor) * divisor

    def _finish(
        self,
        group: Group,
        counts: Sequence[int],
        at: Sequence[int],
        ticks: float,
        missing: int,
        level: int,
    ) -> Relief:
        step = group.step
        closing = group.close(missing)
        relaxed = ticks + step.slope * missing
        bound = float(ceil(relaxed + closing.bound - 0.5))
        state = Break(group, counts, ticks, missing)
        path = closing.differences
        total = state.total(path)
        if total > bound:
            alone = state.total(())  # the step alone is always a choice
            if alone < total:
                total, path = alone, ()
            found, spent = state.search(relaxed, bound, total, effort=_SEARCH_STEPS[level])
            self._effort.spend(spent)
            if found is not None:
                total, path = found
            if total > bound and level > 0:
                fronts = self._fronts_of(group, counts, level)
                merged = state.merge(fronts, relaxed, total, effort=_MERGE_STEPS[level])
                self._effort.spend(merged.spent // 4)
                if merged.ticks < total:
                    total, path = merged.ticks, merged.path
                bound = max(bound, merged.bound)
        return Relief(total, min(bound, total), _choice(state, counts, at, path), step.slope)


def _choice(state: Break, counts: Sequence[int], at: Sequence[int], path: Sequence[int]) -> Choice:
    taken: dict[tuple[int, int], int] = {}
    rest = list(counts)
    for d in path:
        difference = state.differences[d]
        key = (difference.kind, difference.option)
        taken[key] = taken.get(key, 0) + 1
        rest[difference.kind] -= 1
    n = state.n_steps(path)
    assert n is not None
    taken[state.step.kind, state.step.after] = n
    rest[state.step.kind] -= n
    for kind, units in enumerate(rest):
        key = (kind, at[kind])
        taken[key] = taken.get(key, 0) + units
    return tuple((k, o, n) for (k, o), n in sorted(taken.items()) if n and o)
