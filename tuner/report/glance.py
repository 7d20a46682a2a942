"""What does offloading cost on this box, at a glance and in one sentence?"""

from __future__ import annotations

from typing import Final

from tuner.quiet import LOAD_NOISY
from tuner.report.card import is_virtual
from tuner.report.law import Law, LawPoint
from tuner.report.report import Report
from tuner.report.tables import duration, significant, table

_ALIKE: Final = 0.03
"""Ends that differ by less than this are called alike."""

HEAD: Final = (
    "layers with experts on the host",
    "decode t/s",
    "time per token",
    "times as long",
    "prompt t/s",
    "times as long",
)


def glance_table(report: Report, *, markdown: bool) -> str:
    """Decode and prompts of the model timed last, by the number of layers on the host."""
    laws = shown_laws(report)
    if not laws:
        return ""
    counts = sorted({(point.n_host, point.label) for law in laws.values() for point in law.own})
    rows = []
    for n_host, label in counts:
        rows.append(
            (
                f"{n_host} of {next(iter(laws.values())).n_expert_layers}",
                *_cells(laws.get("decode"), label, with_time=True),
                *_cells(laws.get("prefill"), label, with_time=False),
            )
        )
    return table(HEAD, rows, markdown=markdown)


def _cells(law: Law | None, label: str, *, with_time: bool) -> tuple[str, ...]:
    point = None if law is None else next((p for p in law.own if p.label == label), None)
    if law is None or point is None:
        return ("", "", "") if with_time else ("", "")
    rate, times = significant(1.0 / point.measured_s), point.measured_s / law.none.measured_s
    time = (duration(point.measured_s),) if with_time else ()
    return (rate, *time, f"{times:.2f}")


def shown_laws(report: Report) -> dict[str, Law]:
    """By phase, those of the model that was timed last."""
    found: dict[str, Law] = {}
    for law in report.laws:
        if law.digest == report.laws[0].digest:
            found.setdefault(law.phase, law)
    return found


def glance_sentence(report: Report) -> str:
    """What one layer's experts on the host cost a token and a prompt, and what all of them do."""
    laws = shown_laws(report)
    if not laws:
        return (
            "This profile holds no run with all experts on the host beside one with none there, so"
            " it cannot say what offloading costs: offload bench with a longer --time makes both."
        )
    parts = [_phase_sentence(law) for law in laws.values()]
    law = next(iter(laws.values()))
    return f"With {law.title}, {'; '.join(parts)}."


def _phase_sentence(law: Law) -> str:
    none, everything = law.none.measured_s, law.all.measured_s
    what = "decode" if law.phase == "decode" else f"a prompt of {law.n_tokens} tokens"
    if abs(everything / none - 1.0) < _ALIKE:
        return f"{what} is about as fast with all experts on the host as with none there"
    unit = "each token" if law.phase == "decode" else "each token of it"
    all_t_s, none_t_s = significant(1.0 / everything), significant(1.0 / none)
    if not law.is_told:
        return (
            f"{what} ran at {all_t_s} t/s with all experts on the host and {none_t_s} with none,"
            f" but repetitions of both overlap ({_span(law.all)} and {_span(law.none)}), so what"
            " it costs cannot be told"
        )
    said = f"{what} runs at {all_t_s} t/s with all experts on the host and {none_t_s} with none: "
    if law.slope_s < 0:
        saved = duration(-law.slope_s)
        return f"{said}the host is faster here, one more layer there takes {saved} off {unit}"
    said += f"the experts of one more layer there add {duration(law.slope_s)} to {unit}"
    if law.host_bytes_per_token > 0:
        per_gb_s = (everything - none) / law.host_bytes_per_token * 1e9
        said += f" ({duration(per_gb_s)} for each GB of weights that a token reads there)"
    return said


def _span(point: LawPoint) -> str:
    """Slowest and fastest repetition."""
    return f"{significant(1.0 / point.high_s)} to {significant(1.0 / point.low_s)}"


def glance_caution(report: Report) -> str:
    """What makes the figures above worth less, in one line; nothing where nothing does."""
    found = []
    if is_virtual(report.profile.hardware):
        found.append("the cards are virtual, threads of the processor, and like no real card")
    loads = [timing.raw.get("load") or 0.0 for timing in report.timings]
    noisy = sum(load > LOAD_NOISY for load in loads)
    if noisy * 2 > len(loads):
        found.append(f"{noisy} of {len(loads)} samples were taken beside other busy programs")
    return f"Mind that {', and that '.join(found)}." if found else ""
