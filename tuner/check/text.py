"""What was checked, as a table, as JSON and as Markdown for a CI job's summary."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from offload.render.text import printable, render_columns
from tuner.check.outcome import Outcome, Report, Verdict

SCHEMA_VERSION: Final = 1
_MARKS: Final = {
    Verdict.OK: "✅ ok",
    Verdict.CHANGED: "❌ changed",
    Verdict.SKIPPED: "⏭️ skipped",
    Verdict.UNSURE: "❔ cannot tell",
    Verdict.ERROR: "⚠️ error",
}
_ESCAPED: Final = str.maketrans({c: f"\\{c}" for c in "\\`*_|<>[]#~"})


def report_to_json(report: Report) -> dict[str, Any]:
    """Keys as docs/check.md says."""
    return {
        "schema_version": SCHEMA_VERSION,
        "llama_build": report.llama_build,
        "exit_code": report.exit_code,
        "checks": [
            {
                "model": one.model,
                "check": one.check,
                "verdict": str(one.verdict),
                "findings": [asdict(finding) for finding in one.findings],
                "notes": list(one.notes),
                "values": dict(one.values),
            }
            for one in report.outcomes
        ],
    }


def render_report(report: Report) -> str:
    """A line per check, then what was found."""
    rows = [("model", "check", "verdict")]
    rows += [(one.model, one.check, str(one.verdict)) for one in report.outcomes]
    lines = render_columns(rows, "<<<")
    for one in report.outcomes:
        if one.findings or one.notes:
            lines += ["", f"{one.model}, {one.check}:", *(f"  {text}" for text in _texts(one))]
    return "\n".join((*lines, "", _sum(report)))


def render_markdown(report: Report) -> str:
    """The same for a job's summary; nothing from a file may become markup."""
    lines = ["## offload check", "", "| model | check | verdict |", "|---|---|---|"]
    lines += [
        f"| {_plain(one.model)} | {one.check} | {_MARKS[one.verdict]} |" for one in report.outcomes
    ]
    for one in report.outcomes:
        if one.findings or one.notes:
            lines += ["", f"**{_plain(one.model)}, {one.check}**", ""]
            lines += [f"- {_plain(text)}" for text in _texts(one)]
    return "\n".join((*lines, "", _sum(report)))


def _texts(one: Outcome) -> list[str]:
    return [
        *(printable(finding.text) for finding in one.findings),
        *(f"note: {printable(note)}" for note in one.notes),
    ]


def _plain(text: str) -> str:
    return printable(text).translate(_ESCAPED)


def _sum(report: Report) -> str:
    counts = dict.fromkeys(Verdict, 0)
    for one in report.outcomes:
        counts[one.verdict] += 1
    return ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n or verdict == "ok")
