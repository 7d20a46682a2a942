"""How is a build held against times that were recorded earlier, when the other one is gone?

Only if the machine is what it was: beside every few repetitions a fixed piece of work is
timed (tuner/paired/calibration.py), then as now. Times are compared as they are, and in
units of either piece; the judgement is as unsure as the three views are together
(`widest`), so a machine that drifted gives "cannot tell" and no alarm. One value is the
least of a few repetitions, of a start of its own where starting is cheap, because
repetitions within one process are more alike than processes are. [edge]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from offload.errors import UsageError
from tuner.paired.arm import Arm, Loaded, Sizes
from tuner.paired.calibration import KINDS, Calibration
from tuner.paired.result import SpeedCheck, SpeedOptions, TestResult, drift, spread
from tuner.paired.run import START_SHARE, choose_sizes
from tuner.paired.verdict import (
    N_LOOKS,
    TOLERANCES,
    Comparison,
    compare_separate,
    looks_due,
    widest,
)
from tuner.quiet import LoadMeter

_REPETITIONS: Final = 5
_BLOCKS_MIN: Final = 6
"""Fewer values on each side can never be told apart (1 of 462 orders is not rare enough)."""

_DRIFT_NOTE: Final = 0.05
Progress = Callable[[int, float], None]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The least of a few repetitions: seconds per token by test, and of the fixed work by kind."""

    seconds: Mapping[str, float]
    calibration: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedBaseline:
    """Times of one arm, to be kept in a file; `created` is UTC."""

    name: str
    build: str
    created: str
    sizes: Sizes
    blocks: tuple[Block, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes an equal value."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any, where: str) -> SpeedBaseline:
        """Read what `to_json` wrote; UsageError says what is wrong `where`."""
        try:
            blocks = tuple(
                Block(
                    seconds=_times(row["seconds"], TOLERANCES),
                    calibration=_times(row["calibration"], KINDS),
                )
                for row in data["blocks"]
            )
            sizes = Sizes(
                n_prompt=int(data["sizes"]["n_prompt"]), n_gen=int(data["sizes"]["n_gen"])
            )
            texts = {key: str(data[key]) for key in ("name", "build", "created")}
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{where}: {error}: no recorded times as offload check writes them; record them"
                " again with --update"
            ) from None
        if not blocks or min(sizes.n_prompt, sizes.n_gen) < 1:
            raise UsageError(f"{where}: nothing was recorded; record it again with --update")
        return cls(**texts, sizes=sizes, blocks=blocks)


