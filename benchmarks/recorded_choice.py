"""Would we have chosen the placement, and the -ub, that other people measured as the fastest?

Recorded speeds (tests/fixtures/recorded_speed.json) in which one machine ran one model with
several placements, or with several physical batches. Each is predicted from data sheets alone,
as `offload plan` does on a machine nobody measured. A turn is 2048 tokens read and 512 written,
or what of it was recorded for all of a group. Two questions for each group:

- is the placement measured fastest predicted as the fastest, or within 3 % of it?
- is the turn of the one we predict as the fastest within 3 % (`-ub`: 5 %) of the best measured?

    python -m benchmarks.recorded_choice

No GPU, no file, nothing is run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.speed_cases import PHASES, Level, all_series, load
from benchmarks.speed_guesses import prior_of
from offload.cost import predict
from offload.turn import Turn

TURN: Final = Turn()
PLACEMENT_SLACK: Final = 0.03
UBATCH_SLACK: Final = 0.05
_PLACEMENT_KEYS: Final = ("n_cpu_moe", "host_layers", "n_gpu_layers", "tensor_split", "n_cards")
_WEIGHTS: Final = {"decode": TURN.n_generate, "prefill": TURN.n_prompt}
Json = Mapping[str, Any]

REASONS: Final = {
    "rdna2-q30-ncmoe": "whole layers on the host (-ngl 30) were measured 5 % faster than their"
    " experts alone (18 layers); the prior for attention and small operations on a processor is"
    " too slow for a model of small experts. A profile of the machine would know",
    "5090-4090-q235-iq3k": "in one of the two placements single layers were pinned to the second"
    " card, across owners; the fixture says so (`foreign`) and not where, so its work is wrong",
    "gb10-q235-q2k": "nodes added over a network compute in turns, for which there is no term;"
    " predicted as equal, measured 15 % apart",
    "5090-q235-iq3k": "one layer of 79 more on the host; predicted as equal (0.7 %)",
}
"""Why cases are off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured placement or batch, and its seconds per token, measured and predicted."""

    label: str
    measured: Mapping[str, float]
    predicted: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Points that differ only in what is to be chosen; `phases` were recorded for all of them."""

    case: str
    fixed: str
    points: tuple[Point, ...]
    slack: float

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases every point has."""
        return tuple(p for p in PHASES if all(p in point.measured for point in self.points))

    def _turn(self, seconds: Mapping[str, float]) -> float:
        return sum(_WEIGHTS[phase] * seconds[phase] for phase in self.phases)

    @property
    def best(self) -> Point:
        """The one measured fastest."""
        return min(self.points, key=lambda p: self._turn(p.measured))

    @property
    def chosen(self) -> Point:
        """The one predicted fastest."""
        return min(self.points, key=lambda p: self._turn(p.predicted))

    @property
    def rank_loss(self) -> float:
        """By how much the best measured is predicted slower than the one we would choose."""
        return self._turn(self.best.predicted) / self._turn(self.chosen.predicted) - 1

    @property
    def turn_loss(self) -> float:
        """By how much the turn of the one we would choose was measured longer than the best."""
        return self._turn(self.chosen.measured) / self._turn(self.best.measured) - 1

    @property
    def holds(self) -> bool:
        """The best measured is ranked first or within the slack."""
        return self.rank_loss <= self.slack


def _points() -> Iterator[tuple[Json, dict[str, Any], Level]]:
    """Every level with all that was set for it."""
    raw = [(case, series) for case in load()["cases"] for series in case["series"]]
    for (case, series), known in zip(raw, all_series(), strict=True):
        for row, level in zip(series["levels"], known.levels, strict=True):
            yield case, {**series, **row, series["varies"]: row["x"]}, level


def groups(chosen: Sequence[str], slack: float) -> Iterator[Group]:
    """Points of one case that differ only in the settings `chosen`, two or more of them."""
    found: dict[tuple[str, str], dict[str, Point]] = {}
    for case, at, level in _points():
        skip = {"levels", "varies", "x", "decode_t_s", "prefill_t_s", "foreign", *chosen}
        fixed = {k: v for k, v in sorted(at.items()) if k not in skip and v is not None}
        label = " ".join(f"{k} {at[k]}" for k in chosen if at.get(k) is not None)
        prior = prior_of(case, list(level.work.values()))
        predicted = {}
        for phase in PHASES:
            seconds = predict(level.work[phase], prior)
            assert seconds is not None
            predicted[phase] = seconds.seconds
        key = (case["id"], " ".join(f"{k} {v}" for k, v in fixed.items()))
        point = Point(label=label, measured=level.seconds, predicted=predicted)
        before = found.setdefault(key, {}).get(label)
        if before is None or len(point.measured) > len(before.measured):
            found[key][label] = point
    for (name, text), points in found.items():
        group = Group(case=name, fixed=text, points=tuple(points.values()), slack=slack)
        if len(points) > 1 and group.phases:
            yield group


def placement_groups() -> list[Group]:
    """Several placements of one model on one machine, all else equal."""
    return list(groups(_PLACEMENT_KEYS, PLACEMENT_SLACK))


def ubatch_groups() -> list[Group]:
    """Several physical batches; where a larger one needed more experts on the host, with these."""
    alike = list(groups(("n_ubatch",), UBATCH_SLACK))
    swept = [g for g in groups(("n_ubatch", "n_cpu_moe", "n_prompt"), UBATCH_SLACK)
             if g.case in ("3090-gptoss", "2x4090-r1-iq4ks")]  # fmt: skip
    return [g for g in alike if "prefill" in g.phases] + swept


def _rows(found: Sequence[Group]) -> Iterator[str]:
    for g in found:
        verdict = "ok" if g.holds else "NO"
        yield (
            f"{g.case:24} {len(g.points)} points, {'+'.join(g.phases):14} measured best"
            f" {g.best.label!r}, chosen {g.chosen.label!r}: best predicted"
            f" {100 * g.rank_loss:+.1f} % from the first, chosen measured"
            f" {100 * g.turn_loss:+.1f} % {verdict}  [{g.fixed}]"
        )


def _is_plain(group: Group) -> bool:
    """Placements that differ in `-ncmoe` alone, of which the smallest was the fastest."""
    counts = [p.label.removeprefix("n_cpu_moe ") for p in group.points]
    if not all(count.isdigit() for count in counts):
        return False
    return int(group.best.label.removeprefix("n_cpu_moe ")) == min(map(int, counts))


def main() -> int:
    """Print every group and the shares that hold."""
    placements, batches = placement_groups(), ubatch_groups()
    print("# placements")
    print("\n".join(_rows(placements)))
    print("# -ub")
    print("\n".join(_rows(batches)))
    n, held = len(placements), sum(g.holds for g in placements)
    near = sum(g.turn_loss <= PLACEMENT_SLACK for g in placements)
    cases = {g.case for g in placements}
    good = {c for c in cases if all(g.holds for g in placements if g.case == c)}
    print(
        f"\nplacements: {held} of {n} groups ranked first or within 3 %;"
        f" {near} of {n} chosen within 3 % of the best turn; {len(good)} of {len(cases)} cases"
    )
    plain = [g for g in placements if _is_plain(g)]
    print(f"of them {len(plain)} only say that fewer experts on the host are faster")
    off = sorted({g.case for g in placements if not g.holds or g.turn_loss > PLACEMENT_SLACK})
    print("\n".join(f"- {case}: {REASONS.get(case, 'not explained')}." for case in off))
    close = sum(g.turn_loss <= UBATCH_SLACK for g in batches)
    print(f"-ub: {close} of {len(batches)} chosen within 5 % of the best turn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
