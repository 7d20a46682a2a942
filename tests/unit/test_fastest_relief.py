"""What one card sends away, and the bounds of its ranges, beside a plain dynamic programme."""

from __future__ import annotations

import random

import pytest

from offload.fastest import CardProblem, HostProblem, Item, Unit
from offload.fastest.bounds import bound_rows
from offload.fastest.effort import Effort
from offload.fastest.relief import LEVELS, Relief, Reliever
from offload.fastest.tables import Table, make_snap


def _card(rng: random.Random, n_units: int) -> CardProblem:
    """Up to three kinds of layers in turns; seconds mostly in step with bytes, as they are."""
    kinds = []
    for _ in range(rng.randint(1, 3)):
        rate = rng.choice((1.0, 1.0, rng.uniform(0.8, 1.2)))
        sizes = [rng.choice((24, 35, 48, rng.randint(20, 60))) for _ in range(3)]
        kinds.append(tuple(Item(n, n, rate * n + rng.choice((0, 0, 1))) for n in sizes))
    crossing = rng.choice((0.0, 1.0, 10.0, 40.0))
    units = tuple(
        Unit(rng.randint(0, 9), rng.uniform(0, 50), rng.choice(kinds), crossing)
        for _ in range(n_units)
    )
    n_bytes = sum(unit.fixed_bytes + sum(item.n_bytes for item in unit.items) for unit in units)
    return CardProblem(round(n_bytes * rng.uniform(0.1, 0.95)), units, once_bytes=5, once_s=3.0)


def _fewest_ticks(table: Table, first: int, end: int) -> float | None:
    """The cheapest relief of a range, unit after unit: fewest ticks for each number of bytes."""
    need = table.need(first, end)
    states = {0: 0.0}
    for kind in table.kind_of[first:end]:
        following: dict[int, float] = {}
        for freed, ticks in states.items():
            for option in table.kinds[kind].options:
                key = min(freed + option.freed, max(need, 0))
                total = ticks + option.ticks
                if total < following.get(key, float("inf")):
                    following[key] = total
        states = following
    return states.get(max(need, 0))


def _relief(table: Table, reliever: Reliever, first: int, end: int, level: int) -> Relief:
    counts = tuple(sums[end] - sums[first] for sums in table.counts)
    return reliever.relief(counts, table.need(first, end), level)


@pytest.mark.parametrize("seed", range(40))
def test_relief_is_the_cheapest_and_its_bound_holds(seed: int) -> None:
    """At every level between bound and ticks found; exact at the highest."""
    rng = random.Random(seed)
    card = _card(rng, rng.randint(4, 24))
    snap, _ = make_snap([card], HostProblem())
    table = Table(card, snap, 0.0)
    reliever = Reliever(table.kinds, table.steps, Effort(10**9))
    ranges = [(0, len(card.units)), (len(card.units) // 3, len(card.units))]
    for first, end in ranges:
        exact = _fewest_ticks(table, first, end)
        found = [_relief(table, reliever, first, end, level) for level in range(LEVELS)]
        if exact is None:
            assert all(relief.ticks == float("inf") for relief in found)
        else:
            assert all(relief.bound <= exact <= relief.ticks for relief in found)
            assert found[-1].ticks == found[-1].bound == exact


@pytest.mark.parametrize("seed", range(12))
def test_bounds_of_ranges_hold_and_only_what_can_fit_has_one(seed: int) -> None:
    """No range takes fewer ticks than its row says; a row ends where even nothing would fit."""
    rng = random.Random(seed)
    card = _card(rng, 12)
    snap, _ = make_snap([card], HostProblem())
    table = Table(card, snap, 0.0)
    for first, row in enumerate(bound_rows(table, 12)):
        for end in range(first + 1, 13):
            exact = _fewest_ticks(table, first, end)
            assert (exact is None) == (end - first > len(row))
            if exact is not None:
                base = table.once_ticks + table.base[end] - table.base[first]
                assert row[end - first - 1] <= base + exact + 0.5


def test_bounds_are_the_relaxation() -> None:
    """Half a unit must leave: half of its ticks, where a half could leave."""
    card = CardProblem(15, (Unit(0, 1.0, (Item(10, 10, 4.0),)),) * 2)
    snap, tick_s = make_snap([card], HostProblem())
    rows = bound_rows(Table(card, snap, 0.0), 2)
    assert [[ticks * tick_s for ticks in row] for row in rows] == [
        [pytest.approx(1.0), pytest.approx(2.0 + 4.0 / 2)],
        [pytest.approx(1.0)],
    ]
