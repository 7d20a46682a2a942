"""How far off are levels of recorded series, predicted from others or from data sheets?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks.speed_cases import Level, Series, all_series, cards_of, host_of, load
from offload.cost import Coefficients, Work, predict
from offload.priors import make_priors
from tuner.fit import Run, fit, solve_nnls

PHASES: Final = ("decode", "prefill")
_NOISE: Final = 0.015
"""What repeated runs of such tables scatter by where they say so."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """One level that was predicted from others: by what, how far off, and whether held."""

    phase: str
    case: str
    machine: str
    varies: str
    label: str
    x: int
    error: float
    is_inside: bool | None = None
    """Whether the truth lies inside the 90 % interval; None where there is none."""

    from_zero: bool = False
    """Whether the series starts with nothing on the host."""


def _cases() -> Mapping[str, Json]:
    return {case["id"]: case for case in load()["cases"]}


def prior_of(case: Json, works: Sequence[Work]) -> Coefficients:
    """What is believed of the case's machine before any of its runs is seen."""
    features = sorted({name for work in works for name in work.amounts})
    return make_priors(features, cards_of(case), host_of(case))


def _runs(levels: Sequence[Level], phase: str) -> list[Run]:
    return [
        Run(label=str(at.x), work=at.work[phase], seconds=at.seconds[phase], noise=_NOISE)
        for at in levels
    ]


def _ordered(series: Series, phase: str) -> tuple[Level, ...]:
    """The levels with this phase in order; none for fewer than three distinct ones."""
    levels = sorted((at for at in series.levels if phase in at.seconds), key=lambda at: at.x)
    return tuple(levels) if len({at.x for at in levels}) >= 3 else ()


def _guess(series: Series, phase: str, at: Level, seconds: float, inside: bool | None) -> Guess:
    return Guess(
        phase=phase,
        case=series.case,
        machine=series.machine,
        varies=series.varies,
        label=series.label,
        x=at.x,
        error=seconds / at.seconds[phase] - 1,
        is_inside=inside,
        from_zero=series.levels[0].x == 0,
    )


def straight_line(series: Series, phase: str) -> Iterator[Guess]:
    """Levels between the ends, on the straight line in seconds (over 1/x for a physical batch)."""
    levels = _ordered(series, phase)
    place = (lambda x: 1 / x) if series.varies == "n_ubatch" else float
    for at in levels[1:-1]:
        first, last = levels[0], levels[-1]
        u = (place(at.x) - place(first.x)) / (place(last.x) - place(first.x))
        seconds = first.seconds[phase] * (1 - u) + last.seconds[phase] * u
        yield _guess(series, phase, at, seconds, None)


def fitted(
    series: Series, phase: str, used: Sequence[int], *, waiting: bool = True
) -> Iterator[Guess]:
    """All levels but those at the indices `used`, predicted by the model fitted to these."""
    levels = _ordered(series, phase)
    learned = [levels[i] for i in used]
    prior = prior_of(_cases()[series.case], [at.work[phase] for at in levels])
    known = fit(_runs(learned, phase), prior, waiting=waiting).coefficients
    for i, at in enumerate(levels):
        if i in used:
            continue
        found = predict(at.work[phase], known)
        assert found is not None
        truth = at.seconds[phase]
        yield _guess(series, phase, at, found.seconds, found.low_s <= truth <= found.high_s)


def with_step(series: Series, phase: str, used: Sequence[int]) -> Iterator[Guess]:
    """As `fitted`, on the straight line with a price of its own for the first host layer."""
    levels = _ordered(series, phase)
    rows = [(1.0, float(at.x), float(at.x > 0)) for at in levels]
    truth = [at.seconds[phase] for at in levels]
    left = np.array([np.array(rows[i]) / truth[i] for i in used])
    found = solve_nnls(left, np.ones(len(used)))
    for i, at in enumerate(levels):
        if i not in used:
            yield _guess(series, phase, at, float(np.dot(rows[i], found)), None)


def unmeasured() -> Iterator[Guess]:
    """Every level of every case predicted from data sheets alone.

    Left out: cases whose quantisation is not known well enough to know their bytes.
    """
    for series in all_series():
        case = _cases()[series.case]
        if case["size_gib"] is None and case["id"] in _SIZE_UNKNOWN:
            continue
        for phase in PHASES:
            for at in series.levels:
                if phase in at.seconds:
                    found = predict(at.work[phase], prior_of(case, [at.work[phase]]))
                    assert found is not None
                    truth = at.seconds[phase]
                    inside = found.low_s <= truth <= found.high_s
                    yield _guess(series, phase, at, found.seconds, inside)


_SIZE_UNKNOWN: Final = ("a6000-r1-iq2k", "2x3090-r1-quants", "4x3090-q235-iq4xs")


def two_ends() -> tuple[list[Guess], list[Guess]]:
    """All series with three levels or more: the straight line's guesses and the model's."""
    lines: list[Guess] = []
    models: list[Guess] = []
    for series in all_series():
        for phase in PHASES:
            levels = _ordered(series, phase)
            if levels:
                lines += straight_line(series, phase)
                models += fitted(series, phase, (0, len(levels) - 1))
    return lines, models


def with_mid_points() -> dict[str, list[Guess]]:
    """Series over host layers with four levels or more, one inner level learned from as well.

    Each inner level is the one learned from once; the others are predicted.
    """
    found: dict[str, list[Guess]] = {"line": [], "step": [], "waiting": []}
    for series in all_series():
        if series.varies != "n_cpu_moe":
            continue
        for phase in PHASES:
            levels = _ordered(series, phase)
            for mid in range(1, len(levels) - 1):
                used = (0, mid, len(levels) - 1)
                if len(levels) < 4:
                    continue
                found["line"] += fitted(series, phase, used, waiting=False)
                found["waiting"] += fitted(series, phase, used)
                if levels[0].x == 0:
                    found["step"] += with_step(series, phase, used)
    return found
