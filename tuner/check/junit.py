"""What was checked, as the JUnit XML that CI services show: a suite per model."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree

from offload.render.text import printable
from tuner.check.outcome import Outcome, Report, Verdict


def report_to_junit(report: Report) -> str:
    """`testsuites`; a changed check is a failure, one that could not be made an error."""
    root = ElementTree.Element("testsuites", _counts(report.outcomes) | {"name": "offload check"})
    for model in dict.fromkeys(one.model for one in report.outcomes):
        mine = [one for one in report.outcomes if one.model == model]
        suite = ElementTree.SubElement(root, "testsuite", _counts(mine) | {"name": model})
        for one in mine:
            _case(suite, one)
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def _counts(outcomes: Iterable[Outcome]) -> dict[str, str]:
    verdicts = [one.verdict for one in outcomes]
    return {
        "tests": str(len(verdicts)),
        "failures": str(verdicts.count(Verdict.CHANGED)),
        "errors": str(verdicts.count(Verdict.ERROR)),
        "skipped": str(verdicts.count(Verdict.SKIPPED) + verdicts.count(Verdict.UNSURE)),
    }


def _case(suite: ElementTree.Element, one: Outcome) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", {"classname": f"offload.check.{one.model}", "name": one.check}
    )
    texts = [printable(finding.text) for finding in one.findings]
    notes = [printable(note) for note in one.notes]
    if one.verdict in (Verdict.SKIPPED, Verdict.UNSURE):
        ElementTree.SubElement(case, "skipped", {"message": "; ".join(notes)})
    elif texts:
        tag = "error" if one.verdict is Verdict.ERROR else "failure"
        message = texts[0] if len(texts) == 1 else f"{len(texts)} things changed"
        attributes = {"message": message, "type": one.findings[0].code}
        ElementTree.SubElement(case, tag, attributes).text = "\n".join(texts)
    if notes:
        ElementTree.SubElement(case, "system-out").text = "\n".join(notes)
