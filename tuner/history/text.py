"""A history as Markdown: results by build, and where they changed."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence

from tuner.history.log import HistoryEntry, read_history
from tuner.history.series import Series, group_entries, make_series


def history_markdown(path: str | os.PathLike[str]) -> str:
    """The whole file as one table per name and machine; medians where a build has several."""
    entries = read_history(path)
    if not entries:
        return "No results yet.\n"
    parts = []
    for (name, machine), group in group_entries(entries).items():
        where = f" on {machine}" if machine else ""
        lines = [f"## {_cell(name + where)}", "", *_table(group), ""]
        parts.append("\n".join(lines))
    return "\n".join(parts)


def _table(group: Sequence[HistoryEntry]) -> Iterator[str]:
    all_series = make_series(group)
    yield "| build | results | " + " | ".join(series.title for series in all_series) + " |"
    yield "|---|---:|" + "---:|" * len(all_series)
    builds = tuple(dict.fromkeys(entry.build for entry in group))
    for build in builds:
        cells = [_median(series, build) for series in all_series]
        count = sum(entry.build == build for entry in group)
        yield f"| {_cell(build)} | {count} | " + " | ".join(cells) + " |"
    yield ""
    changes = [line for series in all_series for line in _changes(series)]
    yield from changes or ["No change of level is seen."]


def _median(series: Series, build: str) -> str:
    values = [e.values[series.key] for e in series.entries if e.build == build]
    if not values:
        return ""
    at = [series.entries[change.index].build for change in series.changes]
    return _number(series, statistics.median(values)) + (" **changed**" if build in at else "")


def _changes(series: Series) -> Iterator[str]:
    for change in series.changes:
        entry = series.entries[change.index]
        before, after = _number(series, change.before), _number(series, change.after)
        # chance is not asked where there is none
        chance = "" if series.is_exact else f", p {change.p:.3f}"
        yield (
            f"- {series.title}: {change.ratio - 1:+.1%} from {_cell(entry.build)}"
            f" ({entry.created}) on: {before} to {after}{chance}"
        )


def _number(series: Series, value: float) -> str:
    shown = value / series.scale
    return f"{shown:,.0f}" if abs(shown) >= 1000 else f"{shown:.4g}"


def _cell(text: str) -> str:
    """Without what would end a cell or a line."""
    return text.replace("|", "\\|").replace("\n", " ")
