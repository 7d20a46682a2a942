"""Experts on cards that do not own their layer: bound and answer beside all there are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations_with_replacement, pairwise, product

import pytest

from offload.fastest.across import (
    AcrossAnswer,
    AcrossItem,
    AcrossKind,
    AcrossProblem,
    solve_across,
)

INF = float("inf")


def small_problem(rng: random.Random) -> AcrossProblem:
    """Up to four units of up to two kinds on two or three cards, one much faster."""
    n_cards = rng.randint(2, 3)
    n_units = rng.randint(2, 4 if n_cards == 2 else 3)
    pace = [1.0, *(rng.uniform(1.0, 5.0) for _ in range(n_cards - 1)), 12.0]
    cross = rng.choice((0.0, 0.3, 2.0))
    kinds = []
    for _ in range(rng.randint(1, 2)):
        fixed, dense = rng.randint(0, 4), rng.uniform(0, 4)
        sizes = [rng.randint(1, 6) for _ in range(rng.randint(0, 2))]
        kinds.append(
            AcrossKind(
                fixed_bytes=(fixed,) * n_cards,
                base_s=tuple(dense * p for p in pace[:-1]),
                host_s=12.0 * dense + sum(sizes) * 1.2,
                items=tuple(
                    AcrossItem((size,) * n_cards, tuple(0.1 * size * p for p in pace))
                    for size in sizes
                ),
                cross_s=((cross,) * (n_cards + 1),) * n_cards,
            )
        )
    kind_of = tuple(rng.randrange(len(kinds)) for _ in range(n_units))
    total = sum(
        kinds[k].fixed_bytes[0] + sum(i.n_bytes[0] for i in kinds[k].items) for k in kind_of
    )
    return AcrossProblem(
        kinds=tuple(kinds),
        kind_of=kind_of,
        budget_bytes=tuple(round(total * rng.uniform(0.1, 0.8)) + 1 for _ in range(n_cards)),
        once_bytes=(rng.randint(0, 1),) * n_cards,
        once_s=rng.choice((0.0, 0.4)),
        starts=range(n_units + 1),
    )


def seconds_of(
    problem: AcrossProblem, way: tuple[int, ...], places: tuple[tuple[int, ...], ...]
) -> float:
    """What a placement takes; inf where a card is too small."""
    n = problem.n_cards
    room = list(problem.budget_bytes)
    total = sum(problem.kinds[k].host_s for k in problem.kind_of[: way[0]])
    for d, (first, end) in enumerate(pairwise(way)):
        if first == end:
            continue
        total += problem.once_s
        room[d] -= problem.once_bytes[d]
        for u in range(first, end):
            kind = problem.kinds[problem.kind_of[u]]
            total += kind.base_s[d]
            room[d] -= kind.fixed_bytes[d]
            for item, e in zip(kind.items, places[u], strict=True):
                total += item.seconds[e]
                if e < n:
                    room[e] -= item.n_bytes[e]
            total += sum(kind.cross_s[d][e] for e in set(places[u]) - {d})
    return INF if min(room) < 0 else total


def all_seconds(problem: AcrossProblem, *, crossed: bool = True) -> Iterator[float]:
    """Every placement there is: ranges, and each item on each card (or its owner) or the host."""
    n, n_units = problem.n_cards, len(problem.kind_of)
    for ends in combinations_with_replacement(range(n_units + 1), n):
        way = (*ends, n_units)
        if way[0] not in problem.starts:
            continue
        units = [
            list(product(range(n + 1), repeat=len(problem.kinds[k].items))) if u >= way[0] else [()]
            for u, k in enumerate(problem.kind_of)
        ]
        owner = [sum(u >= end for end in way[1:-1]) for u in range(n_units)]
        for places in product(*units):
            if not crossed and any(
                e not in (owner[u], n) for u, at in enumerate(places) for e in at
            ):
                continue
            yield seconds_of(problem, way, places)


def answer_of(problem: AcrossProblem) -> AcrossAnswer:
    """The solver's answer when the best without crossings is known, as it is in a plan."""
    return solve_across(problem, min(all_seconds(problem, crossed=False)), INF)


@pytest.mark.parametrize("seed", range(100))
def test_beside_all_placements(seed: int) -> None:
    """The bound holds; an answer fits, takes what it says and is better than what was known."""
    problem = small_problem(random.Random(seed))
    known = min(all_seconds(problem, crossed=False))

    answer = solve_across(problem, known, INF)

    best = min(all_seconds(problem))
    assert best < INF, "the host can hold everything"
    assert answer.bound_s <= best + 1e-9
    if answer.places:
        assert seconds_of(problem, answer.way, answer.places) == pytest.approx(answer.seconds)
        assert best - 1e-9 <= answer.seconds < known


def test_mostly_the_best_of_all() -> None:
    """With what was known before at least nine in ten are the best there is, none far off."""
    ratios = []
    for seed in range(100):
        problem = small_problem(random.Random(seed))
        known = min(all_seconds(problem, crossed=False))
        found = solve_across(problem, known, INF).seconds
        ratios.append(min(found, known) / min(all_seconds(problem)))
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 90, sorted(ratios)[-40:]
    assert max(ratios) < 1.3


def test_the_same_question_has_the_same_answer() -> None:
    """Nothing depends on a clock or on chance."""
    problem = small_problem(random.Random(7))
    assert answer_of(problem) == answer_of(problem)


def test_given_counts_are_kept() -> None:
    """Where the user says how many units each card owns, only experts move."""
    problem = small_problem(random.Random(3))
    n_units = len(problem.kind_of)
    counts = (n_units, *(0,) * (problem.n_cards - 1))
    fixed = problem._replace(starts=(0,), counts=counts, budget_bytes=(100,) * problem.n_cards)
    assert solve_across(fixed, 1e3, INF).way == (0, *(n_units,) * problem.n_cards)


def test_given_up_where_nothing_is_to_be_gained() -> None:
    """With a better placement known than any bound there is no answer, and the bound says so."""
    problem = small_problem(random.Random(11))
    answer = solve_across(problem, 1e-3, 1e-3)
    assert not answer.places and answer.bound_s >= 1e-3
