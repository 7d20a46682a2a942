"""The same problem for HiGHS, a solver of mixed-integer programmes that knows nothing of ours."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from tests.fastest_problems import Problem


class Judged(NamedTuple):
    """Seconds of the best that HiGHS found, and its bound; None where it found nothing."""

    seconds: float | None
    bound_s: float
    is_infeasible: bool


class _Programme:
    """Binary variables, their seconds, and rows of coefficients between two limits."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.rows: list[dict[int, float]] = []
        self.limits: list[tuple[float, float]] = []

    def variable(self, seconds: float) -> int:
        self.seconds.append(seconds)
        return len(self.seconds) - 1

    def row(self, coefficients: dict[int, float], low: float, high: float) -> None:
        self.rows.append(coefficients)
        self.limits.append((low, high))


def judge(problem: Problem, time_limit_s: float = 20.0, gap: float = 1e-9) -> Judged:
    """Solve it as a programme: who owns each unit, and which items are away."""
    programme = _programme(problem)
    data, at_row, at_column = [], [], []
    for r, row in enumerate(programme.rows):
        for column, value in row.items():
            data.append(value)
            at_row.append(r)
            at_column.append(column)
    shape = (len(programme.rows), len(programme.seconds))
    matrix = csr_array((data, (at_row, at_column)), shape=shape)
    lows, highs = zip(*programme.limits, strict=True)
    result = milp(
        np.array(programme.seconds),
        integrality=np.ones(len(programme.seconds)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, lows, highs),
        options={"time_limit": time_limit_s, "mip_rel_gap": gap},
    )
    bound = getattr(result, "mip_dual_bound", None)
    return Judged(
        seconds=None if result.x is None else float(result.fun),
        bound_s=float("-inf") if bound is None else float(bound),
        is_infeasible=result.status == 2,
    )


def _programme(problem: Problem) -> _Programme:
    made = _Programme()
    cards, host = problem.cards, problem.host
    n_units = len(cards[0].units)
    inf = float("inf")
    scale = float(max(card.budget_bytes for card in cards) or 1)
    on_host = [made.variable(unit.base_s) for unit in host.units]
    host_row: dict[int, float] = {
        x: unit.n_bytes / scale for x, unit in zip(on_host, host.units, strict=True)
    }
    # owners[u][0] is the host's variable where there is one, then each card's
    owners: list[list[int]] = [[x] for x in on_host] + [[] for _ in range(n_units - len(on_host))]
    for card in cards:
        owns_any = made.variable(card.once_s)
        used: dict[int, float] = defaultdict(float)
        used[owns_any] = (card.once_bytes - card.budget_bytes) / scale
        for u, unit in enumerate(card.units):
            owns = made.variable(unit.base_s)
            owners[u].append(owns)
            made.row({owns_any: 1.0, owns: -1.0}, 0, inf)
            used[owns] = (unit.fixed_bytes + sum(item.n_bytes for item in unit.items)) / scale
            crossing = made.variable(unit.first_item_s) if unit.first_item_s else None
            for item in unit.items:
                away = made.variable(item.extra_s)
                made.row({owns: 1.0, away: -1.0}, 0, inf)
                if crossing is not None:
                    made.row({crossing: 1.0, away: -1.0}, 0, inf)
                used[away] = -item.n_bytes / scale
                host_row[away] = item.host_bytes / scale
        made.row(dict(used), -inf, 0)
    for u, own in enumerate(owners):
        made.row(dict.fromkeys(own, 1.0), 1, 1)
        if u:
            _in_order(made, owners[u - 1], own, len(cards))
    if host.budget_bytes is not None:
        made.row(host_row, -inf, host.budget_bytes / scale)
    return made


def _in_order(made: _Programme, before: list[int], own: list[int], n_cards: int) -> None:
    """Whoever owns a unit, the one before it is nobody's that comes later."""
    for last in range(n_cards):
        earlier = before[: len(before) - n_cards + last + 1]
        here = own[: len(own) - n_cards + last + 1]
        made.row({**dict.fromkeys(earlier, 1.0), **dict.fromkeys(here, -1.0)}, 0, float("inf"))
    if len(own) > n_cards:
        made.row({before[0]: 1.0, own[0]: -1.0}, 0, float("inf"))
