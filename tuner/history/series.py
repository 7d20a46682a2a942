"""Which results belong on one line, in which order?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tuner.history.change_points import ChangePoint, change_points
from tuner.history.log import HistoryEntry

TITLES: Final = {
    "decode_t_s": "decode (t/s)",
    "prefill_t_s": "prefill (t/s)",
    "memory_bytes": "memory (MiB)",
}
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One quantity over the builds: entries that have it, its values, and where it changed."""

    key: str
    entries: tuple[HistoryEntry, ...]
    changes: tuple[ChangePoint, ...]

    @property
    def title(self) -> str:
        """For a heading; bytes are shown in MiB."""
        return TITLES.get(self.key, self.key.replace("_bytes", " (MiB)"))

    @property
    def scale(self) -> float:
        """What a value is divided by when it is shown."""
        return _MIB if self.is_exact else 1.0

    @property
    def is_exact(self) -> bool:
        """Whether it is counted and not timed."""
        return self.key.endswith("_bytes")

    @property
    def values(self) -> tuple[float, ...]:
        """In the order of the entries."""
        return tuple(entry.values[self.key] for entry in self.entries)


def group_entries(
    entries: Iterable[HistoryEntry],
) -> dict[tuple[str, str], tuple[HistoryEntry, ...]]:
    """By name and machine, each in the order of builds."""
    groups: dict[tuple[str, str], list[HistoryEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.name, entry.machine), []).append(entry)
    return {key: _in_order(group) for key, group in groups.items()}


def _in_order(entries: Sequence[HistoryEntry]) -> tuple[HistoryEntry, ...]:
    """By build number, so that an old build timed today stands where it belongs; else by time."""
    numbers = [entry.build_number for entry in entries]
    if None in numbers:
        return tuple(sorted(entries, key=lambda entry: entry.created))
    return tuple(sorted(entries, key=lambda entry: (entry.build_number or 0, entry.created)))


def make_series(entries: Sequence[HistoryEntry]) -> tuple[Series, ...]:
    """The quantities of one group: decode, prefill and memory first, then the others."""
    keys = [key for key in TITLES if any(key in entry.values for entry in entries)]
    keys += sorted({key for entry in entries for key in entry.values} - set(keys))
    found = []
    for key in keys:
        those = tuple(entry for entry in entries if key in entry.values)
        series = Series(key=key, entries=those, changes=())
        changes = change_points(series.values, is_exact=series.is_exact)
        found.append(Series(key=key, entries=those, changes=changes))
    return tuple(found)