def _times(row: Any, keys: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    found = {key: float(row[key]) for key in keys}
    if not all(0 < seconds < float("inf") for seconds in found.values()):
        raise ValueError("a time that is none")
    return found


def record_baseline(
    arm: Arm,
    options: SpeedOptions | None = None,
    *,
    on_progress: Progress = lambda n_blocks, left_s: None,
    clock: Clock = time.monotonic,
) -> SpeedBaseline:
    """Time `arm` for `options.time_s`, for later. Raises LlamaCppError when it fails."""
    session = _Timing(arm=arm, options=options or SpeedOptions(), clock=clock)
    for left_s in session.blocks_until_over():
        on_progress(len(session.blocks), left_s)
    return SpeedBaseline(
        name=arm.name,
        build=arm.build,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        sizes=session.sizes,
        blocks=tuple(session.blocks),
    )


def compare_recorded(
    arm: Arm,
    baseline: SpeedBaseline,
    options: SpeedOptions | None = None,
    *,
    on_progress: Progress = lambda n_blocks, left_s: None,
    clock: Clock = time.monotonic,
) -> SpeedCheck:
    """Time `arm` and hold it against recorded times. Raises LlamaCppError when it fails."""
    options = replace(options or SpeedOptions(), sizes=baseline.sizes)
    session = _Timing(arm=arm, options=options, clock=clock)
    meter, begin_s = LoadMeter(), clock()
    decided: dict[str, Comparison] = {}
    n_looks = 0
    for left_s in session.blocks_until_over():
        on_progress(len(session.blocks), left_s)
        due = min(looks_due(clock() - begin_s, options.time_s), N_LOOKS - 1)
        if due > n_looks and len(session.blocks) >= _BLOCKS_MIN:
            n_looks = due
            _decide(decided, session.blocks, baseline, options)
            if len(decided) == len(TOLERANCES):
                break
    last = {test: _compare(test, session.blocks, baseline, options) for test in TOLERANCES}
    spent_s = clock() - begin_s
    results = [
        _result(test, decided.get(test, last[test]), session.blocks, baseline, options, spent_s)
        for test in TOLERANCES
    ]
    moved = machine_drift(session.blocks, baseline.blocks)
    return SpeedCheck(
        name_a=arm.name,
        name_b=f"{baseline.name}, recorded {baseline.created}",
        results=tuple(results),
        sizes=session.sizes,
        n_pairs=len(session.blocks),
        n_starts=session.n_starts,
        spent_s=spent_s,
        time_s=options.time_s,
        load=meter.read(),
        kind="recorded",
        machine_drift=moved,
        notes=_notes(moved),
    )


def machine_drift(now: Sequence[Block], then: Sequence[Block]) -> dict[str, float]:
    """By how much each piece of fixed work takes longer than it did, as a share."""
    return {
        kind: statistics.median(b.calibration[kind] for b in now)
        / statistics.median(b.calibration[kind] for b in then)
        - 1
        for kind in KINDS
    }


def _notes(moved: Mapping[str, float]) -> tuple[str, ...]:
    if all(abs(share) <= _DRIFT_NOTE for share in moved.values()):
        return ()
    text = ", ".join(f"{kind} {share:+.0%}" for kind, share in moved.items())
    return (
        f"this machine is not as it was when the times were recorded (fixed work: {text});"
        " --builds with the other build at hand does not mind, --update records anew",
    )


def _decide(
    decided: dict[str, Comparison],
    blocks: Sequence[Block],
    baseline: SpeedBaseline,
    options: SpeedOptions,
) -> None:
    for test in TOLERANCES:
        if test not in decided:
            comparison = _compare(test, blocks, baseline, options)
            if comparison.is_decided:
                decided[test] = comparison


def _compare(
    test: str, blocks: Sequence[Block], baseline: SpeedBaseline, options: SpeedOptions
) -> Comparison:
    """As the times are, and in units of each piece of fixed work."""
    views = [
        compare_separate(
            [_value(block, test, unit) for block in blocks],
            [_value(block, test, unit) for block in baseline.blocks],
            tolerance=options.tolerance(test),
            alpha=options.alpha / N_LOOKS,
        )
        for unit in (None, *KINDS)
    ]
    return widest(views)


def _value(block: Block, test: str, unit: str | None) -> float:
    return block.seconds[test] / (1.0 if unit is None else block.calibration[unit])


def _result(
    test: str,
    comparison: Comparison,
    blocks: Sequence[Block],
    baseline: SpeedBaseline,
    options: SpeedOptions,
    spent_s: float,
) -> TestResult:
    seconds = [block.seconds[test] for block in blocks]
    times = comparison.needed_times
    return TestResult(
        test=test,
        comparison=comparison,
        seconds_a=statistics.median(seconds),
        seconds_b=statistics.median(block.seconds[test] for block in baseline.blocks),
        noise=spread(seconds),
        start_noise=None,
        drift=drift(seconds),
        needed_s=None if times is None else times * max(spent_s, options.time_s),
    )


class _Timing:
    """One arm, block after block."""

    def __init__(self, *, arm: Arm, options: SpeedOptions, clock: Clock) -> None:
        self._arm, self._options, self._clock = arm, options, clock
        self._calibration = Calibration()
        self.blocks: list[Block] = []
        self.n_starts = 0
        self.sizes = options.sizes or Sizes(n_prompt=1, n_gen=1)

    def blocks_until_over(self) -> Iterator[float]:
        """Add blocks to `blocks` until the time is over; the seconds left after each."""
        end_s = self._clock() + self._options.time_s
        block_s = 0.0
        while self._clock() + block_s < end_s or not self.blocks:
            start_s = self._clock()
            with self._arm.open() as loaded:
                self._warm(loaded)
                timed_s = self._clock()
                is_over = False
                while not is_over:
                    before_s = self._clock()
                    self.blocks.append(self._block(loaded))
                    block_s = self._clock() - before_s
                    yield max(end_s - self._clock(), 0.0)
                    is_over = self._clock() + block_s >= end_s
                    is_over |= self._clock() - timed_s > (timed_s - start_s) / START_SHARE

    def _warm(self, loaded: Loaded) -> None:
        if not self.n_starts and self._options.sizes is None:
            self.sizes = choose_sizes(loaded)
        self.n_starts += 1
        loaded.time(self.sizes)

    def _block(self, loaded: Loaded) -> Block:
        found, fixed = [], []
        for _ in range(_REPETITIONS):
            fixed.append(self._calibration.seconds())
            found.append(loaded.time(self.sizes))
        return Block(
            seconds={test: min(row[test] for row in found) for test in TOLERANCES},
            calibration={kind: min(row[kind] for row in fixed) for kind in KINDS},
        )
