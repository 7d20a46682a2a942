"""Which seconds per unit of work do measured runs tell, and how well are they known then?

Seconds are linear in the amounts of work (offload/cost), so this is weighted least squares with
coefficients of zero or more (tuner/least_squares.py); decode and prefill share none. With them come
standard errors, the outliers, what the runs cannot tell apart, and which run would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from offload.cost import Coefficient, Coefficients, Work, unit_of
from tuner.least_squares import (
    NOISE_EXPECTED_WEIGHT,
    NOISE_MIN,
    Array,
    Run,
    Solved,
    System,
    n_parameters,
    solve_nnls,
    solve_once,
    solve_waiting,
)

__all__ = [
    "NOISE_MIN",
    "Fit",
    "Residual",
    "Run",
    "Unidentified",
    "advice_for",
    "fit",
    "rank_next_runs",
    "solve_nnls",
]

_OUTLIER_DEVIATIONS: Final = 4.0
_IDENTIFIED_MIN: Final = 0.5
"""A coefficient is identified where the runs explain this share of what is known about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What the fit says of one run; outliers count less, and are never dropped."""

    label: str
    measured_s: float
    fitted_s: float
    is_outlier: bool

    @property
    def relative(self) -> float:
        """Measured over fitted, less one."""
        return self.measured_s / self.fitted_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unidentified:
    """A feature whose coefficient the runs do not settle, and those it cannot be told from.

    Feature and companions vary together in all runs; `advice` names a run that would part them.
    """

    feature: str
    companions: tuple[str, ...]
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Coefficients with everything needed to judge them.

    `condition_numbers` belong to the weighted runs alone, by phase (`decode`, `prefill`), with
    every column scaled to length one; 1e3 and above means that some runs are missing.
    """

    coefficients: Coefficients
    residuals: tuple[Residual, ...]
    unidentified: tuple[Unidentified, ...]
    condition_numbers: Mapping[str, float]


def fit(
    runs: Sequence[Run],
    prior: Coefficients | None = None,
    *,
    waiting: bool = True,
    card_models: Mapping[str, str] = MappingProxyType({}),
) -> Fit:
    """Fit all coefficients that occur in `runs`; decode and prefill share none.

    `prior` is what was believed before: its values count with their standard errors.
    `waiting` lets cards that wait be slower (offload/cost/waiting.py): without a run between
    the ends nothing is learned of it but how wide intervals there must be. `card_models` names
    the model of each card; those of one model are believed to be as fast as each other.
    """
    phases = sorted({name.partition(".")[0] for run in runs for name in run.work.amounts})
    parts = {}
    for phase in phases:
        mine = [run for run in runs if any(n.startswith(f"{phase}.") for n in run.work.amounts)]
        parts[phase] = _fit_phase(mine, prior, waiting, card_models)
    table: dict[str, Coefficient] = {}
    covariance: dict[tuple[str, str], float] = {}
    for part in parts.values():
        table |= part.table
        covariance |= part.covariance
    return Fit(
        coefficients=Coefficients(
            table=table,
            covariance=covariance,
            residual_sds={phase: part.residual_sd for phase, part in parts.items()},
            source="measured",
        ),
        residuals=tuple(r for part in parts.values() for r in part.residuals),
        unidentified=tuple(u for part in parts.values() for u in part.unidentified),
        condition_numbers={phase: part.condition_number for phase, part in parts.items()},
    )


