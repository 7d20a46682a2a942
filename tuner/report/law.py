"""How do decode and prefill change with the number of layers whose experts lie on the host?

Seconds are linear in the work that is done, so time against relieved layers is a straight line
to first order, and tokens per second a hyperbola: halfway between two ends lies their harmonic
mean. What is off the line is what only more than two runs can tell (docs/cost.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from offload.cost import Coefficients, Prediction, predict
from tuner.cells import ANCHOR
from tuner.report.timings import Timing, median_s, model_title

ALL: Final = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class LawPoint:
    """One placement: seconds per token as measured (with both ends), by the line, by the fit."""

    label: str
    n_host: int
    measured_s: float
    low_s: float
    high_s: float
    line_s: float
    predicted: Prediction | None

    @property
    def is_own(self) -> bool:
        """Whether each card is relieved of the same share; first and last relieve one side."""
        return self.label in (ANCHOR, ALL) or self.label.startswith("own ")

    @property
    def is_end(self) -> bool:
        """Whether the line goes through it by construction."""
        return self.label in (ANCHOR, ALL)

    @property
    def line_error(self) -> float:
        """The line's seconds over those measured, less one."""
        return self.line_s / self.measured_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One model and phase, in tests of `n_tokens`; points by the number of host layers."""

    digest: str
    title: str
    phase: str
    n_tokens: int
    n_expert_layers: int
    points: tuple[LawPoint, ...]
    host_bytes_per_token: float
    """What a token reads from the host with all experts there; decode only, else 0."""

    @property
    def none(self) -> LawPoint:
        """No experts on the host."""
        return next(point for point in self.points if point.label == ANCHOR)

    @property
    def all(self) -> LawPoint:
        """All of them there."""
        return next(point for point in self.points if point.label == ALL)

    @property
    def own(self) -> tuple[LawPoint, ...]:
        """The points that relieve every card alike."""
        return tuple(point for point in self.points if point.is_own)

    @property
    def is_told(self) -> bool:
        """Whether every repetition at one end was faster than every one at the other."""
        none, everything = self.none, self.all
        return none.high_s < everything.low_s or everything.high_s < none.low_s

    @property
    def slope_s(self) -> float:
        """Seconds per token that one more layer of experts on the host takes."""
        return (self.all.measured_s - self.none.measured_s) / self.n_expert_layers


def make_law(timings: Sequence[Timing], phase: str, known: Coefficients) -> Law | None:
    """The law of one model's timings; None where one of its ends was not timed."""
    mine = [t for t in timings if t.phase == phase and t.n_depth == 0 and not t.is_aside]
    anchors = [t for t in mine if t.label == ANCHOR]
    ends = [t for t in mine if t.label == ALL and t.host_layers]
    if not anchors or not ends:
        return None
    n_tokens = max(t.n_tokens for t in anchors)
    usual = _settings(anchors[0])
    alike = [t for t in mine if t.n_tokens == n_tokens and _settings(t) == usual]
    n_all = len(ends[0].host_layers)
    by_label: dict[str, list[Timing]] = {}
    for timing in alike:
        by_label.setdefault(timing.label, []).append(timing)
    if ALL not in by_label:
        return None
    low_s, high_s = median_s(by_label[ANCHOR]), median_s(by_label[ALL])
    points = [
        _point(label, found, low_s + (high_s - low_s) * len(found[0].host_layers) / n_all, known)
        for label, found in by_label.items()
    ]
    return Law(
        digest=anchors[0].digest,
        title=model_title(anchors[0]),
        phase=phase,
        n_tokens=n_tokens,
        n_expert_layers=n_all,
        points=tuple(sorted(points, key=lambda p: (p.n_host, not p.is_own, p.label))),
        host_bytes_per_token=_host_bytes(by_label[ALL][0]) - _host_bytes(by_label[ANCHOR][0]),
    )


def _settings(timing: Timing) -> tuple[object, ...]:
    """What must be the same of runs that differ in where experts lie only."""
    cell = timing.cell
    keys = ("n_ubatch", "op_offload", "is_repacked", "n_threads")
    return (tuple(cell["counts"]), *(cell.get(key) for key in keys))


def _point(label: str, found: Sequence[Timing], line_s: float, known: Coefficients) -> LawPoint:
    first = found[0]
    return LawPoint(
        label=label,
        n_host=len(first.host_layers),
        measured_s=median_s(found),
        low_s=min(t.low_s / t.n_tokens for t in found),
        high_s=max(t.high_s / t.n_tokens for t in found),
        line_s=line_s,
        predicted=predict(first.work.scaled(1.0 / first.n_tokens), known),
    )


def _host_bytes(timing: Timing) -> float:
    """Bytes of weights that one token reads from the host."""
    amounts = timing.work.amounts.items()
    read = sum(amount for name, amount in amounts if name.startswith("decode.read.CPU"))
    return read / timing.n_tokens


def laws_by_model(laws: Iterable[Law]) -> list[list[Law]]:
    """Laws of the same model together, in the order they come."""
    found: dict[str, list[Law]] = {}
    for law in laws:
        found.setdefault(law.digest, []).append(law)
    return list(found.values())
