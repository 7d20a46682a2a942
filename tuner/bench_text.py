"""How is a finished sweep shown: as a table, as markdown, as JSON?"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from offload.cost import Coefficient
from tuner.bench import Sweep
from tuner.learn import Learned
from tuner.profile import profile_to_json
from tuner.quiet import LOAD_NOISY
from tuner.samples import anchor_drift, sample_seconds

_DRIFT_TELLING: Final = 0.05
_GAIN_TELLING: Final = 0.05
_SHAKY: Final = 0.3
"""A relative standard error above which a coefficient is shown as uncertain."""


def render_bench(learned: Learned, sweep: Sweep, path: Path | None, *, markdown: bool) -> str:
    """Speeds by placement, then what each kind of work costs, then what to make of it."""
    parts = [
        _table(("placement", "decode t/s", "prompt t/s", "runs"), _speeds(sweep), markdown),
        _cost_table(learned, markdown),
        "\n".join(f"{'- ' if markdown else ''}{note}" for note in notes(learned, sweep)),
    ]
    if path is not None:
        parts.append(f"profile: {path}")
        parts.append(f"with pictures: offload report {shlex.quote(str(path))}")
    return "\n\n".join(part for part in parts if part)


def bench_to_json(learned: Learned, sweep: Sweep, path: Path | None) -> dict[str, Any]:
    """The profile, and beside it what does not belong into one."""
    return {
        **profile_to_json(learned.profile),
        "profile": None if path is None else str(path),
        "failures": sweep.failures,
        "n_samples_new": len(sweep.samples),
        "drift": anchor_drift(sweep.samples),
        "condition_numbers": {
            phase: value if value < float("inf") else None
            for phase, value in learned.fit.condition_numbers.items()
        },
        "unidentified": [
            {"feature": u.feature, "companions": list(u.companions), "advice": u.advice}
            for u in learned.fit.unidentified
        ],
        "notes": notes(learned, sweep),
    }


def notes(learned: Learned, sweep: Sweep) -> list[str]:
    """What a reader should know before believing the numbers."""
    found = []
    for phase, sd in learned.profile.coefficients.residual_sds.items():
        found.append(f"{phase}: runs scatter {sd:.1%} around the model of costs")
    for phase, drift in anchor_drift(sweep.samples).items():
        if drift > _DRIFT_TELLING:
            found.append(
                f"{phase}: the same run took up to {drift:.0%} longer than at its fastest;"
                " clocks or other programs changed meanwhile"
            )
    loads = [s["load"] for s in sweep.samples if s.get("load") is not None]
    noisy = [load for load in loads if load > LOAD_NOISY]
    if noisy:
        found.append(
            f"{len(noisy)} of {len(loads)} samples were taken while other programs used"
            f" {statistics.median(noisy):.0%} of the processors (median); they count less"
        )
    if any(s.get("throttled") for s in sweep.samples):
        found.append("a card was slowed down by heat or power during some samples")
    n_outliers = sum(len(s["outliers"]) for s in sweep.samples)
    if n_outliers:
        found.append(f"{n_outliers} repetitions stood out; they are kept, and marked")
    n_timed = len({s["label"] for s in sweep.samples})
    if n_timed < sweep.n_candidates and not sweep.failures:
        found.append(
            f"{n_timed} of {sweep.n_candidates} placements and settings were timed;"
            f" --time {max(sweep.full_s, sweep.spent_s) // 60 + 1:.0f}m would time them all"
        )
    if (advice := _threads_advice(sweep)) is not None:
        found.append(advice)
    if sweep.failures:
        labels = ", ".join(dict.fromkeys(f["label"] for f in sweep.failures))
        found.append(f"{len(sweep.failures)} runs failed: {labels}")
    if learned.n_old:
        found.append(f"{learned.n_old} samples of other models in the profile count too")
    if learned.fit.unidentified:
        found.append(_unidentified(learned))
    return found


def _threads_advice(sweep: Sweep) -> str | None:
    """Whether the host decodes faster with another number of threads."""
    by_label: dict[str, list[float]] = {}
    for sample in sweep.samples:
        if sample["n_gen"] and (sample["label"] == "all" or sample.get("is_aside")):
            by_label.setdefault(sample["label"], []).append(
                sample_seconds(sample) / sample["n_gen"]
            )
    if "all" not in by_label or len(by_label) < 2:
        return None
    seconds = {label: statistics.median(found) for label, found in by_label.items()}
    best = min(seconds, key=lambda label: seconds[label])
    gain = seconds["all"] / seconds[best] - 1.0
    if gain < _GAIN_TELLING:
        return None
    return (
        f"with all experts on the host, {best.removeprefix('all, ')} decodes {gain:.0%} faster;"
        " time the machine again with it"
    )


def _unidentified(learned: Learned) -> str:
    unknown = learned.fit.unidentified
    advice = statistics.multimode(u.advice for u in unknown)[0]
    total = len(learned.profile.coefficients.table)
    return f"{len(unknown)} of {total} costs are known in sums only; {advice} would part some"


def _speeds(sweep: Sweep) -> Iterable[Sequence[str]]:
    by_label: dict[str, list[Mapping[str, Any]]] = {}
    for sample in sweep.samples:
        by_label.setdefault(sample["label"], []).append(sample)
    for label, samples in by_label.items():
        decode = [s["n_gen"] / sample_seconds(s) for s in samples if s["n_gen"]]
        longest = max(s["n_prompt"] for s in samples)
        whole = [s for s in samples if s["n_prompt"] == longest > 0]
        prompt = [s["n_prompt"] / sample_seconds(s) for s in whole]
        yield label, _rate(decode), _rate(prompt), str(max(len(decode), len(prompt)))


def _rate(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):.1f}" if rates else ""


def _cost_table(learned: Learned, markdown: bool) -> str:
    """Those that are known at all; the others are in the profile."""
    rows = list(_costs(learned))
    return _table(("cost", "value", "±", "samples"), rows, markdown) if rows else ""


def _costs(learned: Learned) -> Iterable[Sequence[str]]:
    for c in learned.profile.coefficients.table.values():
        if c.value > c.standard_error:
            yield c.name, _readable(c), _error(c), str(c.n_samples)


def _readable(c: Coefficient) -> str:
    """Seconds per unit as people say it."""
    if c.unit == "s/byte":
        return f"{1e-9 / c.value:.2f} GB/s"
    if c.unit == "s/flop":
        return f"{1e-9 / c.value:.2f} GFLOP/s"
    if c.unit == "s/s":
        return f"{c.value:.0%}"
    return f"{c.value * 1e6:.1f} us"


def _error(c: Coefficient) -> str:
    relative = c.standard_error / c.value
    return f"{relative:.0%}{' ?' if relative > _SHAKY else ''}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], markdown: bool) -> str:
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    cells = [
        [line[i].ljust(width) if i == 0 else line[i].rjust(width) for i, width in enumerate(widths)]
        for line in lines
    ]
    if not markdown:
        return "\n".join("  ".join(row).rstrip() for row in cells)
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], rule, *cells[1:]))