def rank_next_runs(found: Fit, candidates: Mapping[str, Work]) -> tuple[tuple[str, float], ...]:
    """Candidate runs by label, most informative first, with the relative doubt about each.

    The run whose seconds are least certain now teaches most (for one more run that is the
    choice which shrinks the determinant of the covariance most).
    """
    doubts = []
    for label, work in candidates.items():
        known = {n: a for n, a in work.amounts.items() if n in found.coefficients.table}
        new = len(known) < len(work.amounts)
        seconds = sum(found.coefficients.table[n].value * a for n, a in known.items())
        variance = sum(
            a * b * found.coefficients.covariance_of(n, m)
            for n, a in known.items()
            for m, b in known.items()
        )
        doubt = float("inf") if new or seconds <= 0 else max(variance, 0.0) ** 0.5 / seconds
        doubts.append((label, doubt))
    return tuple(sorted(doubts, key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    table: dict[str, Coefficient]
    covariance: dict[tuple[str, str], float]
    residual_sd: float
    residuals: tuple[Residual, ...]
    unidentified: tuple[Unidentified, ...]
    condition_number: float


def _fit_phase(
    runs: Sequence[Run],
    prior: Coefficients | None,
    waiting: bool,
    card_models: Mapping[str, str],
) -> _Phase:
    solved = solve_once(runs, prior, card_models)
    if waiting:
        runs, solved = solve_waiting(runs, prior, card_models, solved)
    return _judge_fit(runs, prior, solved)


def _judge_fit(runs: Sequence[Run], prior: Coefficients | None, solved: Solved) -> _Phase:
    """Standard errors, outliers, and what the runs do not settle."""
    system, values, weights, sd = solved.system, solved.values, solved.weights, solved.sd
    rows = system.amounts * system.scales * (weights / system.seconds)[:, None]
    information = rows.T @ rows
    inverse = np.linalg.inv(information + system.precision)
    # few runs: their scatter is itself uncertain, so intervals are those of Student's t
    n_free = max(len(runs) - n_parameters(information, system.precision), 0.0)
    n_free += NOISE_EXPECTED_WEIGHT
    student = 1.0 + 0.93 / n_free
    errors = inverse * np.outer(system.scales, system.scales) * student**2
    fitted = system.amounts @ (values * system.scales)
    deviations = np.abs(system.seconds / fitted - 1.0) / np.hypot(sd, system.noise)
    return _Phase(
        table=_table(system, values, errors, prior),
        covariance={
            (a, b): float(errors[i, j])
            for i, a in enumerate(system.names)
            for j, b in enumerate(system.names[:i])
        },
        residual_sd=float(np.hypot(sd, np.median(system.noise)) * student),
        residuals=tuple(
            Residual(
                label=run.label,
                measured_s=run.seconds,
                fitted_s=float(seconds),
                is_outlier=bool(deviation > _OUTLIER_DEVIATIONS),
            )
            for run, seconds, deviation in zip(runs, fitted, deviations, strict=True)
        ),
        unidentified=_unidentified(system, information),
        condition_number=_condition_number(rows),
    )


def _table(
    system: System, values: Array, errors: Array, prior: Coefficients | None
) -> dict[str, Coefficient]:
    known = {} if prior is None else prior.table
    table = {}
    for j, name in enumerate(system.names):
        column = system.amounts[:, j]
        table[name] = Coefficient(
            name=name,
            value=float(values[j] * system.scales[j]),
            unit=known[name].unit if name in known else unit_of(name),
            standard_error=float(errors[j, j]) ** 0.5,
            n_samples=int(np.count_nonzero(column)),
            source="measured",
        )
    return table


def _condition_number(rows: Array) -> float:
    """Largest over smallest singular value, columns scaled to length one."""
    lengths = np.linalg.norm(rows, axis=0)
    singular = np.linalg.svd(rows / lengths, compute_uv=False)
    if len(singular) < rows.shape[1] or singular[-1] <= 1e-12 * singular[0]:
        return float("inf")
    return float(singular[0] / singular[-1])


def _unidentified(system: System, information: Array) -> tuple[Unidentified, ...]:
    """Features about which the runs say little that is not said about others too."""
    resolution = np.linalg.solve(information + system.precision, information)
    found = []
    for j, name in enumerate(system.names):
        if resolution[j, j] >= _IDENTIFIED_MIN:
            continue
        blurred = np.abs(resolution[:, j])
        blurred[j] = 0.0
        companions = tuple(system.names[i] for i in np.argsort(-blurred)[:3] if blurred[i] > 0.1)
        found.append(
            Unidentified(feature=name, companions=companions, advice=advice_for(name, companions))
        )
    return tuple(found)


def advice_for(feature: str, companions: Iterable[str] = ()) -> str:
    """Which run would part a feature from those it varies with."""
    kind = feature.split(".")[1] if "." in feature else feature
    return {
        "const": "a run with fewer layers",
        "layer": "a run of a model with other widths, or with fewer layers",
        "read": "a run with more or fewer experts on the host, or of another quantisation",
        "hop": "a run with the same bytes on the host in other layers, or split over more cards",
        "resend": "a run with the same number of layers on the host, but the first ones of a card",
        "wait": "runs with a quarter and with half of the experts on the host",
        "context": "a run at another depth",
        "ubatch": "a run with another -ub",
        "flops": "a run with another -ub, or of another quantisation",
        "stream": "a run with other experts on the host, and one with another -ub",
        "stream_mmap": "a run with --load-mode mmap and experts on the host",
        "carry": "a run split over another number of cards",
        "attention": "a run at another depth",
    }.get(kind, "a run with another placement")
