"""All runs in one picture: measured against predicted, and what is left of them in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.report.judged import Judged
from tuner.report.style import BLUE, GREEN, GREY, VERMILION, Z, readable_log


def measured_panel(axes: Any, phase: str, mine: Sequence[Judged], _: Mapping[str, float]) -> None:
    """Against predictions by the other placements, where there are any."""
    points = []
    for one in mine:
        said, timing = one.left_out or one.fitted, one.timing
        if said is not None:
            rates = [timing.n_tokens / s for s in (said.high_s, said.seconds, said.low_s)]
            points.append((*rates, timing.tokens_per_s))
    kinds = (
        ("inside its 90 % interval", "o", BLUE, [p for p in points if p[0] <= p[3] <= p[2]]),
        ("outside", "X", VERMILION, [p for p in points if not p[0] <= p[3] <= p[2]]),
    )
    for label, marker, color, some in kinds:
        if some:
            axes.errorbar(
                [p[1] for p in some],
                [p[3] for p in some],
                xerr=[[p[1] - p[0] for p in some], [p[2] - p[1] for p in some]],
                fmt=marker,
                color=color,
                ecolor=color + "55",
                markersize=4,
                elinewidth=1,
                label=f"{label}: {len(some)} of {len(points)}",
            )
    if points:
        _diagonal(axes, [value for p in points for value in (p[1], p[3])])
        axes.legend(fontsize=8, loc="upper left")
    axes.set_title(f"{phase}, each placement left out")
    axes.set_xlabel("predicted (tokens per second)")
    axes.set_ylabel("measured (tokens per second)")


def _diagonal(axes: Any, values: Sequence[float]) -> None:
    """The line on which both are equal, and axes of the same range."""
    low, high = 0.8 * min(values), 1.25 * max(values)
    axes.plot((low, high), (low, high), "-", color=GREY, linewidth=1, label="equal", zorder=0)
    if high > 8 * low:
        axes.set_xscale("log")
        axes.set_yscale("log")
        readable_log(axes.xaxis)
        readable_log(axes.yaxis)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)


def residual_panel(
    axes: Any, phase: str, mine: Sequence[Judged], residual_sds: Mapping[str, float]
) -> None:
    """In the order of the runs, so that drift shows as a slope and a busy hour as a cloud."""
    points = [
        (i, 100.0 * (one.timing.seconds / one.fitted.seconds - 1.0), one.timing.is_anchor)
        for i, one in enumerate(mine, 1)
        if one.fitted is not None
    ]
    band = 100.0 * Z * residual_sds.get(phase, 0.0)
    label = f"scatter, 90 %: ±{band:.2g} %"
    axes.axhspan(-band, band, color=GREEN, alpha=0.15, linewidth=0, label=label)
    axes.axhline(0.0, color=GREY, linewidth=1)
    for label, marker, color, some in (
        ("run", "o", BLUE, [p for p in points if not p[2]]),
        ("repeated to see drift", "D", VERMILION, [p for p in points if p[2]]),
    ):
        if some:
            at, off = [p[0] for p in some], [p[1] for p in some]
            axes.plot(at, off, marker, color=color, markersize=3.5, label=label)
    # a band much wider than the runs would leave nothing of them to be seen
    reach = 1.6 * max((abs(p[1]) for p in points), default=1.0)
    axes.set_ylim(-max(reach, 1.0), max(reach, 1.0))
    axes.set_title(phase)
    axes.set_xlabel("run, in the order they were made")
    axes.set_ylabel("measured over fitted time (%)")
    axes.legend(fontsize=7)
