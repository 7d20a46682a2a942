"""Do predictions hold: for the runs the costs were fitted to, and for placements left out?

A fit explains its own runs too well. So placements are also left out, a tenth of them at a time,
the rest is fitted again, and what was left out is predicted: the errors that a plan can expect
on this very machine and model. Other models and machines are another question (docs/cost.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from offload.cost import Coefficients, Prediction, predict
from tuner.fit import fit
from tuner.report.timings import Timing
from tuner.samples import make_runs

N_FOLDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One timing with what the profile says of it, and what the other placements alone say."""

    timing: Timing
    fitted: Prediction | None
    left_out: Prediction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How good predictions of one phase are: relative errors of seconds, share in the interval."""

    phase: str
    kind: str
    n: int
    median_error: float
    p90_error: float
    n_inside: int

    @property
    def coverage(self) -> float:
        """The share inside the 90 % interval."""
        return self.n_inside / self.n


def judge(
    timings: Sequence[Timing], known: Coefficients, card_models: Mapping[str, str]
) -> tuple[Judged, ...]:
    """Every timing of the fit, in the order of the file; runs aside are none of it."""
    counted = [timing for timing in timings if not timing.is_aside]
    left_out = _left_out(counted, card_models)
    return tuple(
        Judged(timing=timing, fitted=predict(timing.work, known), left_out=prediction)
        for timing, prediction in zip(counted, left_out, strict=True)
    )


def _left_out(timings: Sequence[Timing], card_models: Mapping[str, str]) -> list[Prediction | None]:
    """Predictions by the placements of the other folds; None where they say nothing."""
    cells = list(dict.fromkeys((timing.digest, timing.label) for timing in timings))
    n_folds = min(N_FOLDS, len(cells))
    fold_of = {cell: i % n_folds for i, cell in enumerate(cells)}
    folds = [fold_of[timing.digest, timing.label] for timing in timings]
    found: list[Prediction | None] = [None] * len(timings)
    for fold in range(n_folds if n_folds > 1 else 0):
        kept = [t.raw for t, mine in zip(timings, folds, strict=True) if mine != fold]
        known = fit(make_runs(kept), card_models=card_models).coefficients
        for i, mine in enumerate(folds):
            if mine == fold:
                found[i] = predict(timings[i].work, known)
    return found


def score(judged: Sequence[Judged]) -> tuple[Score, ...]:
    """By phase: of the fit's own runs, then of those left out."""
    scores = []
    for phase in ("decode", "prefill"):
        mine = [one for one in judged if one.timing.phase == phase]
        for kind, pairs in (
            ("in the fit", [(one.timing.seconds, one.fitted) for one in mine]),
            ("left out", [(one.timing.seconds, one.left_out) for one in mine]),
        ):
            known = [(seconds, said) for seconds, said in pairs if said is not None]
            if known:
                scores.append(_score(phase, kind, known))
    return tuple(scores)


def _score(phase: str, kind: str, pairs: Sequence[tuple[float, Prediction]]) -> Score:
    errors = sorted(abs(said.seconds / seconds - 1.0) for seconds, said in pairs)
    return Score(
        phase=phase,
        kind=kind,
        n=len(pairs),
        median_error=statistics.median(errors),
        p90_error=errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        n_inside=sum(said.low_s <= seconds <= said.high_s for seconds, said in pairs),
    )
