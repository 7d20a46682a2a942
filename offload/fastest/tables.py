"""What does any range of units cost one card, as sums that take no time to look up?

Seconds become whole numbers of ticks, so that sums are exact and equal placements tie whatever
order they are added in. Units of the same items are one kind; of a kind's choices only those
remain that no other beats in ticks and bytes at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import floor, log2
from typing import Final, NamedTuple

from offload.fastest.problem import CardProblem, HostProblem, Unit

TICKS: Final = float(1 << 42)
"""Ticks of everything together at most: their sums are exact in a float, and those of bytes
times ticks per byte wrong by less than half a tick."""

LAMBDAS_MAX: Final = 10
"""Prices of a byte that bounds are taken at; more make them tighter and dearer."""

Snap = Callable[[float], float]


class Option(NamedTuple):
    """One choice of a unit's items to send away: its bit mask, ticks, bytes freed and taken."""

    mask: int
    ticks: float
    freed: int
    host_bytes: int


class Step(NamedTuple):
    """From one corner of a kind's lower hull to the next: ticks per byte, and what is chosen."""

    slope: float
    ticks: float
    freed: int
    kind: int
    before: int
    after: int


class Kind(NamedTuple):
    """Units with the same items: choices in order of ticks, none beaten, and their lower hull.

    Ticks and bytes are beyond those of the cheapest choice, which is the first.
    `all_options` are all there are, for ties.
    """

    options: tuple[Option, ...]
    steps: tuple[Step, ...]
    cheapest: Option
    all_options: tuple[Option, ...]


class Table:
    """One card: kinds, and prefix sums over units of what they cost and hold.

    Patterns are kinds told apart by the order of their items as well, so that masks mean the
    same items.
    """

    __slots__ = (
        "base",
        "budget",
        "bytes_sum",
        "counts",
        "kind_of",
        "kind_of_pattern",
        "kinds",
        "least_sum",
        "once_ticks",
        "pattern_of",
        "patterns",
        "steps",
    )

    def __init__(self, card: CardProblem, snap: Snap, host_price: float) -> None:
        self.kinds: list[Kind] = []
        self.patterns: list[Kind] = []
        self.pattern_of: list[int] = []
        self.kind_of_pattern: list[int] = []
        kind_numbers: dict[tuple[object, float], int] = {}
        numbers: dict[tuple[object, float], int] = {}
        for unit in card.units:
            key = (unit.items, unit.first_item_s)
            if key not in numbers:
                # the order of items matters to rules only
                kind_key = (tuple(sorted(unit.items)), unit.first_item_s)
                number = kind_numbers.setdefault(kind_key, len(self.kinds))
                numbers[key] = len(self.patterns)
                self.patterns.append(_kind_of(unit, number, snap, host_price))
                self.kind_of_pattern.append(number)
                if number == len(self.kinds):
                    self.kinds.append(self.patterns[-1])
            self.pattern_of.append(numbers[key])
        self.kind_of = [self.kind_of_pattern[p] for p in self.pattern_of]
        self.budget = card.budget_bytes - card.once_bytes
        self.once_ticks = snap(card.once_s)
        kinds = [self.kinds[k] for k in self.kind_of]
        held = [
            unit.fixed_bytes + sum(item.n_bytes for item in unit.items) - kind.cheapest.freed
            for unit, kind in zip(card.units, kinds, strict=True)
        ]
        self.bytes_sum = [0, *accumulate(held)]
        self.least_sum = [
            0,
            *accumulate(n - kind.options[-1].freed for n, kind in zip(held, kinds, strict=True)),
        ]
        self.base = [
            0.0,
            *accumulate(
                snap(unit.base_s) + kind.cheapest.ticks
                for unit, kind in zip(card.units, kinds, strict=True)
            ),
        ]
        self.counts = [
            [0, *accumulate(int(k == number) for k in self.kind_of)]
            for number in range(len(self.kinds))
        ]
        self.steps = sorted(step for kind in self.kinds for step in kind.steps)

    def reach(self, first: int) -> int:
        """The end of the longest range from `first` that fits with all items away."""
        return bisect_right(self.least_sum, self.least_sum[first] + self.budget) - 1

    def need(self, first: int, end: int) -> int:
        """Bytes that must leave the card beyond those that leave anyway; 0 or less: none."""
        return self.bytes_sum[end] - self.bytes_sum[first] - self.budget

    def prices(self) -> list[float]:
        """Ticks per byte at which bounds are taken, 0 first."""
        slopes = sorted({step.slope for step in self.steps})
        if len(slopes) > LAMBDAS_MAX:
            last = len(slopes) - 1
            slopes = [slopes[round(n * last / (LAMBDAS_MAX - 1))] for n in range(LAMBDAS_MAX)]
        return [0.0, *slopes]

    def priced_sum(self, price: float) -> list[float]:
        """Prefix sums of ticks when every byte held costs `price` and each unit chooses best."""
        best = [
            min(option.ticks - price * option.freed for option in kind.options)
            for kind in self.kinds
        ]
        chosen = [0.0, *accumulate(best[k] for k in self.kind_of)]
        return [
            ticks + more + price * n
            for ticks, more, n in zip(self.base, chosen, self.bytes_sum, strict=True)
        ]


