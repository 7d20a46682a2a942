"""The own-layer spread against brute force, and the shape of its answers."""

from __future__ import annotations

import random
from itertools import chain, combinations

import pytest

from offload.memory import ExpertUnit, LayerBytes
from offload.solve import CardTable, relieve, solve_spread


def _table(fixed: list[int], experts: list[tuple[int, ...]], once: int = 0) -> LayerBytes:
    units = tuple(
        tuple(
            ExpertUnit(il=il, stem=f"s{k}", names=(f"blk.{il}.s{k}.weight",), n_bytes=n)
            for k, n in enumerate(row)
        )
        for il, row in enumerate(experts)
    )
    return LayerBytes(
        fixed_bytes=tuple(fixed),
        expert_units=units,
        expert_bytes=tuple(map(sum, experts)),
        once_bytes=once,
    )


def _cheapest_by_brute_force(table: LayerBytes, first: int, end: int, budget: int) -> int:
    """Fewest bytes over all runs of whole layers with any part of the next two layers."""
    need = sum(table.fixed_bytes[first:end]) + sum(table.expert_bytes[first:end]) - budget
    if need <= 0:
        return 0
    sums = []
    for i in range(first, end):
        for j in range(i, end + 1):
            whole = sum(table.expert_bytes[i:j])
            sizes = [u.n_bytes for row in table.expert_units[j : min(j + 2, end)] for u in row]
            parts = chain.from_iterable(combinations(sizes, r) for r in range(len(sizes) + 1))
            sums += [whole + sum(part) for part in parts]
    return min(s for s in sums if s >= need)


def _random_table(rng: random.Random, n: int) -> LayerBytes:
    fixed = [rng.randint(1, 9) for _ in range(n)]
    experts = [
        () if rng.random() < 0.2 else tuple(rng.randint(1, 30) for _ in range(rng.randint(1, 3)))
        for _ in range(n - 1)
    ]
    return _table(fixed, [*experts, ()])


@pytest.mark.parametrize("seed", range(150))
def test_relief_is_the_cheapest(seed: int) -> None:
    """One card's relief frees enough, and no run with cut layers behind it does for less."""
    rng = random.Random(seed)
    table = _random_table(rng, 7)
    total = sum(table.fixed_bytes) + sum(table.expert_bytes)
    budget = rng.randint(sum(table.fixed_bytes), total + 3)
    card = CardTable(layer_bytes=table, budget_bytes=budget)
    relief = card.relief(0, 7)
    assert relief.short_bytes == 0
    assert total - relief.n_bytes <= budget
    assert relief.n_bytes == sum(u.n_bytes for u in relief.units)
    assert relief.n_bytes == _cheapest_by_brute_force(table, 0, 7, budget)


@pytest.mark.parametrize("seed", range(60))
def test_a_split_is_found_when_there_is_one(seed: int) -> None:
    """Whenever some pair of ranges fits, the spread finds one that fits."""
    rng = random.Random(1000 + seed)
    table = _random_table(rng, 8)
    budgets = [rng.randint(5, 60), rng.randint(5, 60)]
    cards = [CardTable(layer_bytes=table, budget_bytes=b) for b in budgets]
    possible = any(relieve(cards, (k, 8 - k), 0).short_bytes == 0 for k in range(9))
    solution = solve_spread(cards)
    assert sum(solution.counts) == 8
    assert (solution.short_bytes == 0) == possible


def test_equal_cards_that_hold_everything_are_filled_evenly() -> None:
    """Without relief, twelve equal layers go six and six."""
    table = _table([10] * 12, [()] * 12)
    cards = [CardTable(layer_bytes=table, budget_bytes=1000) for _ in range(2)]
    solution = solve_spread(cards)
    assert solution.counts == (6, 6)
    assert solution.host_bytes == 0


def test_unequal_cards_get_unequal_shares() -> None:
    """A card of twice the memory owns twice the layers when both are relieved."""
    table = _table([1] * 30, [(10, 10, 10)] * 29 + [()])
    cards = [CardTable(layer_bytes=table, budget_bytes=b) for b in (400, 200)]
    solution = solve_spread(cards)
    assert solution.short_bytes == 0
    assert abs(solution.counts[0] - 20) <= 1
    assert all(relief.units for relief in solution.reliefs)


def test_each_card_is_relieved_in_its_own_range() -> None:
    """The experts a card sends away are of layers that this card owns."""
    table = _table([5] * 20, [(10, 10)] * 19 + [()])
    cards = [CardTable(layer_bytes=table, budget_bytes=150) for _ in range(3)]
    solution = solve_spread(cards)
    first = 0
    for count, relief in zip(solution.counts, solution.reliefs, strict=True):
        assert all(first <= unit.il < first + count for unit in relief.units)
        first += count


def test_what_cannot_fit_says_how_much_is_missing() -> None:
    """Shortage is the bytes that must stay less the budgets."""
    table = _table([50, 50, 50], [(10,), (10,), ()])
    cards = [CardTable(layer_bytes=table, budget_bytes=60) for _ in range(2)]
    solution = solve_spread(cards)
    assert solution.short_bytes == 40


def test_host_layers_are_left_out() -> None:
    """The first layers can stay on the host; counts cover the rest."""
    table = _table([10] * 10, [()] * 10)
    cards = [CardTable(layer_bytes=table, budget_bytes=35) for _ in range(2)]
    solution = solve_spread(cards, n_host_layers=4)
    assert sum(solution.counts) == 6
    assert solution.short_bytes == 0


def test_tensors_copied_to_every_card_are_charged_to_every_owner() -> None:
    """`once_bytes` counts on each card that owns a layer, and on none that owns nothing."""
    table = _table([10, 10, 10, 10], [()] * 4, once=7)
    card = CardTable(layer_bytes=table, budget_bytes=100)
    assert card.fixed(0, 2) == 27
    assert card.fixed(2, 2) == 0
