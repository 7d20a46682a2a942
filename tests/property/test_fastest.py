"""The exact solver is judged by all placements there are, and by HiGHS where they are too many."""

from __future__ import annotations

import random
from math import inf

import pytest

from offload.fastest import solve_fastest
from tests.fastest_highs import judge
from tests.fastest_problems import MIXES, all_answers, realistic_problem, small_problem

N_SMALL = 250
N_LIMITED = 120
CLOSE = 1e-9


def _is_close(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * (1 + abs(b))


@pytest.mark.parametrize("part", range(5))
def test_equals_the_best_of_all_placements(part: int) -> None:
    """Small problems: the seconds of the best placement, proven; None only where none fits."""
    n_solved = 0
    for seed in range(part, N_SMALL, 5):
        problem = small_problem(random.Random(seed))
        best = min(all_answers(problem), default=None)
        answer = solve_fastest(problem.cards, problem.host)
        assert (best is None) == (answer is None), seed
        if best is not None and answer is not None:
            n_solved += 1
            assert _is_close(answer.seconds, best.seconds), seed
            assert answer.gap_s == 0, seed
    assert n_solved > N_SMALL // 20


@pytest.mark.parametrize("part", range(5))
def test_ties_go_to_fewer_runs_then_to_more_headroom(part: int) -> None:
    """Whole seconds, so that many placements are equally fast: the best by all three measures."""
    for seed in range(part, N_SMALL, 5):
        problem = small_problem(random.Random(seed), is_coarse=True)
        best = min(all_answers(problem), default=None)
        answer = solve_fastest(problem.cards, problem.host)
        assert (best is None) == (answer is None), seed
        if best is not None and answer is not None:
            shortest = -inf if answer.headroom_bytes is None else -answer.headroom_bytes
            assert (answer.seconds, answer.n_rules, shortest) == best[:3], seed


def test_a_limit_of_the_host_is_kept_and_its_bound_holds() -> None:
    """Where the host is short: within its bytes, and never faster than the bound allows."""
    n_exact = n_solved = 0
    for seed in range(N_LIMITED):
        problem = small_problem(random.Random(seed), limits_host=True)
        best = min(all_answers(problem), default=None)
        answer = solve_fastest(problem.cards, problem.host)
        assert (best is None) == (answer is None), seed
        if best is not None and answer is not None:
            assert problem.host.budget_bytes is not None
            assert answer.host_bytes <= problem.host.budget_bytes, seed
            assert answer.bound_s <= best.seconds + CLOSE * (1 + abs(best.seconds)), seed
            assert answer.seconds >= best.seconds - CLOSE * (1 + abs(best.seconds)), seed
            n_solved += 1
            n_exact += _is_close(answer.seconds, best.seconds)
    assert n_solved > 20
    assert n_exact >= 0.9 * n_solved


@pytest.mark.parametrize("mix", MIXES)
def test_agrees_with_highs(mix: str) -> None:
    """Three cards: never worse than its best beyond our gap, never below its bound."""
    for seed in range(2):
        problem = realistic_problem(random.Random(seed), 8, 3, mix=mix, is_equal=seed % 2 == 1)
        answer = solve_fastest(problem.cards, problem.host)
        judged = judge(problem, time_limit_s=2.0, gap=1e-7)
        assert answer is not None
        slack = 1e-6 * answer.seconds
        assert answer.seconds >= judged.bound_s - slack, seed
        if judged.seconds is not None:
            assert answer.seconds <= judged.seconds + answer.gap_s + slack, seed
            assert answer.bound_s <= judged.seconds + slack, seed


def test_same_question_same_answer() -> None:
    """Nothing depends on a clock or on what was asked before."""
    problem = realistic_problem(random.Random(3), 40, 4)
    first = solve_fastest(problem.cards, problem.host)
    solve_fastest(*realistic_problem(random.Random(4), 20, 2))
    assert solve_fastest(problem.cards, problem.host) == first
