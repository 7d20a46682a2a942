"""A pasted llama.cpp command, laid over a model and a machine: what will happen, and what to write.

`parse_command` makes words a value, `lint` finds, `render_lint` and `lint_to_json` show. Codes of
findings are stable and explained one by one in docs/lint.md.
"""

from offload.lint.case import Machine
from offload.lint.command import Command, parse_command
from offload.lint.finding import CODES, Finding, Severity
from offload.lint.reading import read_settings
from offload.lint.render import lint_to_json, render_lint, render_lint_markdown
from offload.lint.report import LintReport, lint

__all__ = [
    "CODES",
    "Command",
    "Finding",
    "LintReport",
    "Machine",
    "Severity",
    "lint",
    "lint_to_json",
    "parse_command",
    "read_settings",
    "render_lint",
    "render_lint_markdown",
]
