"""The report as pictures: PNG as bytes, the same for the same profile.

What colour says is said by shape as well. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from operator import mul, truediv
from typing import Any, Final

from tuner.history.drawing import SOFTWARE
from tuner.report.card import CardRow
from tuner.report.law import Law, LawPoint, laws_by_model
from tuner.report.report import Report
from tuner.report.run_panels import measured_panel, residual_panel
from tuner.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, STYLE, VERMILION, Z, readable_log

_DPI: Final = 90
_LAWS_MAX: Final = 4
_ROWS_MAX: Final = 24
_KINDS: Final = (
    ("own", "measured, every card alike", "o", BLUE, 0),
    ("first", "measured, first layers", "<", ORANGE, -1),
    ("last", "measured, last layers", ">", VERMILION, 1),
    ("only", "measured, one card's layers", "^", PURPLE, 2),
)
"""Word of the label, legend, marker, colour and shift to the side of each way to relieve layers."""

_PHASES: Final = ("decode", "prefill")


def draw_report(report: Report) -> dict[str, bytes] | None:
    """PNG files by name; None where matplotlib is missing. What there is nothing of is left out."""
    try:
        import matplotlib
    except ImportError:
        return None
    found: dict[str, bytes] = {}
    # names are text, whatever signs they hold; fonts may lack some of them, and a box will do
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, laws in enumerate(laws_by_model(report.laws)[:_LAWS_MAX], 1):
            found[f"host-layers-{i}.png"] = _draw_laws(laws)
        if _bandwidths(report):
            found["machine-card.png"] = _draw_card(_bandwidths(report))
        if report.judged:
            found["measured.png"] = _draw_phases(report, measured_panel, height=4.2)
            found["residuals.png"] = _draw_phases(report, residual_panel, height=3.2)
    return found


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": SOFTWARE})
    return buffer.getvalue()


def _draw_laws(laws: Sequence[Law]) -> bytes:
    """Time per token above, tokens per second below; a column for each phase."""
    figure = _figure(4.6 * len(laws), 6.4)
    figure.suptitle(_shortened(laws[0].title))
    panels = figure.subplots(2, len(laws), squeeze=False)
    for column, law in enumerate(laws):
        what = "decode" if law.phase == "decode" else f"prompt of {law.n_tokens} tokens"
        scale, unit = _time_unit(max(point.measured_s for point in law.points))
        panels[0][column].set_title(what)
        _draw_law(panels[0][column], law, partial(mul, scale))
        _draw_law(panels[1][column], law, partial(truediv, 1.0))
        panels[0][column].set_ylabel(f"time per token ({unit})")
        panels[1][column].set_ylabel("tokens per second")
        panels[1][column].set_xlabel("layers whose experts are on the host")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=3)
    return _png(figure)


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds >= 1:
        return 1.0, "s"
    return (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")


def _shortened(text: str) -> str:
    return text if len(text) <= 90 else text[:89] + "…"


def _draw_law(axes: Any, law: Law, shown: Callable[[float], float]) -> None:
    n, steps = law.n_expert_layers, 60
    xs = [n * i / steps for i in range(steps + 1)]
    line = [shown(law.none.measured_s + law.slope_s * x) for x in xs]
    axes.plot(xs, line, "--", color=GREY, linewidth=1, label="straight line in time")
    said = [(p.n_host, p.predicted) for p in law.own if p.predicted is not None]
    if said:
        lows, highs = (
            [shown(s) for s in ends]
            for ends in zip(*((p.low_s, p.high_s) for _, p in said), strict=True)
        )
        at = [x for x, _ in said]
        middles = [shown(p.seconds) for _, p in said]
        axes.fill_between(
            at, lows, highs, color=GREEN, alpha=0.18, linewidth=0, label="fitted costs, 90 %"
        )
        axes.plot(at, middles, "-", color=GREEN, linewidth=1)
    for word, label, marker, color, shift in _KINDS:
        some = [p for p in law.points if ("own" if p.is_own else p.label.split()[0]) == word]
        if some:
            _draw_points(axes, some, shown, shift * 0.012 * n, marker, color, label)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.04 * n, 1.04 * n)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=True, alpha=0.3)


def _draw_points(
    axes: Any,
    points: Sequence[LawPoint],
    shown: Callable[[float], float],
    shift: float,
    marker: str,
    color: str,
    label: str,
) -> None:
    middles = [shown(p.measured_s) for p in points]
    ends = [sorted((shown(p.low_s), shown(p.high_s))) for p in points]
    bars = [
        [max(m - low, 0.0) for m, (low, _) in zip(middles, ends, strict=True)],
        [max(high - m, 0.0) for m, (_, high) in zip(middles, ends, strict=True)],
    ]
    axes.errorbar(
        [p.n_host + shift for p in points],
        middles,
        yerr=bars,
        fmt=marker,
        color=color,
        markersize=5,
        elinewidth=1,
        capsize=2,
        label=label,
        zorder=3,
    )


def _bandwidths(report: Report) -> list[CardRow]:
    """What can stand on one axis of GB/s: weights that a token reads, and the link."""
    rows = [row for row in report.card if row.unit == "GB/s" and row.measured is not None]
    reads = [r for r in rows if r.phase == "decode" and r.type_name]
    links = [r for r in rows if r.phase == "prefill" and "link" in r.work]
    return [*reads, *links][:_ROWS_MAX]


def _draw_card(rows: Sequence[CardRow]) -> bytes:
    figure = _figure(8.0, 1.6 + 0.32 * len(rows))
    axes = figure.subplots()
    at_least = [(i, r.measured or 0.0, 0.0) for i, r in enumerate(rows) if r.is_bound]
    costs = [
        (i, r.measured or 0.0, r.measured_doubt or 0.0)
        for i, r in enumerate(rows)
        if not r.is_bound
    ]
    sheets = [(i, r.sheet, 0.0) for i, r in enumerate(rows) if r.sheet]
    priors = [(i + 0.16, r.prior, r.prior_doubt or 0.0) for i, r in enumerate(rows) if r.prior]
    for label, marker, color, figures in (
        ("data sheet", "|", "black", sheets),
        ("prior, 90 %", "D", ORANGE, priors),
        ("at least (whole tokens)", ">", GREEN, at_least),
        ("fitted cost, 90 %", "o", BLUE, costs),
    ):
        if figures:
            _draw_figures(axes, figures, marker, color, label)
    axes.set_yticks(range(len(rows)), [_row_label(row) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    readable_log(axes.xaxis)
    axes.set_xlabel("GB/s (logarithmic)")
    axes.grid(visible=True, axis="x", alpha=0.3)
    figure.legend(fontsize=8, loc="outside lower center", ncols=4)
    axes.set_title("What each device reads in a second")
    return _png(figure)


def _draw_figures(
    axes: Any, known: Sequence[tuple[float, float, float]], marker: str, color: str, label: str
) -> None:
    """Values with their 90 % interval as a factor, since a rate is one over a cost."""
    values = [value for _, value, _ in known]
    lows = [value - value / (1 + Z * doubt) for _, value, doubt in known]
    highs = [value * Z * doubt for _, value, doubt in known]
    axes.errorbar(
        values,
        [y for y, _, _ in known],
        xerr=[lows, highs],
        fmt=marker,
        color=color,
        markersize=11 if marker == "|" else 5,
        elinewidth=1,
        label=label,
    )


def _row_label(row: CardRow) -> str:
    return f"{row.place}: {'all types' if row.is_bound else row.type_name or 'link'}"


def _draw_phases(report: Report, panel: Callable[..., None], *, height: float) -> bytes:
    phases = [p for p in _PHASES if any(one.timing.phase == p for one in report.judged)]
    figure = _figure(4.6 * len(phases), height)
    for axes, phase in zip(figure.subplots(1, len(phases), squeeze=False)[0], phases, strict=True):
        mine = [one for one in report.judged if one.timing.phase == phase]
        panel(axes, phase, mine, report.profile.coefficients.residual_sds)
        axes.grid(visible=True, alpha=0.3)
    return _png(figure)
