"""Which coefficients of zero or more explain weighted runs best, given what was believed before?

Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, with Huber's weights. What
earlier knowledge says (priors, and otherwise no more than "this feature could explain a
whole run") enters as further rows, so that amounts which never vary apart keep a wide
standard error instead of an arbitrary value, while sums of them that were measured stay narrow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offload.cost import Coefficients, Work, add_waiting
from offload.cost.work import CPU, REPACKED, RESEND_S, RESEND_SD

Array = NDArray[np.float64]

NOISE_MIN: Final = 0.005
"""Relative noise no run is believed to stay under: clocks, caches, where buffers happen to lie."""

NOISE_EXPECTED: Final = 0.01
NOISE_EXPECTED_WEIGHT: Final = 2.0
"""Scatter around the model before any run was seen, and how many runs that guess is worth."""

_HUBER_DEVIATIONS: Final = 2.0
_ROUNDS: Final = 30
_ROUNDS_TOLERANCE: Final = 1e-3

TYPES_ALIKE: Final = 0.95
"""Correlation of what is believed of two tensor types on one device before they are measured."""

CARDS_ALIKE: Final = 0.8
"""The same of two cards."""

CARDS_SAME: Final = 0.999
"""The same of two cards of one model, but for what goes over their links."""

_LINK_KINDS: Final = frozenset(("stream", "stream_mmap"))

_CERTAIN: Final = 1e-12
"""Variance of what a prior is sure of, in units of a whole run: zero could not be inverted."""

KIN: Final = {"attention": ("flops", 3.0), "context": ("read", 10.0)}
"""How much dearer a unit may be than one of what the same place does with weights.

Short prompts at small depths have so little of either that they could cost anything, and a
long prompt after that would be predicted to take hours."""

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


def solve_once(
    runs: Sequence[Run], prior: Coefficients | None, card_models: Mapping[str, str]
) -> Solved:
    """Fit the runs as they are, with what was believed before."""
    system = _make_system(runs, None, card_models)
    values, weights, sd = _solve_robustly(system)
    if prior is not None:
        # how far runs scatter and which are outliers is for them to say: a prior may be far off
        system = _make_system(runs, prior, card_models)
        values = _solve(system, weights)
    return Solved(system=system, values=values, weights=weights, sd=sd)


def solve_waiting(
    runs: Sequence[Run],
    prior: Coefficients | None,
    card_models: Mapping[str, str],
    start: Solved,
) -> tuple[Sequence[Run], Solved]:
    """The runs with `wait` features, whose amounts follow from the coefficients: in rounds."""
    solved, per_unit = start, start.seconds_per_unit()
    bent: Sequence[Run] = runs
    for _ in range(_ROUNDS):
        last, bent = bent, [replace(run, work=add_waiting(run.work, per_unit)) for run in runs]
        moved = max(_moved_s(a, b) / a.seconds for a, b in zip(last, bent, strict=True))
        if moved < _ROUNDS_TOLERANCE:
            break
        solved = solve_once(bent, prior, card_models)
        # half-way, since a smaller slope makes cards seem to wait less, and the slope larger
        per_unit = {
            name: 0.5 * (value + per_unit.get(name, value))
            for name, value in solved.seconds_per_unit().items()
        }
    return bent, solve_once(bent, prior, card_models)


def _moved_s(a: Run, b: Run) -> float:
    """How far apart the `wait` amounts of two versions of a run are, in seconds."""
    names = {name for run in (a, b) for name in run.work.amounts if ".wait." in name}
    return sum(abs(a.work.amounts.get(n, 0.0) - b.work.amounts.get(n, 0.0)) for n in names)


def _make_system(
    runs: Sequence[Run], prior: Coefficients | None, card_models: Mapping[str, str]
) -> System:
    names = tuple(sorted({name for run in runs for name in run.work.amounts}))
    amounts = np.array([[run.work.amounts.get(n, 0.0) for n in names] for run in runs])
    seconds = np.array([run.seconds for run in runs])
    scales = np.array([float(np.median(seconds[col > 0] / col[col > 0])) for col in amounts.T])
    group_scales = _group_scales(names, amounts, seconds, card_models)
    group_scales[[".wait." in name for name in names]] = WAIT_SD
    believed, precision = _prior_in(names, scales, prior, group_scales, card_models)
    return System(
        names=names,
        amounts=amounts,
        seconds=seconds,
        noise=np.array([max(run.noise, NOISE_MIN) for run in runs]),
        scales=scales,
        believed=believed,
        precision=precision,
    )


def _group_scales(
    names: Sequence[str], amounts: Array, seconds: Array, card_models: Mapping[str, str]
) -> Array:
    """Seconds per unit at which a feature's group alone would explain the median run.

    A group is the features of one place that differ in the tensor type only. What reads
    context or attends to it is the same processor at work on little: it may cost `KIN` as
    much as what reads or multiplies weights there, and not what would explain a whole run.
    Cards of one model have one scale.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for j, name in enumerate(names):
        groups.setdefault(tuple(name.split(".")[:3]), []).append(j)
    per_group = {}
    for key, columns in groups.items():
        total = amounts[:, columns].sum(axis=1)
        per_group[key] = float(np.median(seconds[total > 0] / total[total > 0]))
    kin = {key: min(scale, _kin_scale(key, per_group)) for key, scale in per_group.items()}
    shared: dict[tuple[str, ...], float] = {}
    for key, scale in kin.items():
        model = _of_model(key, card_models)
        shared[model] = max(shared.get(model, 0.0), scale)
    scales = np.ones(len(names))
    for key, columns in groups.items():
        scales[columns] = shared[_of_model(key, card_models)]
    return scales


