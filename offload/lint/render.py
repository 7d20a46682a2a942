"""A lint report as text, Markdown or JSON."""

from __future__ import annotations

import re
from typing import Any, Final

from offload.emit import quote_argv, quote_for_terminal
from offload.lint.report import LintReport
from offload.plan import Plan
from offload.render.plan_json import devices_to_json
from offload.render.text import printable, ranges, render_columns
from offload.units import MIB

SCHEMA_VERSION: Final = 1


def lint_to_json(report: LintReport) -> dict[str, Any]:
    """The object `offload lint -o json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "findings": [
            {"code": f.code, "severity": str(f.severity), "text": f.text, "fix": f.fix}
            for f in report.findings
        ],
        "devices": [] if report.plan is None else devices_to_json(report.plan),
        "fixed_argv": list(report.fixed_argv),
    }


def render_lint(report: LintReport) -> str:
    """For a terminal: findings, what each card would hold, and the command to use."""
    lines: list[str] = []
    for finding in report.findings:
        lines.append(f"{finding.severity} [{finding.code}] {printable(finding.text)}")
        if finding.fix:
            lines.append(f"    fix: {printable(finding.fix)}")
    if not lines:
        lines.append("nothing to find fault with")
    if report.plan is not None:
        lines += ["", *render_columns(_rows(report.plan), "<<>>>>>>")]
    if report.fixed_argv:
        lines += ["", quote_for_terminal(report.fixed_argv)]
    return "\n".join(lines)


def render_lint_markdown(report: LintReport) -> str:
    """For an issue or a forum."""
    lines = []
    for finding in report.findings:
        fix = f" — {_code_span(finding.fix)}" if finding.fix else ""
        lines.append(f"- **{finding.severity}** `{finding.code}`: {_escaped(finding.text)}{fix}")
    if not lines:
        lines.append("Nothing to find fault with.")
    if report.plan is not None:
        rows = _rows(report.plan)
        head, *body = ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
        lines += ["", head, "|---" * len(rows[0]) + "|", *body]
    if report.fixed_argv:
        lines += ["", "```sh", printable(quote_argv(report.fixed_argv)), "```"]
    return "\n".join(lines)


def _code_span(text: str) -> str:
    """A code span, which keeps commands as they are; fences grow with the ticks inside."""
    shown = printable(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    pad = " " if "`" in shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _escaped(text: str) -> str:
    """Markdown's own signs as text."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in printable(text))


def _rows(plan: Plan) -> list[tuple[str, ...]]:
    """What each card would hold by the command as it stands."""
    rows: list[tuple[str, ...]] = [
        ("MiB", "layers", "weights", "context", "compute", "total", "free", "left")
    ]
    for d, card in enumerate(plan.devices):
        used = plan.memory.devices[d]
        layers = ranges(plan.split.layers_of(d)) or "none"
        output = " + output" if plan.split.output_owner == d else ""
        numbers = (
            used.model_bytes,
            used.context_bytes,
            used.compute_bytes,
            used.total_bytes,
            card.memory_free_bytes,
            card.memory_free_bytes - used.total_bytes,
        )
        rows.append((card.name, layers + output, *(f"{n / MIB:.0f}" for n in numbers)))
    host = plan.memory.host
    known = [host.model_bytes, host.context_bytes, host.compute_bytes, host.total_bytes]
    if plan.host_free_bytes is not None:
        known += (plan.host_free_bytes, plan.host_free_bytes - host.total_bytes)
    cells = [*(f"{n / MIB:.0f}" for n in known), "", ""][:6]
    rows.append(("host", ranges(plan.split.layers_of(-1)) or "none", *cells))
    return rows
