"""What a speed check may take, and what it says.

Ratios are times of A (what is checked) over times of B (what it is held against).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tuner.paired.arm import Sizes
from tuner.paired.verdict import ALPHA, TOLERANCES, Comparison, Verdict

TIME_S: Final = 48.0
"""Of which a clear case takes three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedOptions:
    """What a speed check may take and what it lets pass.

    `tolerances` are by test, as shares. `sizes` None: by a short first run.
    `is_together` says whether both models are in memory at once; None: when RAM has room
    and no card is used.
    """

    time_s: float = TIME_S
    decode_tolerance: float = TOLERANCES["decode"]
    prefill_tolerance: float = TOLERANCES["prefill"]
    alpha: float = ALPHA
    sizes: Sizes | None = None
    is_together: bool | None = None
    seed: int | None = None

    def tolerance(self, test: str) -> float:
        """Of `decode` or `prefill`."""
        return self.decode_tolerance if test == "decode" else self.prefill_tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Seconds per token of one repetition, by test; which start of its process it was in."""

    seconds: dict[str, float]
    start: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """Decode or prefill: the judgement, and the medians behind it in seconds per token.

    `noise` is the spread (one standard deviation, robust) of one value,
    `start_noise` that between the medians of starts, `drift` what B's seconds
    did from the first half of the run to the second, as a share.
    """

    test: str
    comparison: Comparison
    seconds_a: float
    seconds_b: float
    noise: float
    start_noise: float | None
    drift: float
    needed_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCheck:
    """A against B: results by test, and how they came about.

    `load` is the share of the processors that others used meanwhile, None where unknown.
    `kind` is `paired` or `recorded`; for the latter `machine_drift` says how much longer fixed
    pieces of work take than they did, and pairs are values.
    """

    name_a: str
    name_b: str
    results: tuple[TestResult, ...]
    sizes: Sizes
    n_pairs: int
    n_starts: int
    spent_s: float
    time_s: float
    load: float | None
    kind: str = "paired"
    machine_drift: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of the tests: slower, then cannot tell, then faster."""
        found = {result.comparison.verdict for result in self.results}
        worst = (Verdict.SLOWER, Verdict.CANNOT_TELL, Verdict.FASTER)
        return next((v for v in worst if v in found), Verdict.SAME)


Pair = tuple[Repetition, Repetition]
"""One of A and one of B, measured one right after the other."""


GROUP: Final = 4
"""So many neighbouring pairs make one value."""


def value_ratios(pairs: Sequence[Pair], test: str, n_group: int = GROUP) -> list[float]:
    """Least seconds of A over least seconds of B, of every `n_group` pairs of one start.

    Whoever shares a processor with others waits for whole slices of time now and then; the
    least of four interleaved repetitions is seldom among those. On a machine with three
    times as many programs as processors these values told three times as much as pairs did.
    """
    by_start: dict[int, list[Pair]] = {}
    for pair in pairs:
        by_start.setdefault(pair[0].start, []).append(pair)
    return [
        min(a.seconds[test] for a, _ in group) / min(b.seconds[test] for _, b in group)
        for those in by_start.values()
        for i in range(n_group, len(those) + 1, n_group)
        for group in [those[i - n_group : i]]
    ]


def spread(values: Sequence[float]) -> float:
    """A standard deviation that a few wild ones do not move, as a share of the median."""
    if not values:
        return 0.0
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(v - middle) for v in values) / middle


def drift(seconds: Sequence[float]) -> float:
    """The second half's median over the first's, less one; 0 for too few."""
    half = len(seconds) // 2
    if half < 2:
        return 0.0
    return statistics.median(seconds[half:]) / statistics.median(seconds[:half]) - 1


def start_noise(pairs: Sequence[Pair], test: str) -> float | None:
    """The spread of the ratio between starts of the processes; None for fewer than three."""
    by_start: dict[int, list[Pair]] = {}
    for pair in pairs:
        by_start.setdefault(pair[0].start, []).append(pair)
    medians = [
        statistics.median(ratios)
        for those in by_start.values()
        if (ratios := value_ratios(those, test))
    ]
    return spread(medians) if len(medians) > 2 else None
