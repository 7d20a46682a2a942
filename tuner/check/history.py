"""[edge] What was measured is added to a history file, from which `tuner/history/` draws."""

from __future__ import annotations

import time

from tuner.check.outcome import Report
from tuner.history import HistoryEntry, append_history


def history_entries(report: Report, created: str) -> tuple[HistoryEntry, ...]:
    """One entry per model that something was measured of."""
    build = "unknown" if report.llama_build is None else f"b{report.llama_build}"
    found = []
    for model in dict.fromkeys(one.model for one in report.outcomes):
        mine = [one for one in report.outcomes if one.model == model]
        values = {key: value for one in mine for key, value in one.values.items()}
        verdicts = {one.check: str(one.verdict) for one in mine}
        if values:
            found.append(
                HistoryEntry(
                    name=model, build=build, created=created, values=values, verdicts=verdicts
                )
            )
    return tuple(found)


def keep_history(report: Report, path: str) -> None:
    """Append to the file, which others may be appending to as well."""
    append_history(
        path, history_entries(report, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    )
