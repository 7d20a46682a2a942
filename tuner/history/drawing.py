"""A history as pictures: decode, prefill and memory over builds, change points marked."""

from __future__ import annotations

import os
import re
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from offload.errors import UsageError
from tuner.history.log import HistoryEntry, read_history
from tuner.history.series import Series, group_entries, make_series

SOFTWARE: Final = "offload report"
"""What pictures say of their maker, so that the next report may write over them."""

_WIDTH_INCHES: Final = 9.0
_PANEL_INCHES: Final = 2.4
_LABELS_MAX: Final = 20
_HEADROOM: Final = 1.2
_BLUE: Final = "#2b6cb0"
_RED: Final = "#c53030"


def draw_history(path: str | os.PathLike[str], out_dir: str | os.PathLike[str]) -> tuple[Path, ...]:
    """One PNG for each name and machine in the file, written into `out_dir`.

    Raises UsageError where there is nothing to draw, no matplotlib, or no place for it.
    """
    try:
        from matplotlib import rc_context  # only who draws waits for it
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("pictures need matplotlib: pip install '.[tuner]'") from None
    groups = group_entries(read_history(path))
    if not groups:
        raise UsageError(f"{path}: no results yet, nothing to draw")
    folder = Path(out_dir)
    files: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # names are text, dollars and all, and fonts may lack some of their letters
        with rc_context({"text.parse_math": False}), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for (name, machine), entries in groups.items():
                figure = _draw(Figure, f"{name}  {machine}".strip(), make_series(entries))
                files.append(_free_name(folder, f"{name}-{machine}", files))
                figure.savefig(files[-1], dpi=120, metadata={"Software": SOFTWARE})
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; the pictures cannot be written") from None
    return tuple(files)


def _free_name(folder: Path, title: str, taken: Sequence[Path]) -> Path:
    stem = re.sub(r"[^A-Za-z0-9._]+", "-", title).strip("-.") or "history"
    names = (f"{stem}{'' if i == 1 else f'-{i}'}.png" for i in range(1, len(taken) + 2))
    return next(folder / name for name in names if folder / name not in taken)


def _draw(make_figure: Any, title: str, all_series: Sequence[Series]) -> Any:
    n = max(len(all_series), 1)
    figure = make_figure(figsize=(_WIDTH_INCHES, _PANEL_INCHES * n + 0.6), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(n, 1, squeeze=False)[:, 0]
    for axes, series in zip(panels, all_series, strict=False):
        _draw_points(axes, series)
        _draw_levels(axes, series)
        _label(axes, series)
    return figure


def _draw_points(axes: Any, series: Series) -> None:
    for i, entry in enumerate(series.entries):
        if (interval := entry.intervals.get(series.key)) is not None:
            low, high = (end / series.scale for end in interval)
            axes.plot((i, i), (low, high), color=_BLUE, alpha=0.4, linewidth=2)
    shown = [value / series.scale for value in series.values]
    axes.plot(range(len(shown)), shown, "o", color=_BLUE, markersize=4)


def _draw_levels(axes: Any, series: Series) -> None:
    """The median of each level, and a line where a new one begins."""
    edges = [0, *(change.index for change in series.changes), len(series.values)]
    levels = [c.before for c in series.changes[:1]] + [c.after for c in series.changes]
    levels = levels or [statistics.median(series.values)]
    for level, start, end in zip(levels, edges, edges[1:], strict=False):
        axes.plot((start - 0.5, end - 0.5), [level / series.scale] * 2, color=_BLUE, alpha=0.6)
    for change in series.changes:
        axes.axvline(change.index - 0.5, color=_RED, linestyle="--", linewidth=1)
        axes.annotate(
            f"{change.ratio - 1:+.1%}",
            (change.index - 0.5, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -12),
            textcoords="offset points",
            color=_RED,
        )


def _label(axes: Any, series: Series) -> None:
    """Each build once, where its results begin; few enough to be read."""
    starts = [i for i, entry in enumerate(series.entries) if _is_new(series.entries, i, entry)]
    step = -(-len(starts) // _LABELS_MAX)
    shown = starts[::step]
    labels = [series.entries[i].build for i in shown]
    axes.set_xticks(shown, labels, rotation=30, ha="right")
    axes.set_ylabel(series.title)
    tops = [e.intervals.get(series.key, (0, e.values[series.key]))[1] for e in series.entries]
    axes.set_ylim(0, _HEADROOM * max(*tops, *series.values) / series.scale or 1)
    axes.set_xlim(-1, len(series.entries))
    axes.grid(visible=True, axis="y", alpha=0.3)


def _is_new(entries: Sequence[HistoryEntry], i: int, entry: HistoryEntry) -> bool:
    return i == 0 or entries[i - 1].build != entry.build