def make_snap(cards: Sequence[CardProblem], host: HostProblem) -> tuple[Snap, float]:
    """Seconds to ticks, and the seconds of a tick."""
    largest = [
        max((_size_of(unit) for unit in column), default=0.0)
        for column in zip(*(card.units for card in cards), strict=True)
    ]
    total = sum(largest) + sum(abs(card.once_s) for card in cards)
    total += sum(abs(unit.base_s) for unit in host.units)
    # a power of two: what is round in seconds stays so
    per_second = 2.0 ** floor(log2(TICKS / total)) if total > 0 else 1.0

    def snap(seconds: float) -> float:
        return float(round(seconds * per_second))

    return snap, 1.0 / per_second


def _size_of(unit: Unit) -> float:
    return abs(unit.base_s) + abs(unit.first_item_s) + sum(abs(item.extra_s) for item in unit.items)


def _kind_of(unit: Unit, number: int, snap: Snap, host_price: float) -> Kind:
    """A kind with its choices; a byte on the host costs `host_price` ticks beside its seconds."""
    found = [Option(0, 0.0, 0, 0)]
    for i, item in enumerate(unit.items):
        ticks = snap(item.extra_s) + float(round(host_price * item.host_bytes))
        found += [
            Option(
                option.mask | 1 << i,
                option.ticks + ticks,
                option.freed + item.n_bytes,
                option.host_bytes + item.host_bytes,
            )
            for option in found
        ]
    crossing = snap(unit.first_item_s)
    found = [
        option._replace(ticks=option.ticks + crossing) if option.mask else option
        for option in found
    ]
    found.sort(key=lambda o: (o.ticks, -o.freed, o.mask.bit_count(), o.mask))
    cheapest = found[0]
    relative = [
        option._replace(ticks=option.ticks - cheapest.ticks, freed=option.freed - cheapest.freed)
        for option in found
    ]
    options = []
    most = -1
    for option in relative:
        if option.freed > most:
            options.append(option)
            most = option.freed
    return Kind(tuple(options), _hull(options, number), cheapest, tuple(relative))


def _hull(options: Sequence[Option], kind: int) -> tuple[Step, ...]:
    """Corners of the lower convex hull of ticks over bytes, from the cheapest choice on."""
    corners = [0]
    for at in range(1, len(options)):
        while len(corners) > 1 and _slope(options, corners[-2], at) <= _slope(
            options, corners[-2], corners[-1]
        ):
            corners.pop()
        corners.append(at)
    return tuple(
        Step(
            _slope(options, a, b),
            options[b].ticks - options[a].ticks,
            options[b].freed - options[a].freed,
            kind,
            a,
            b,
        )
        for a, b in pairwise(corners)
    )


def _slope(options: Sequence[Option], a: int, b: int) -> float:
    return (options[b].ticks - options[a].ticks) / (options[b].freed - options[a].freed)
