"""What was learned of a machine, as a report that people read: text first, pictures beside it."""

from tuner.report.folder import REPORT_FILE, write_history, write_report
from tuner.report.report import Report, make_report
from tuner.report.text import render_glance, render_markdown

__all__ = [
    "REPORT_FILE",
    "Report",
    "make_report",
    "render_glance",
    "render_markdown",
    "write_history",
    "write_report",
]
