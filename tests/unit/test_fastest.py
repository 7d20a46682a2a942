"""What the fastest placement is, where it can be seen by eye."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from offload.fastest import CardProblem, HostProblem, HostUnit, Item, Unit, solve_fastest

NO_HOST = HostProblem()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer of one fixed byte and some items of two bytes each."""

    base_s: float = 1.0
    extra_s: float = 1.0
    n_items: int = 3
    crossing_s: float = 0.0

    def unit(self) -> Unit:
        """The layer as a card holds it."""
        items = (Item(2, 2, self.extra_s),) * self.n_items
        return Unit(fixed_bytes=1, base_s=self.base_s, items=items, first_item_s=self.crossing_s)


def card(budget_bytes: int, n_units: int, layer: Layer, once_s: float = 0.0) -> CardProblem:
    """A card of equal layers."""
    return CardProblem(budget_bytes=budget_bytes, units=(layer.unit(),) * n_units, once_s=once_s)


def test_everything_stays_where_it_fits() -> None:
    """No item leaves, no rule is made, nothing is proven better."""
    answer = solve_fastest([card(28, 4, Layer())], NO_HOST)
    assert answer is not None
    assert (answer.counts, answer.away, answer.seconds) == ((4,), ((),), 4.0)
    assert (answer.n_rules, answer.headroom_bytes, answer.gap_s) == (0, 0, 0.0)


def test_what_leaves_is_one_run_with_a_part() -> None:
    """Five items of four layers: a whole layer and two of its neighbour, not five odd ones."""
    answer = solve_fastest([card(18, 4, Layer(crossing_s=0.5))], NO_HOST)
    assert answer is not None
    assert answer.seconds == 4 + 5 * 1.0 + 2 * 0.5
    assert answer.n_rules == 2
    units = sorted({unit for unit, _ in answer.away[0]})
    assert units[1] - units[0] == 1


def test_items_that_are_faster_on_the_host_go_there_unasked() -> None:
    """Less than no extra time: moved though everything fits, unless the crossing eats it up."""
    answer = solve_fastest([card(100, 2, Layer(extra_s=-0.25, crossing_s=0.5))], NO_HOST)
    assert answer is not None
    assert (answer.seconds, len(answer.away[0])) == (2 - 2 * 0.25, 6)
    answer = solve_fastest([card(100, 2, Layer(extra_s=-0.25, crossing_s=1.0))], NO_HOST)
    assert answer is not None
    assert answer.away == ((),)


def test_a_card_that_only_costs_is_left_out() -> None:
    """The slow card owns nothing while the fast one has room, and the host takes none of it."""
    fast, slow = card(100, 4, Layer(), once_s=0.1), card(100, 4, Layer(base_s=3.0), once_s=0.1)
    answer = solve_fastest([slow, fast], NO_HOST)
    assert answer is not None
    assert (answer.counts, answer.seconds) == ((0, 4), 4.1)


def test_the_slow_card_takes_what_would_be_slower_on_the_host() -> None:
    """Ranges in device order, the fast card full, the rest where it costs less."""
    fast, slow = card(14, 4, Layer(extra_s=5.0)), card(100, 4, Layer(base_s=3.0))
    answer = solve_fastest([fast, slow], NO_HOST)
    assert answer is not None
    assert (answer.counts, answer.away, answer.seconds) == ((2, 2), ((), ()), 8.0)


def test_whole_layers_on_the_host_come_first() -> None:
    """Where the cards lack room for what must stay, the first layers are the host's."""
    host = HostProblem(None, (HostUnit(7, 9.0),) * 4)
    answer = solve_fastest([card(2, 4, Layer(n_items=0))], host)
    assert answer is not None
    assert (answer.n_host_units, answer.counts, answer.seconds) == (2, (2,), 20.0)
    assert answer.host_bytes == 14
    assert answer.headroom_bytes == 0


@pytest.mark.parametrize(("asked", "expected"), [(1, 1), (range(2, 4), 2), (None, 0), (5, None)])
def test_only_the_numbers_of_host_layers_that_were_allowed(
    asked: int | range | None, expected: int | None
) -> None:
    """One number, several, any; a number that cannot be has no answer."""
    host = HostProblem(None, (HostUnit(7, 9.0),) * 4)
    answer = solve_fastest([card(100, 4, Layer())], host, n_host_units=asked)
    assert (None if answer is None else answer.n_host_units) == expected


def test_given_counts_are_kept() -> None:
    """The user's own split: only what leaves is chosen."""
    cards = [card(14, 4, Layer()), card(100, 4, Layer())]
    answer = solve_fastest(cards, NO_HOST, counts=(3, 1))
    assert answer is not None
    assert (answer.counts, answer.seconds, answer.gap_s) == ((3, 1), 4 + 4.0, 0.0)
    assert solve_fastest(cards, NO_HOST, counts=(3, 2)) is None
    assert solve_fastest([card(2, 4, Layer())], NO_HOST, counts=(4,)) is None


def test_nothing_fits_nothing_is_answered() -> None:
    """What must stay is more than the cards hold, and the host may take no whole layer."""
    assert solve_fastest([card(3, 4, Layer())], NO_HOST) is None


def test_a_short_host_is_no_answer_either() -> None:
    """The cards would fit if the host had room for what they send away."""
    assert solve_fastest([card(18, 4, Layer())], HostProblem(9)) is None
    answer = solve_fastest([card(18, 4, Layer())], HostProblem(10))
    assert answer is not None
    assert answer.host_bytes == 10


def test_little_effort_still_answers_and_says_what_it_does_not_know() -> None:
    """Without effort: a placement that fits, and a bound that is not above the best."""
    layers = tuple(
        Unit(3 + u % 3, 1.0, tuple(Item(7 + 5 * i + u % 4, 1, 1.0 + i + u % 4) for i in range(3)))
        for u in range(12)
    )
    cards = [CardProblem(101, layers), CardProblem(95, layers)]
    best = solve_fastest(cards, NO_HOST)
    quick = solve_fastest(cards, NO_HOST, effort=0)
    assert best is not None and quick is not None
    assert best.gap_s == 0
    assert quick.bound_s <= best.seconds <= quick.seconds


def test_cards_that_do_not_know_the_same_units_are_refused() -> None:
    """A mistake of the caller, not a problem without an answer."""
    with pytest.raises(ValueError):
        solve_fastest([card(9, 2, Layer()), card(9, 3, Layer())], NO_HOST)
    with pytest.raises(ValueError):
        solve_fastest([card(9, 2, Layer())], NO_HOST, counts=(1, 1))
