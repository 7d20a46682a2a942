"""What should a reader know before believing the numbers: what is not settled, what went wrong?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.fit import Fit, Unidentified, fit
from tuner.profile import Profile
from tuner.quiet import LOAD_NOISY
from tuner.report.card import is_virtual
from tuner.report.timings import Timing, median_s
from tuner.samples import anchor_drift, make_runs

_STALE_SDS = 0.1
"""Costs of the file and those of its samples that differ by more of a standard error than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """Notes in the order of their weight, and the costs that the runs do not settle."""

    notes: tuple[str, ...]
    unidentified: tuple[Unidentified, ...]
    n_costs: int


def make_doubts(profile: Profile, timings: Sequence[Timing], n_unreadable: int) -> Doubts:
    """From the samples as they are recorded, fitted again to see what they settle."""
    counted = [timing.raw for timing in timings if not timing.is_aside]
    models = profile.hardware.card_models
    found = fit(make_runs(counted), card_models=models) if counted else None
    notes = [
        *_about_file(profile, timings, n_unreadable, found),
        *_about_fit(profile, found),
        *_about_machine(timings),
    ]
    return Doubts(
        notes=tuple(notes),
        unidentified=() if found is None else found.unidentified,
        n_costs=len(profile.coefficients.table),
    )


def _about_file(
    profile: Profile, timings: Sequence[Timing], n_unreadable: int, found: Fit | None
) -> Iterator[str]:
    if is_virtual(profile.hardware):
        yield (
            "the cards are virtual: threads of the processor that share its memory with the host's"
            " part. Nothing here is true of any real card"
        )
    if not timings:
        yield "the profile keeps no samples, so nothing of it can be checked"
    if n_unreadable:
        yield f"{n_unreadable} samples cannot be read and are left out"
    if found is not None and not n_unreadable and _is_stale(profile, found):
        yield (
            "the costs in the file are not those that its samples give: it was edited, or made by"
            " another version of offload"
        )


def _is_stale(profile: Profile, found: Fit) -> bool:
    ours, theirs = profile.coefficients.table, found.coefficients.table
    return ours.keys() != theirs.keys() or any(
        abs(ours[name].value - c.value) > _STALE_SDS * c.standard_error
        for name, c in theirs.items()
    )


def _about_fit(profile: Profile, found: Fit | None) -> Iterator[str]:
    for phase, sd in profile.coefficients.residual_sds.items():
        condition = math.nan if found is None else found.condition_numbers.get(phase, math.nan)
        if math.isfinite(condition):
            said = f"; condition number of the runs {condition:.3g}"
        else:
            said = "" if math.isnan(condition) else "; some costs always occur together in the runs"
        yield f"{phase}: runs scatter {sd:.1%} around the model of costs{said}"
    outliers = [] if found is None else [r for r in found.residuals if r.is_outlier]
    if outliers:
        listed = ", ".join(f"{r.label} ({r.relative:+.0%})" for r in outliers[:5])
        more = f" and {len(outliers) - 5} more" if len(outliers) > 5 else ""
        yield f"{len(outliers)} runs lie far off the model and count less: {listed}{more}"


def _about_machine(timings: Sequence[Timing]) -> Iterator[str]:
    raws = [timing.raw for timing in timings]
    for phase, drift in anchor_drift(raws).items():
        yield f"{phase}: the repeated run took up to {drift:.1%} longer than at its fastest"
    loads = [raw["load"] for raw in raws if raw.get("load") is not None]
    noisy = [load for load in loads if load > LOAD_NOISY]
    if noisy:
        yield (
            f"{len(noisy)} of {len(loads)} samples were taken while other programs used"
            f" {statistics.median(noisy):.0%} of the processors (median); they count less"
        )
    elif loads:
        yield "no sample was taken beside a busy neighbour"
    n_outliers = sum(len(raw.get("outliers", ())) for raw in raws)
    n_repetitions = sum(len(raw["samples_ns"]) for raw in raws)
    if n_repetitions:
        yield f"{n_outliers} of {n_repetitions} repetitions stood out and are left out of medians"
    yield from _slowed(timings)
    yield from _asides(timings)


def _slowed(timings: Sequence[Timing]) -> Iterator[str]:
    hot = [timing for timing in timings if timing.raw.get("throttled")]
    if hot:
        cards = sorted({str(card) for timing in hot for card in timing.raw["throttled"]})
        yield f"{len(hot)} samples with a card slowed by heat or power: {', '.join(cards)}"
    elif timings:
        yield "no card was seen slowed by heat or power"
    clocks = [raw["cpu_mhz"] for t in timings if isinstance((raw := t.raw).get("cpu_mhz"), float)]
    if clocks:
        yield f"the processor ran at {min(clocks):.0f} to {max(clocks):.0f} MHz"


def _asides(timings: Sequence[Timing]) -> Iterator[str]:
    """Decode with all experts on the host, with other numbers of threads."""
    decodes = [t for t in timings if t.phase == "decode" and not t.n_depth and not t.is_short]
    labels = dict.fromkeys(t.label for t in decodes if t.is_aside)
    usual = [t for t in decodes if t.label == "all"]
    for label in labels if usual else ():
        ratio = median_s(usual) / median_s(t for t in decodes if t.label == label)
        yield f"decode with {label}: {ratio:.2f} times as fast as with the threads of this profile"
