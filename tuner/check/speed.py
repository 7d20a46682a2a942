"""[edge] Is a launch as fast as it was recorded to be, or as with another build?

`tuner/paired/` times and judges; here its verdict becomes an outcome.
"""

from __future__ import annotations

from dataclasses import dataclass

from offload.emit import Launch
from tuner.check.outcome import Finding, Outcome, Verdict
from tuner.paired import (
    SpeedBaseline,
    SpeedCheck,
    SpeedOptions,
    choose_arm,
    compare_builds,
    compare_recorded,
    describe_check,
    record_baseline,
)
from tuner.paired import Verdict as SpeedVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSettings:
    """How long to time, what to let pass, and with how many threads of the host."""

    options: SpeedOptions
    n_threads: int | None = None


def record_speed(launch: Launch, build: str | None, settings: SpeedSettings) -> SpeedBaseline:
    """Time a launch, for later."""
    arm = choose_arm(build, launch, n_threads=settings.n_threads)
    return record_baseline(arm, settings.options)


def check_recorded(
    model: str, launch: Launch, build: str | None, was: SpeedBaseline, settings: SpeedSettings
) -> Outcome:
    """A launch beside its recorded times."""
    arm = choose_arm(build, launch, n_threads=settings.n_threads)
    return _outcome(model, compare_recorded(arm, was, settings.options))


def check_builds(
    model: str, launch: Launch, old: str, new: str, settings: SpeedSettings
) -> Outcome:
    """A launch with the new build beside the old one, in turns."""
    a, b = (choose_arm(build, launch, n_threads=settings.n_threads) for build in (new, old))
    return _outcome(model, compare_builds(a, b, settings.options))


def _outcome(model: str, check: SpeedCheck) -> Outcome:
    """Slower is a change, "cannot tell" an answer of its own; faster is told."""
    slower = tuple(
        Finding(
            code=f"{result.test}-slower",
            text=f"{result.test} is slower: {1 / result.seconds_a:.4g} t/s against"
            f" {1 / result.seconds_b:.4g} t/s (medians)",
            was=1 / result.seconds_b,
            now=1 / result.seconds_a,
        )
        for result in check.results
        if result.comparison.verdict is SpeedVerdict.SLOWER
    )
    verdict = Verdict.OK
    if slower:
        verdict = Verdict.CHANGED
    elif check.verdict is SpeedVerdict.CANNOT_TELL:
        verdict = Verdict.UNSURE
    notes = tuple(line.strip() for line in describe_check(check))
    values = {f"{result.test}_t_s": 1 / result.seconds_a for result in check.results}
    return Outcome(
        model=model, check="speed", verdict=verdict, findings=slower, notes=notes, values=values
    )
