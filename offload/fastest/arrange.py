"""Which units of a range send what away, when many choices take equally long?

Of all choices that take exactly the ticks known to be the fewest, one with the fewest runs of
neighbouring units that send the same away; of those, one that frees the most. A pass over the
units in order, over labels of what was sent so far; the price of a byte at the optimum leaves
few labels, because a choice that wastes more than the optimum does cannot be part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from offload.fastest.relief import Choice
from offload.fastest.tables import Kind

_TOLERANCE: Final = 1.0
"""Ticks by which rounding may misjudge a waste."""

_RUNS_MAX: Final = 1 << 30


class Arranged(NamedTuple):
    """Runs of units that send the same away, bytes freed, the items of each unit; effort spent."""

    n_rules: int
    freed: int
    masks: tuple[int, ...]
    spent: int


_Key = tuple[int, float, int]
"""What the last unit sent (its mask), ticks and bytes freed so far."""

_Level = dict[_Key, tuple[int, _Key]]
"""By key: the fewest runs it takes, and the key before."""


def arrange(
    kinds: Sequence[Kind],
    units: Sequence[int],
    *,
    need: int,
    ticks: float,
    price: float,
    effort: int,
) -> Arranged | None:
    """The best of the choices of exactly `ticks`; `units` are kinds. None beyond the effort.

    `ticks` and `need` count from each unit's cheapest option, `price` is ticks per byte.
    """
    allowed = _allowed(kinds, units, need=need, ticks=ticks, price=price)
    spent = 0
    for n_runs in (0, 1, 2, 3, _RUNS_MAX):
        found = _pass(allowed, units, need=need, ticks=ticks, n_runs=n_runs, effort=effort - spent)
        if found is None:
            return None
        spent += found.spent
        if found.masks:
            return found._replace(spent=spent)
    return None


class _Allowed(NamedTuple):
    """A unit's options that can be part of an optimum: mask, ticks, freed; and their extremes."""

    options: tuple[tuple[int, float, int], ...]
    least_ticks: float
    most_freed: int


def _allowed(
    kinds: Sequence[Kind], units: Sequence[int], *, need: int, ticks: float, price: float
) -> dict[int, _Allowed]:
    least = {
        k: min(option.ticks - price * option.freed for option in kinds[k].options)
        for k in set(units)
    }
    waste = ticks - price * max(need, 0) - sum(least[k] for k in units) + _TOLERANCE
    allowed = {}
    for k, lowest in least.items():
        options = tuple(
            (option.mask, option.ticks, option.freed)
            for option in sorted(kinds[k].all_options, key=lambda o: o.mask)
            if option.ticks - price * option.freed - lowest <= waste
        )
        allowed[k] = _Allowed(options, min(o[1] for o in options), max(o[2] for o in options))
    return allowed


def _pass(
    allowed: dict[int, _Allowed],
    units: Sequence[int],
    *,
    need: int,
    ticks: float,
    n_runs: int,
    effort: int,
) -> Arranged | None:
    """The best with so many runs at most; without masks where there is none."""
    ticks_after = list(accumulate((allowed[k].least_ticks for k in reversed(units)), initial=0.0))
    freed_after = list(accumulate((allowed[k].most_freed for k in reversed(units)), initial=0))
    levels: list[_Level] = []
    labels: _Level = {(0, 0.0, 0): (0, (0, 0.0, 0))}
    spent = 0
    for u, k in enumerate(units):
        after = len(units) - u - 1
        most = ticks - ticks_after[after]
        least = need - freed_after[after]
        following: _Level = {}
        for key, (runs, _) in labels.items():
            last, ticks_sum, freed_sum = key
            for mask, more, freed in allowed[k].options:
                n = runs + (mask != last and mask != 0)
                total, sent = ticks_sum + more, freed_sum + freed
                if n > n_runs or total > most or sent < least:
                    continue
                new = (mask, total, sent)
                known = following.get(new)
                if known is None or n < known[0]:
                    following[new] = (n, key)
        spent += len(labels) * len(allowed[k].options)
        if spent > effort:
            return None
        if not following:
            return Arranged(0, 0, (), spent)
        levels.append(following)
        labels = following
    key = min(labels, key=lambda key: (labels[key][0], -key[2], key))
    n_rules, freed = labels[key][0], key[2]
    masks = []
    for level in reversed(levels):
        masks.append(key[0])
        key = level[key][1]
    return Arranged(n_rules, freed, tuple(reversed(masks)), spent)


def lay_out(
    patterns: Sequence[Kind], kind_of: Sequence[int], units: Sequence[int], choice: Choice
) -> Arranged:
    """Any order: of each kind the first units send the most away.

    `units` are patterns and `kind_of` their kinds, of which `choice` speaks.
    """
    waiting: dict[int, list[int]] = {}
    for kind, at, n in sorted(choice):
        # options free the more, the later they come
        waiting.setdefault(kind, []).extend([at] * n)
    masks, freed, n_rules, last = [], 0, 0, 0
    for pattern in units:
        rest = waiting.get(kind_of[pattern])
        option = patterns[pattern].options[rest.pop() if rest else 0]
        n_rules += option.mask not in (0, last)
        last = option.mask
        masks.append(option.mask)
        freed += option.freed
    return Arranged(n_rules, freed, tuple(masks), 0)