def _of_model(key: tuple[str, ...], card_models: Mapping[str, str]) -> tuple[str, ...]:
    """The group's phase and kind with the model of its card in the card's place."""
    phase, kind, *place = key
    return (
        phase,
        kind,
        *(f"model {card_models[name]}" if name in card_models else name for name in place),
    )


def _kin_scale(key: tuple[str, ...], per_group: Mapping[tuple[str, ...], float]) -> float:
    phase, kind, *place = key
    relative, times = KIN.get(kind, ("", math.inf))
    if not relative:
        return math.inf
    there = per_group.get((phase, relative, *place))
    if there is None:
        # experts of a host that keeps context lie elsewhere: as slow as the slowest
        there = max(
            (s for (p, k, *_), s in per_group.items() if (p, k) == (phase, relative)),
            default=math.inf,
        )
    return times * there


def _prior_in(
    names: Sequence[str],
    scales: Array,
    prior: Coefficients | None,
    group_scales: Array,
    card_models: Mapping[str, str],
) -> tuple[Array, Array]:
    """Prior values and precision, in units of `scales`.

    What the prior does not know could be anything up to a whole run's time; tensor types of
    one device, and cards, are about equally fast until runs tell them apart, and cards of one
    model very nearly so.
    """
    known = {} if prior is None else prior.table
    # what is sent again over RPC grows with the square of a model's depth, so a cut tells
    # little of it; that it takes so long lies in llama.cpp, not in the machine alone
    believed = np.array([RESEND_S if ".resend." in name else 0.0 for name in names]) / scales
    covariance = np.zeros((len(names), len(names)))
    for i, a in enumerate(names):
        if a in known:
            believed[i] = known[a].value / scales[i]
        for j, b in enumerate(names[: i + 1]):
            if prior is not None and a in known and b in known:
                shared = prior.covariance_of(a, b)
            elif (a in known) != (b in known):
                shared = 0.0
            elif ".resend." in a and ".resend." in b:
                shared = (RESEND_S * RESEND_SD) ** 2 * (1.0 if a == b else TYPES_ALIKE)
            else:
                shared = _alike(a, b, card_models) * group_scales[i] * group_scales[j]
            covariance[i, j] = covariance[j, i] = shared / scales[i] / scales[j]
    covariance += _CERTAIN * np.eye(len(names))
    return believed, np.linalg.inv(covariance).astype(np.float64)


def _alike(a: str, b: str, card_models: Mapping[str, str]) -> float:
    """Correlation of what is believed of two features before anything was measured."""
    if ".wait." in a or ".wait." in b:
        return float(a == b)
    one, other = ((*name.split("."), "", "")[:4] for name in (a, b))
    if one[:2] != other[:2]:
        return 0.0
    found = 1.0
    if one[2] != other[2]:
        model = card_models.get(one[2])
        is_same = model is not None and model == card_models.get(other[2])
        same = CARDS_SAME if is_same and one[1] not in _LINK_KINDS else CARDS_ALIKE
        found *= 0.0 if _is_host(one[2]) or _is_host(other[2]) else same
    return found if one[3] == other[3] else found * TYPES_ALIKE


def _is_host(place: str) -> bool:
    return place in ("", CPU, REPACKED)


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
