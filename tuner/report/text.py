"""The report as Markdown, whole without any picture; and its first section for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from offload.cost import Prediction
from offload.units import format_gib
from tuner.report.card import CardRow
from tuner.report.glance import glance_caution, glance_sentence, glance_table
from tuner.report.judged import Judged
from tuner.report.law import Law, LawPoint, laws_by_model
from tuner.report.report import Report
from tuner.report.tables import cell, duration, significant, table
from tuner.report.timings import model_title

MARK: Final = "<!-- made by offload report; it is written over by the next -->"
NO_PICTURES: Final = (
    "Pictures are missing: matplotlib is not installed here (pip install '.[tuner]')."
)
_IN_SUMS: Final = "in sums only"


def render_glance(report: Report) -> str:
    """The first section, for a terminal."""
    table_of = glance_table(report, markdown=False)
    parts = (table_of, glance_sentence(report), glance_caution(report))
    return "\n\n".join(part for part in parts if part)


def render_markdown(report: Report, pictures: Sequence[str], *, has_pictures: bool = True) -> str:
    """The whole report; `pictures` are names of files beside it, shown where they belong."""
    shown = {name.partition(".")[0]: name for name in pictures}
    sections = [
        MARK,
        "# What offloading costs on this machine",
        *([] if has_pictures else [NO_PICTURES]),
        *_glance(report, shown),
        *_machine(report, shown),
        *_laws(report, shown),
        *_measured(report, shown),
        *_doubts(report, shown),
        *_runs(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _picture(shown: dict[str, str], stem: str, says: str) -> str:
    return f"![{says}]({shown[stem]})" if stem in shown else ""


def _glance(report: Report, shown: dict[str, str]) -> Iterator[str]:
    yield "## At a glance"
    yield glance_table(report, markdown=True)
    yield cell(glance_sentence(report))
    yield glance_caution(report)
    yield _picture(shown, "host-layers-1", "Time and speed by the number of layers on the host")


def _machine(report: Report, shown: dict[str, str]) -> Iterator[str]:
    hardware = report.profile.hardware
    yield "## The machine"
    rows = [(card.name, card.description, _gib(card.memory_total_bytes)) for card in hardware.cards]
    n_threads = hardware.n_threads
    plural = "" if n_threads == 1 else "s"
    threads = "" if n_threads is None else f", {n_threads} thread{plural}"
    rows.append(("CPU", f"{hardware.cpu}{threads}", _gib(hardware.memory_total_bytes)))
    yield table(("device", "what it is", "memory"), rows)
    number, commit = report.profile.build_number, report.profile.build_commit
    build = f"b{number}" if number else "an unknown build"
    named = f" ({cell(commit)})" if commit else ""
    yield f"Timed with llama.cpp {build}{named}, profile of {cell(report.profile.created)}."
    yield (
        "What data sheets promise, what llama.cpp usually makes of such figures (the prior, with"
        " its standard error), and what was measured here (± one standard error). `CPU_REPACK` is"
        f" the host with weights in the processor's own layout. Costs *{_IN_SUMS}* are smaller than"
        " their own error: the runs tell them together with others. *At least* is a device's bytes"
        " over the whole time of a token in the fastest run, in which no fit has a part."
    )
    yield _picture(shown, "machine-card", "Measured bandwidth beside data sheet and prior")
    for phase in ("decode", "prefill"):
        rows_of = [row for row in report.card if row.phase == phase]
        told = [row for row in rows_of if row.measured is not None or row.prior is not None]
        if rows_of:
            yield f"### {phase.capitalize()}"
            yield _card_table(told) if told else ""
        if len(told) < len(rows_of):
            yield (
                f"{len(rows_of) - len(told)} more costs are known in sums only, and no data"
                " sheet speaks of them."
            )


def _gib(n_bytes: int | None) -> str:
    return "" if n_bytes is None else format_gib(n_bytes)


def _card_table(rows: Sequence[CardRow]) -> str:
    head = ("device", "work", "type", "data sheet", "prior", "measured", "±", "runs")
    return table(
        head,
        [
            (
                row.place or "any",
                row.work,
                row.type_name,
                "" if row.sheet is None else _quantity(row.sheet, row.unit),
                _prior(row),
                _found(row),
                "" if row.measured_doubt is None else f"{row.measured_doubt:.0%}",
                str(row.n_samples),
            )
            for row in rows
        ],
    )


def _quantity(value: float, unit: str) -> str:
    if unit == "us":
        return duration(value / 1e6)
    if unit == "GFLOP/s" and value >= 1e3:
        return f"{significant(value / 1e3)} TFLOP/s"
    return f"{significant(value)} {unit}"


def _found(row: CardRow) -> str:
    """What was measured, or why there is no figure."""
    if row.measured is None:
        return _IN_SUMS
    return ("at least " if row.is_bound else "") + _quantity(row.measured, row.unit)


def _prior(row: CardRow) -> str:
    if row.prior is None or row.prior_doubt is None:
        return ""
    return f"{_quantity(row.prior, row.unit)} ± {row.prior_doubt:.0%}"


def _laws(report: Report, shown: dict[str, str]) -> Iterator[str]:
    if not report.laws:
        return
    yield "## By the number of layers on the host"
    yield (
        "Seconds are linear in the work, so time per token is a straight line in the number of"
        " layers whose experts lie on the host, to first order. *line* is that line through both"
        " ends, in tokens per second; *costs* what the profile's costs say, with their 90 %"
        " interval. `own` relieves every card of the same share, `first` and `last` take layers"
        " from one end, `only` from one card."
    )
    for i, laws in enumerate(laws_by_model(report.laws), 1):
        yield f"### {cell(laws[0].title)}"
        for law in laws:
            what = "decode" if law.phase == "decode" else f"prompt of {law.n_tokens} tokens"
            yield _law_table(law, what)
            yield _line_error(law)
        if i > 1:  # that of the first is at the top
            yield _picture(shown, f"host-layers-{i}", "Time and speed by the number of host layers")


def _law_table(law: Law, what: str) -> str:
    head = ("host layers", "placement", f"{what} t/s", "slowest to fastest", "per token", "line",
            "off", "costs")  # fmt: skip
    return table(head, [_law_row(point) for point in law.points])


def _law_row(point: LawPoint) -> tuple[str, ...]:
    return (
        str(point.n_host),
        point.label,
        significant(1.0 / point.measured_s),
        f"{significant(1.0 / point.high_s)} to {significant(1.0 / point.low_s)}",
        duration(point.measured_s),
        "" if point.is_end else significant(1.0 / point.line_s),
        "" if point.is_end else f"{1.0 / (1.0 + point.line_error) - 1.0:+.1%}",
        _rates(point.predicted, 1),
    )


def _rates(said: Prediction | None, n_tokens: int) -> str:
    """A prediction of seconds as tokens per second."""
    if said is None:
        return ""
    middle, low, high = (n_tokens / s for s in (said.seconds, said.high_s, said.low_s))
    return f"{significant(middle)} ({significant(low)} to {significant(high)})"


def _line_error(law: Law) -> str:
    inner = [point for point in law.own if not point.is_end]
    if not inner:
        return "No placement between the ends was timed, so whether time is linear is not known."
    worst = max(inner, key=lambda point: abs(point.line_error))
    return (
        "Where every card is relieved alike the straight line is at most"
        f" {abs(worst.line_error):.1%} off in time (`{cell(worst.label)}`); one more layer"
        f" {_takes(law.slope_s)} per token."
    )


def _takes(slope_s: float) -> str:
    return f"{'takes' if slope_s >= 0 else 'saves'} {duration(abs(slope_s))}"


def _measured(report: Report, shown: dict[str, str]) -> Iterator[str]:
    if not report.scores:
        return
    yield "## Measured against predicted"
    yield (
        "*in the fit*: every run by the costs that were fitted to it. *left out*: every placement"
        " by costs fitted without it (a tenth of the placements left out at a time). Intervals"
        " are meant to hold 90 %."
    )
    yield table(
        ("phase", "runs predicted", "runs", "median error", "90 % are within", "in the interval"),
        [
            (
                score.phase,
                score.kind,
                str(score.n),
                f"{score.median_error:.1%}",
                f"{score.p90_error:.1%}",
                f"{score.coverage:.0%} ({score.n_inside} of {score.n})",
            )
            for score in report.scores
        ],
    )
    yield _picture(shown, "measured", "Measured against predicted tokens per second")
    yield _picture(shown, "residuals", "Measured over fitted time, in the order of the runs")
    worst = _worst(report.judged)
    if worst:
        yield "The placements that are hardest to foretell when they are left out:"
        yield table(("run", "measured t/s", "predicted t/s (90 % interval)", "off"), worst)


def _worst(judged: Sequence[Judged]) -> list[tuple[str, ...]]:
    """One row for each placement and test outside its interval, the furthest first."""
    found: dict[tuple[str, str], tuple[float, tuple[str, ...]]] = {}
    for one in judged:
        said, timing = one.left_out, one.timing
        if said is None or said.low_s <= timing.seconds <= said.high_s:
            continue
        error = said.seconds / timing.seconds - 1.0
        key = (timing.label, timing.test)
        rate = _rates(said, timing.n_tokens)
        row = (" ".join(key), significant(timing.tokens_per_s), rate, f"{1 / (1 + error) - 1:+.1%}")
        if key not in found or abs(error) > abs(found[key][0]):
            found[key] = (error, row)
    ranked = sorted(found.values(), key=lambda item: -abs(item[0]))
    return [row for _, row in ranked[:8]]


def _doubts(report: Report, shown: dict[str, str]) -> Iterator[str]:
    yield "## What to doubt"
    yield "\n".join(f"- {cell(note)}" for note in report.doubts.notes)
    unknown = report.doubts.unidentified
    if not unknown:
        return
    yield (
        f"{len(unknown)} of {report.doubts.n_costs} costs are known in sums only, since the runs"
        " never vary them apart. Predictions that keep such a sum are as sure as their interval"
        " says; those that break it are not."
    )
    yield table(
        ("cost", "told only together with", "what would part them"),
        [(u.feature, ", ".join(u.companions), u.advice) for u in unknown],
    )


def _runs(report: Report) -> Iterator[str]:
    """Every run of the fit: the text has all that the pictures show."""
    groups: dict[str, dict[tuple[str, str], list[Judged]]] = {}
    for one in report.judged:
        tests = groups.setdefault(one.timing.digest, {})
        tests.setdefault((one.timing.label, one.timing.test), []).append(one)
    if groups:
        yield "## Every run"
        yield "Medians where a run was made several times; intervals hold 90 %."
    for tests in groups.values():
        first = next(iter(tests.values()))[0]
        yield f"### {cell(model_title(first.timing))}"
        rows = [_run_row(label, test, some) for (label, test), some in tests.items()]
        head = ("placement", "test", "runs", "t/s", "by the fit", "left out", "time off the fit")
        yield table(head, rows)


def _run_row(label: str, test: str, some: Sequence[Judged]) -> tuple[str, ...]:
    first, n_tokens = some[0], some[0].timing.n_tokens
    seconds = statistics.median(one.timing.seconds for one in some)
    off = "" if first.fitted is None else f"{seconds / first.fitted.seconds - 1.0:+.1%}"
    return (
        label,
        test,
        str(len(some)),
        significant(n_tokens / seconds),
        _rates(first.fitted, n_tokens),
        _rates(first.left_out, n_tokens),
        off,
    )
