"""Which seconds per unit of work explain the measured runs best, and how well are they known?

Seconds are linear in the amounts of work (offload/cost), so this is least squares with
coefficients of zero or more: Lawson and Hanson, Solving Least Squares Problems (1974),
chapter 23. Runs are weighted by their noise, which is relative. What earlier knowledge says
(priors, and otherwise no more than "this feature could explain a whole run") enters as further
rows, so that amounts which never vary apart keep a wide standard error instead of an arbitrary
value, while sums of them that were measured stay narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offload.cost import Coefficient, Coefficients, Work, add_waiting, unit_of

Array = NDArray[np.float64]

NOISE_MIN: Final = 0.005
"""Relative noise no run is believed to stay under: clocks, caches, where buffers happen to lie."""

_NOISE_EXPECTED: Final = 0.02
_NOISE_EXPECTED_WEIGHT: Final = 2.0
"""Scatter around the model before any run was seen, and how many runs that guess is worth."""

_OUTLIER_DEVIATIONS: Final = 4.0
_HUBER_DEVIATIONS: Final = 2.0
_ROUNDS: Final = 30

_ROUNDS_TOLERANCE: Final = 1e-3

_DOTS_WITH_TYPE: Final = 3
TYPES_ALIKE: Final = 0.95
"""Correlation of what is believed of two tensor types on one device before they are measured."""

WAIT_SD: Final = 0.3
"""How much slower cards that wait were on recorded machines: between not at all and a half."""
_IDENTIFIED_MIN: Final = 0.5
"""A coefficient is identified where the runs explain this share of what is known about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run: `seconds` for `work`, with the relative noise of that mean."""

    label: str
    work: Work
    seconds: float
    noise: float = NOISE_MIN


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


def fit(runs: Sequence[Run], prior: Coefficients | None = None, *, waiting: bool = True) -> Fit:
    """Fit all coefficients that occur in `runs`; decode and prefill share none.

    `prior` is what was believed before: its values count with their standard errors.
    `waiting` lets cards that wait be slower (offload/cost/waiting.py): without a run between
    the ends nothing is learned of it but how wide intervals there must be.
    """
    phases = sorted({name.partition(".")[0] for run in runs for name in run.work.amounts})
    parts = {}
    for phase in phases:
        mine = [run for run in runs if any(n.startswith(f"{phase}.") for n in run.work.amounts)]
        parts[phase] = _fit_phase(mine, prior, waiting)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _System:
    """The least-squares problem in units in which every feature alone would explain a run."""

    names: tuple[str, ...]
    amounts: Array
    seconds: Array
    noise: Array
    scales: Array
    """Seconds per unit at which the feature alone explains the median run that has it."""

    believed: Array
    """Prior values, in `scales`."""

    precision: Array
    """Prior information in `scales`: the inverse of the prior covariance."""


def _fit_phase(runs: Sequence[Run], prior: Coefficients | None, waiting: bool) -> _Phase:
    solved = _solve_once(runs, prior)
    if waiting:
        runs, solved = _solve_waiting(runs, prior, solved)
    return _judge_fit(runs, prior, solved)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """Coefficients (in `scales` of the system), weights of the runs, and their scatter."""

    system: _System
    values: Array
    weights: Array
    sd: float

    def seconds_per_unit(self) -> dict[str, float]:
        found = self.values * self.system.scales
        return {name: float(value) for name, value in zip(self.system.names, found, strict=True)}


def _solve_once(runs: Sequence[Run], prior: Coefficients | None) -> _Solved:
    system = _make_system(runs, None)
    values, weights, sd = _solve_robustly(system)
    if prior is not None:
        # how far runs scatter and which are outliers is for them to say: a prior may be far off
        system = _make_system(runs, prior)
        values = _solve(system, weights)
    return _Solved(system=system, values=values, weights=weights, sd=sd)


def _solve_waiting(
    runs: Sequence[Run], prior: Coefficients | None, start: _Solved
) -> tuple[Sequence[Run], _Solved]:
    """The runs with `wait` features, whose amounts follow from the coefficients: in rounds."""
    solved, per_unit = start, start.seconds_per_unit()
    bent: Sequence[Run] = runs
    for _ in range(_ROUNDS):
        last, bent = bent, [replace(run, work=add_waiting(run.work, per_unit)) for run in runs]
        moved = max(_moved_s(a, b) / a.seconds for a, b in zip(last, bent, strict=True))
        if moved < _ROUNDS_TOLERANCE:
            break
        solved = _solve_once(bent, prior)
        # half-way, since a smaller slope makes cards seem to wait less, and the slope larger
        per_unit = {
            name: 0.5 * (value + per_unit.get(name, value))
            for name, value in solved.seconds_per_unit().items()
        }
    return bent, _solve_once(bent, prior)


def _moved_s(a: Run, b: Run) -> float:
    """How far apart the `wait` amounts of two versions of a run are, in seconds."""
    names = {name for run in (a, b) for name in run.work.amounts if ".wait." in name}
    return sum(abs(a.work.amounts.get(n, 0.0) - b.work.amounts.get(n, 0.0)) for n in names)


def _judge_fit(runs: Sequence[Run], prior: Coefficients | None, solved: _Solved) -> _Phase:
    """Standard errors, outliers, and what the runs do not settle."""
    system, values, weights, sd = solved.system, solved.values, solved.weights, solved.sd
    rows = system.amounts * system.scales * (weights / system.seconds)[:, None]
    information = rows.T @ rows
    inverse = np.linalg.inv(information + system.precision)
    # few runs: their scatter is itself uncertain, so intervals are those of Student's t
    n_free = max(len(runs) - _n_parameters(information, system.precision), 0.0)
    n_free += _NOISE_EXPECTED_WEIGHT
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
        residual_sd=float(sd * student),
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


def _make_system(runs: Sequence[Run], prior: Coefficients | None) -> _System:
    names = tuple(sorted({name for run in runs for name in run.work.amounts}))
    amounts = np.array([[run.work.amounts.get(n, 0.0) for n in names] for run in runs])
    seconds = np.array([run.seconds for run in runs])
    scales = np.array([float(np.median(seconds[col > 0] / col[col > 0])) for col in amounts.T])
    believed, precision = _prior_in(names, scales, prior, _group_scales(names, amounts, seconds))
    return _System(
        names=names,
        amounts=amounts,
        seconds=seconds,
        noise=np.array([max(run.noise, NOISE_MIN) for run in runs]),
        scales=scales,
        believed=believed,
        precision=precision,
    )


def _group_scales(names: Sequence[str], amounts: Array, seconds: Array) -> dict[str, float]:
    """For features that differ in the tensor type only: seconds per unit of all of them together.

    By the name without the type; a group alone would explain the median run at this rate.
    """
    groups: dict[str, list[int]] = {}
    for j, name in enumerate(names):
        if name.count(".") == _DOTS_WITH_TYPE:
            groups.setdefault(_without_type(name), []).append(j)
    scales = {}
    for group, columns in groups.items():
        total = amounts[:, columns].sum(axis=1)
        scales[group] = float(np.median(seconds[total > 0] / total[total > 0]))
    return scales


def _without_type(name: str) -> str:
    return name.rpartition(".")[0]


def _prior_in(
    names: Sequence[str],
    scales: Array,
    prior: Coefficients | None,
    group_scales: Mapping[str, float],
) -> tuple[Array, Array]:
    """Prior values and precision, in units of `scales`.

    What the prior does not know could be anything up to a whole run's time; tensor types of
    one device are about equally fast until runs tell them apart.
    """
    known = {} if prior is None else prior.table
    believed = np.zeros(len(names))
    covariance = np.eye(len(names))
    for i, a in enumerate(names):
        if prior is not None and a in known and known[a].standard_error > 0:
            believed[i] = known[a].value / scales[i]
        elif ".wait." in a:
            covariance[i, i] = (WAIT_SD / scales[i]) ** 2
            continue
        for j, b in enumerate(names[: i + 1]):
            shared = _shared(a, b, prior, group_scales)
            if shared is not None:
                covariance[i, j] = covariance[j, i] = shared / scales[i] / scales[j]
    return believed, np.linalg.inv(covariance).astype(np.float64)


def _shared(
    a: str, b: str, prior: Coefficients | None, group_scales: Mapping[str, float]
) -> float | None:
    """Prior covariance of two coefficients; None for what nothing is known of."""
    if prior is not None and a in prior.table and b in prior.table:
        return prior.covariance_of(a, b) if prior.table[a].standard_error > 0 else None
    if (prior is not None and (a in prior.table or b in prior.table)) or (
        _without_type(a) != _without_type(b) or _without_type(a) not in group_scales
    ):
        return None
    variance = group_scales[_without_type(a)] ** 2
    return variance if a == b else TYPES_ALIKE * variance


def _n_parameters(information: Array, precision: Array) -> float:
    """How many parameters the runs themselves settle: the trace of the hat matrix."""
    both = information + precision
    return float(np.trace(np.linalg.solve(both, information)))


def _solve(system: _System, weights: Array) -> Array:
    """Coefficients in `scales`, runs weighted by one over their relative noise."""
    rows = system.amounts * system.scales * (weights / system.seconds)[:, None]
    prior_rows = np.linalg.cholesky(system.precision).T
    left = np.vstack([rows, prior_rows])
    right = np.concatenate([weights, prior_rows @ system.believed])
    return solve_nnls(left, right)


def _solve_robustly(system: _System) -> tuple[Array, Array, float]:
    """Coefficients (in `scales`), the weight of each run (one over its relative noise), scatter.

    Huber's weights: beyond two deviations a run counts as if it were at two. The scatter
    of the runs around the model is estimated along the way and joins their own noise.
    """
    n_runs = len(system.seconds)
    sd = _NOISE_EXPECTED
    trust = np.ones(n_runs)
    values = np.zeros(len(system.names))
    weights = np.ones(n_runs)
    for _ in range(_ROUNDS):
        weights = trust / np.hypot(system.noise, sd)
        previous, values = values, _solve(system, weights)
        rows = system.amounts * system.scales * (weights / system.seconds)[:, None]
        relative = system.amounts @ (values * system.scales) / system.seconds - 1.0
        trust, sd = _judge(relative, system, rows)
        if np.allclose(values, previous, rtol=1e-6, atol=1e-9):
            break
    return values, weights, sd


def _judge(relative: Array, system: _System, rows: Array) -> tuple[Array, float]:
    """Huber's trust in each run, and the scatter beyond the runs' own noise."""
    n_free = max(len(relative) - _n_parameters(rows.T @ rows, system.precision), 0.0)
    # the median is not moved by outliers; 0.6745 deviations hold half of a normal distribution
    typical = float(np.median(np.abs(relative))) / 0.6745
    limit = _HUBER_DEVIATIONS * np.hypot(system.noise, max(typical, NOISE_MIN))
    clipped = np.clip(relative, -limit, limit)
    own = system.noise**2
    excess = float(np.sum(clipped**2)) - n_free / max(len(relative), 1) * float(np.sum(own))
    guess = _NOISE_EXPECTED_WEIGHT * _NOISE_EXPECTED**2
    variance = (max(excess, 0.0) + guess) / (n_free + _NOISE_EXPECTED_WEIGHT)
    sd = max(variance, NOISE_MIN**2) ** 0.5
    deviations = np.abs(relative) / np.hypot(system.noise, sd)
    trust = np.sqrt(np.minimum(1.0, _HUBER_DEVIATIONS / np.maximum(deviations, 1e-12)))
    return trust, sd


def solve_nnls(left: Array, right: Array) -> Array:
    """The x of zero or more that makes |left x - right| least (Lawson and Hanson's active set)."""
    n = left.shape[1]
    x = np.zeros(n)
    free = np.zeros(n, dtype=bool)
    tolerance = 1e-10 * float(np.linalg.norm(left.T @ right)) or 1e-300
    for _ in range(3 * n + 1):
        gradient = left.T @ (right - left @ x)
        gradient[free] = -np.inf
        if free.all() or gradient.max() <= tolerance:
            break
        free[int(gradient.argmax())] = True
        while True:
            trial = np.zeros(n)
            trial[free] = np.linalg.lstsq(left[:, free], right, rcond=None)[0]
            bad = free & (trial <= 0)
            if not bad.any():
                break
            step = float(np.min(x[bad] / np.maximum(x[bad] - trial[bad], 1e-300)))
            x = x + step * (trial - x)
            free &= x > 1e-14
            x[~free] = 0.0
        x = trial
    return x


def _table(
    system: _System, values: Array, errors: Array, prior: Coefficients | None
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


def _unidentified(system: _System, information: Array) -> tuple[Unidentified, ...]:
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
        "wait": "runs with a quarter and with half of the experts on the host",
        "context": "a run at another depth",
        "ubatch": "a run with another -ub",
        "flops": "a run with another -ub, or of another quantisation",
        "stream": "a run with other experts on the host, and one with another -ub",
        "stream_mmap": "a run with --load-mode mmap and experts on the host",
        "carry": "a run split over another number of cards",
        "attention": "a run at another depth",
    }.get(kind, "a run with another placement")
