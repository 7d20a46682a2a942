"""How does a history of results live in one file that many runs append to at once?

One JSON object per line. Whoever appends holds the file's lock, writes whole lines at its
end and forces them to the disk, so neither runs at the same time nor a kill lose what
others wrote; what a kill left half written is no line and is cut off by the next append. [edge]
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from offload.errors import OffloadError, UsageError

SCHEMA_VERSION: Final = 1
_FILE_MAX_BYTES: Final = 256 << 20
_BUILD_NUMBER: Final = re.compile(r"b?(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One result: what was measured (`name`), where (`machine`), with which `build`, and when.

    `values` are by name with the unit as suffix: `decode_t_s` and `prefill_t_s` (tokens per
    second), `memory_bytes` for all devices, and whatever else one cares to follow.
    `intervals` are low and high ends of some of them, `verdicts` words about some of them.
    `created` is UTC, e.g. 2026-12-01T10:00:00Z.
    """

    name: str
    build: str
    created: str
    machine: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)

    @property
    def build_number(self) -> int | None:
        """11434 of `b11434`; None for builds that are not counted so."""
        match = _BUILD_NUMBER.fullmatch(self.build)
        return int(match[1]) if match else None


def append_history(
    path: str | os.PathLike[str], entries: HistoryEntry | Iterable[HistoryEntry]
) -> None:
    """Add results to the file, made if it is not there; they are on the disk when this returns.

    Waits for others who are appending. Raises UsageError where the file cannot be written
    to, OffloadError where the disk takes no more (the file then ends as it did before).
    """
    rows = [entries] if isinstance(entries, HistoryEntry) else list(entries)
    lines = "".join(_to_line(row) for row in rows).encode()
    if not lines:
        return
    with _locked(Path(path)) as fd:
        end = _whole_lines_end(fd)
        try:
            if end < os.fstat(fd).st_size:
                os.ftruncate(fd, end)
            _write_all(fd, lines, end)
            os.fsync(fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, end)
            raise OffloadError(
                f"{path}: the history could not be written: {error.strerror}; free some space"
            ) from None


def read_history(path: str | os.PathLike[str]) -> tuple[HistoryEntry, ...]:
    """Every result in the file, in its order; a half-written last line is left out.

    Raises UsageError that names the line which is none of ours.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; no history to read") from None
    if len(raw) > _FILE_MAX_BYTES:
        raise UsageError(f"{path}: larger than {_FILE_MAX_BYTES >> 20} MiB; no history of ours")
    *lines, torn = raw.split(b"\n")
    found = [_parse_line(line, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line]
    if torn.strip() and _is_object(torn):  # written by hand, without the last newline
        found.append(_parse_line(torn, f"{path}, line {len(lines) + 1}"))
    return tuple(found)


def _to_line(entry: HistoryEntry) -> str:
    numbers = [*entry.values.values(), *(x for pair in entry.intervals.values() for x in pair)]
    if not all(math.isfinite(number) for number in numbers):
        raise UsageError(f"the result of {entry.name!r} has numbers that are none")
    return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(entry)}, allow_nan=False) + "\n"


def _parse_line(line: bytes, where: str) -> HistoryEntry:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: no JSON object; mend or delete this line")
    if row.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"{where}: schema_version {row.get('schema_version')!r}, this offload reads"
            f" {SCHEMA_VERSION}; use the offload that wrote it, or another file"
        )
    try:
        return _entry(row)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error} is missing or not as we write it") from None


def _entry(row: Mapping[str, Any]) -> HistoryEntry:
    values = {str(key): _number(value, key) for key, value in row["values"].items()}
    intervals = {
        str(key): (_number(low, key), _number(high, key))
        for key, (low, high) in row.get("intervals", {}).items()
    }
    texts = {key: _text(row[key], key) for key in ("name", "build", "created", "machine")}
    verdicts = {str(key): _text(value, key) for key, value in row.get("verdicts", {}).items()}
    return HistoryEntry(**texts, values=values, intervals=intervals, verdicts=verdicts)


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(repr(key))
    return value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise TypeError(repr(key))
    return value


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The open file, locked; a file that was replaced meanwhile is opened anew."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; the history cannot be kept") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_same_file(fd, path):
                yield fd
                return
        finally:
            os.close(fd)


def _is_same_file(fd: int, path: Path) -> bool:
    ours = os.fstat(fd)
    try:
        there = path.stat()
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _whole_lines_end(fd: int) -> int:
    """Where the next line may begin; a last line that only lacks its newline is given it."""
    size = os.fstat(fd).st_size
    raw = os.pread(fd, min(size, _FILE_MAX_BYTES), 0)
    whole, newline, torn = raw.rpartition(b"\n")
    if torn.strip() and _is_object(torn):
        _write_all(fd, b"\n", size)
        return size + 1
    return len(whole) + len(newline)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _write_all(fd: int, data: bytes, at: int) -> None:
    while data:
        n_written = os.pwrite(fd, data, at)
        data, at = data[n_written:], at + n_written
