"""Which coefficients of zero or more explain weighted runs best, given what was believed before?

Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, with Huber's weights. What
earlier knowledge says (priors, and otherwise no more than "this feature could explain a
whole run") enters as further rows, so that amounts which never vary apart keep a wide
standard error instead of an arbitrary value, while sums of them that were measured stay narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offload.cost import Coefficients, Work, add_waiting

Array = NDArray[np.float64]

NOISE_MIN: Final = 0.005
"""Relative noise no run is believed to stay under: clocks, caches, where buffers happen to lie."""

NOISE_EXPECTED: Final = 0.01
NOISE_EXPECTED_WEIGHT: Final = 2.0
"""Scatter around the model before any run was seen, and how many runs that guess is worth."""

_HUBER_DEVIATIONS: Final = 2.0
_ROUNDS: Final = 30
_ROUNDS_TOLERANCE: Final = 1e-3

_DOTS_WITH_TYPE: Final = 3
TYPES_ALIKE: Final = 0.95
"""Correlation of what is believed of two tensor types on one device before they are measured."""

WAIT_SD: Final = 0.3
"""How much slower cards that wait were on recorded machines: between not at all and a half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run: `seconds` for `work`, with the relative noise of that mean."""

    label: str
    work: Work
    seconds: float
    noise: float = NOISE_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """Coefficients (in `scales` of the system), weights of the runs, and their scatter."""

    system: System
    values: Array
    weights: Array
    sd: float

    def seconds_per_unit(self) -> dict[str, float]:
        """Coefficients by name."""
        found = self.values * self.system.scales
        return {name: float(value) for name, value in zip(self.system.names, found, strict=True)}


def solve_once(runs: Sequence[Run], prior: Coefficients | None) -> Solved:
    """Fit the runs as they are, with what was believed before."""
    system = _make_system(runs, None)
    values, weights, sd = _solve_robustly(system)
    if prior is not None:
        # how far runs scatter and which are outliers is for them to say: a prior may be far off
        system = _make_system(runs, prior)
        values = _solve(system, weights)
    return Solved(system=system, values=values, weights=weights, sd=sd)


def solve_waiting(
    runs: Sequence[Run], prior: Coefficients | None, start: Solved
) -> tuple[Sequence[Run], Solved]:
    """The runs with `wait` features, whose amounts follow from the coefficients: in rounds."""
    solved, per_unit = start, start.seconds_per_unit()
    bent: Sequence[Run] = runs
    for _ in range(_ROUNDS):
        last, bent = bent, [replace(run, work=add_waiting(run.work, per_unit)) for run in runs]
        moved = max(_moved_s(a, b) / a.seconds for a, b in zip(last, bent, strict=True))
        if moved < _ROUNDS_TOLERANCE:
            break
        solved = solve_once(bent, prior)
        # half-way, since a smaller slope makes cards seem to wait less, and the slope larger
        per_unit = {
            name: 0.5 * (value + per_unit.get(name, value))
            for name, value in solved.seconds_per_unit().items()
        }
    return bent, solve_once(bent, prior)


def _moved_s(a: Run, b: Run) -> float:
    """How far apart the `wait` amounts of two versions of a run are, in seconds."""
    names = {name for run in (a, b) for name in run.work.amounts if ".wait." in name}
    return sum(abs(a.work.amounts.get(n, 0.0) - b.work.amounts.get(n, 0.0)) for n in names)


def _make_system(runs: Sequence[Run], prior: Coefficients | None) -> System:
    names = tuple(sorted({name for run in runs for name in run.work.amounts}))
    amounts = np.array([[run.work.amounts.get(n, 0.0) for n in names] for run in runs])
    seconds = np.array([run.seconds for run in runs])
    scales = np.array([float(np.median(seconds[col > 0] / col[col > 0])) for col in amounts.T])
    believed, precision = _prior_in(names, scales, prior, _group_scales(names, amounts, seconds))
    return System(
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


def n_parameters(information: Array, precision: Array) -> float:
    """How many parameters the runs themselves settle: the trace of the hat matrix."""
    both = information + precision
    return float(np.trace(np.linalg.solve(both, information)))


def _solve(system: System, weights: Array) -> Array:
    """Coefficients in `scales`, runs weighted by one over their relative noise."""
    rows = system.amounts * system.scales * (weights / system.seconds)[:, None]
    prior_rows = np.linalg.cholesky(system.precision).T
    left = np.vstack([rows, prior_rows])
    right = np.concatenate([weights, prior_rows @ system.believed])
    return solve_nnls(left, right)


def _solve_robustly(system: System) -> tuple[Array, Array, float]:
    """Coefficients (in `scales`), the weight of each run (one over its relative noise), scatter.

    Huber's weights: beyond two deviations a run counts as if it were at two. The scatter
    of the runs around the model is estimated along the way and joins their own noise.
    """
    n_runs = len(system.seconds)
    sd = NOISE_EXPECTED
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


def _judge(relative: Array, system: System, rows: Array) -> tuple[Array, float]:
    """Huber's trust in each run, and the scatter beyond the runs' own noise."""
    n_free = max(len(relative) - n_parameters(rows.T @ rows, system.precision), 0.0)
    # the median is not moved by outliers; 0.6745 deviations hold half of a normal distribution
    typical = float(np.median(np.abs(relative))) / 0.6745
    limit = _HUBER_DEVIATIONS * np.hypot(system.noise, max(typical, NOISE_MIN))
    clipped = np.clip(relative, -limit, limit)
    own = system.noise**2
    excess = float(np.sum(clipped**2)) - n_free / max(len(relative), 1) * float(np.sum(own))
    guess = NOISE_EXPECTED_WEIGHT * NOISE_EXPECTED**2
    variance = (max(excess, 0.0) + guess) / (n_free + NOISE_EXPECTED_WEIGHT)
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
