"""What is printed of a check: every format says the same, and nothing in it becomes markup."""

from __future__ import annotations

from xml.etree import ElementTree

from tuner.check.junit import report_to_junit
from tuner.check.outcome import Finding, Outcome, Report, Verdict, judged
from tuner.check.text import render_markdown, render_report, report_to_json

NASTY = "a|b <script> `x` *y* [z](u)\x1b[31m\n## no"
CHANGED = judged("m", "plan", (Finding(code="rule-dropped", text=NASTY),), ("a note",))
REPORT = Report(
    outcomes=(
        judged("m", "model", ()),
        CHANGED,
        Outcome(model="m", check="memory", verdict=Verdict.SKIPPED, notes=("why <not>",)),
    )
)


def test_exit_codes() -> None:
    """An error outweighs a change, a change outweighs the rest; nothing checked is no failure."""
    error = Outcome(model="m", check="plan", verdict=Verdict.ERROR)
    assert REPORT.exit_code == 1 and Report(outcomes=()).exit_code == 0
    assert Report(outcomes=(*REPORT.outcomes, error)).exit_code == 2


def test_table() -> None:
    """A line per check and what was found; control characters never reach a terminal."""
    text = render_report(REPORT)
    assert text.splitlines()[0].split() == ["model", "check", "verdict"]
    assert "\x1b" not in text and "note: a note" in text
    assert text.splitlines()[-1] == "1 ok, 1 changed, 1 skipped"


def test_markdown() -> None:
    """Text of a file stays text: no tag, table cell, emphasis or heading comes of it."""
    text = render_markdown(REPORT)
    (line,) = [line for line in text.splitlines() if "script" in line]
    assert line.startswith(r"- a\|b \<script\> \`x\` \*y\* \[z\](u)")
    assert not any(line.startswith("## no") for line in text.splitlines())
    assert "| m | plan | ❌ changed |" in text


def test_json() -> None:
    """The keys that docs/check.md names."""
    data = report_to_json(REPORT)
    assert set(data) == {"schema_version", "llama_build", "exit_code", "checks"}
    assert set(data["checks"][1]) == {"model", "check", "verdict", "findings", "notes", "values"}
    assert set(data["checks"][1]["findings"][0]) == {"code", "text", "device", "was", "now"}


def test_junit() -> None:
    """Well-formed XML: a failure with its text, a skip with its reason, counts that agree."""
    root = ElementTree.fromstring(report_to_junit(REPORT))
    counts = [root.get(key) for key in ("tests", "failures", "errors", "skipped")]
    assert counts == ["3", "1", "0", "1"]
    failure, skipped = root.find(".//failure"), root.find(".//skipped")
    assert failure is not None and failure.get("type") == "rule-dropped"
    assert "<script>" in (failure.text or "")
    assert skipped is not None and skipped.get("message") == "why <not>"
