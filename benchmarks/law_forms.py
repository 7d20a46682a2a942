"""Which shapes of time over host layers are there, and how far off is each on a level left out?

A form is fitted to all levels of a recorded series but one between the ends, and predicts that
one. The simple forms are least squares on relative errors with free signs; `waiting` is the
cost model itself, with its priors and coefficients of zero or more (tuner/fit.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed_cases import Level, Series, all_series
from benchmarks.speed_guesses import PHASES, fitted

Array = NDArray[np.float64]
Columns = Callable[[Array, float], list[Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Time over host layers as a sum of columns; `shapes` are values tried for a shape number."""

    name: str
    what: str
    columns: Columns
    shapes: tuple[float, ...] = (0.0,)
    from_zero: bool = False
    """Whether a level without host layers is needed to see it at all."""

    @property
    def n_parameters(self) -> int:
        """Numbers fitted to each series."""
        return len(self.columns(np.ones(1), self.shapes[0])) + (len(self.shapes) > 1)


FORMS: Final = (
    Form(name="line", what="constant and price of a layer", columns=lambda x, _: [x**0, x]),
    Form(
        name="step",
        what="and a price for there being host layers at all: threads that wake up, the first"
        " crossing, lost graphs",
        columns=lambda x, _: [x**0, x, (x > 0).astype(float)],
        from_zero=True,
    ),
    Form(
        name="first 8",
        what="and another price for each of the first eight: caches that these fill or miss",
        columns=lambda x, _: [x**0, x, np.minimum(x, 8.0)],
        from_zero=True,
    ),
    Form(name="square", what="and a square", columns=lambda x, _: [x**0, x, x**2]),
    Form(
        name="power",
        what="constant and price of a power of the layers",
        columns=lambda x, p: [x**0, x**p],
        shapes=tuple(p / 20 for p in range(6, 31)),
    ),
    Form(
        name="knee",
        what="two straight lines that meet wherever it fits best",
        columns=lambda x, k: [x**0, x, np.minimum(x, k)],
        shapes=tuple(k / 40 for k in range(4, 37)),
    ),
)
"""Shape numbers of `knee` are shares of the last level."""

WAITING: Final = "waiting"
N_PARAMETERS: Final[Mapping[str, int]] = {f.name: f.n_parameters for f in FORMS} | {WAITING: 3}
IDLE_GRID: Final = tuple((low / 10, high / 10) for low in (1, 2) for high in (4, 5, 6, 7))
"""Thresholds of the waiting card that are tried where they may not be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """The error of one form on one level that it was not shown (or, `ends`, on one between)."""

    form: str
    case: str
    label: str
    phase: str
    x: int
    error: float
    from_zero: bool


def sweeps() -> Iterator[tuple[Series, str, tuple[Level, ...]]]:
    """Recorded series over host layers with three levels or more, by phase."""
    for series in all_series():
        if series.varies != "n_cpu_moe":
            continue
        for phase in PHASES:
            found = sorted((at for at in series.levels if phase in at.seconds), key=lambda a: a.x)
            if len(found) >= 3:
                yield series, phase, tuple(found)


def fit_form(form: Form, x: Array, seconds: Array) -> Callable[[Array], Array]:
    """The form with the numbers that fit best, as seconds of host layers."""
    reach = x.max() if form.name == "knee" else 1.0
    best: tuple[float, float, Array] | None = None
    for shape in form.shapes:
        rows = np.stack(form.columns(x, shape * reach), axis=1) / seconds[:, None]
        found: Array = np.linalg.lstsq(rows, np.ones(len(x)), rcond=None)[0].astype(np.float64)
        loss = float(np.sum((rows @ found - 1) ** 2))
        if best is None or loss < best[0] * (1 - 1e-9):
            best = (loss, shape, found)
    assert best is not None
    _, shape, found = best
    return lambda at: np.stack(form.columns(at, shape * reach), axis=1) @ found


def left_out(form: Form, series: Series, phase: str, levels: Sequence[Level]) -> Iterator[Miss]:
    """Each level between the ends, predicted from all the others.

    Nothing where the form has as many numbers as there are other levels, or more: it would
    pass through them whatever the truth.
    """
    x = np.array([at.x for at in levels], dtype=float)
    seconds = np.array([at.seconds[phase] for at in levels])
    needed = form.n_parameters + (form.name != "line")
    if len(levels) - 1 < needed or (form.from_zero and x[0] > 0):
        return
    for i in range(1, len(levels) - 1):
        kept = np.arange(len(levels)) != i
        found = fit_form(form, x[kept], seconds[kept])(x[i : i + 1])[0]
        yield _miss(form.name, series, phase, levels, i, float(found) / seconds[i] - 1)


def left_out_of_model(series: Series, phase: str, levels: Sequence[Level]) -> Iterator[Miss]:
    """The same of the cost model with waiting cards."""
    if len(levels) < 4:
        return
    for i in range(1, len(levels) - 1):
        used = [j for j in range(len(levels)) if j != i]
        (guess,) = fitted(series, phase, used)
        yield _miss(WAITING, series, phase, levels, i, guess.error)


def between_ends(series: Series, phase: str, levels: Sequence[Level]) -> Iterator[Miss]:
    """The straight line through the two ends, on each level between."""
    form = FORMS[0]
    x = np.array([at.x for at in levels], dtype=float)
    seconds = np.array([at.seconds[phase] for at in levels])
    line = fit_form(form, x[[0, -1]], seconds[[0, -1]])(x)
    for i in range(1, len(levels) - 1):
        yield _miss("ends", series, phase, levels, i, float(line[i]) / seconds[i] - 1)


def _miss(
    form: str, series: Series, phase: str, levels: Sequence[Level], i: int, error: float
) -> Miss:
    return Miss(
        form=form,
        case=series.case,
        label=series.label,
        phase=phase,
        x=levels[i].x,
        error=error,
        from_zero=levels[0].x == 0,
    )


def all_misses() -> tuple[Miss, ...]:
    """Every form on every level left out, and the line between the ends."""
    found: list[Miss] = []
    for series, phase, levels in sweeps():
        found += between_ends(series, phase, levels)
        for form in FORMS:
            found += left_out(form, series, phase, levels)
        found += left_out_of_model(series, phase, levels)
    return tuple(found)


def misses_by_thresholds() -> dict[tuple[float, float], tuple[Miss, ...]]:
    """The waiting card on sweeps from 0, with each pair of thresholds of IDLE_GRID."""
    found = {}
    for low, high in IDLE_GRID:
        with patch.multiple("offload.cost.waiting", IDLE_LOW=low, IDLE_HIGH=high):
            found[low, high] = tuple(
                miss
                for series, phase, levels in sweeps()
                if levels[0].x == 0
                for miss in left_out_of_model(series, phase, levels)
            )
    return found


def crossings_are_layers() -> float:
    """How nearly crossings of the sweeps are a constant and a multiple of the layers.

    The largest distance of any level's crossings from such a line, over its crossings.
    """
    worst = 0.0
    for _, phase, levels in sweeps():
        if phase != "decode":
            continue
        inner = [at for at in levels if at.x > 0]
        x = np.array([at.x for at in inner], dtype=float)
        hops = np.array([at.work[phase].amounts["decode.hop"] for at in inner])
        rows = np.stack([np.ones(len(x)), x], axis=1)
        line = rows @ np.linalg.lstsq(rows, hops, rcond=None)[0]
        worst = max(worst, float(np.max(np.abs(line - hops) / hops)))
    return worst
