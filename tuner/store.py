"""How do samples survive whatever ends a sweep?

One JSON object per line, each written at once and forced to the disk before the next
run starts. A kill in the middle of a write leaves a torn last line, which the next
opening cuts off; nothing else can be lost. [edge]
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from offload.errors import OffloadError, UsageError

SCHEMA_VERSION: Final = 1
_LINE_MAX_BYTES: Final = 1 << 20
_FILE_MAX_BYTES: Final = 256 << 20


class SampleLog:
    """The file of one sweep, open for appending; nobody else can append meanwhile."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open or create the file; raises UsageError where that cannot be done."""
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror}; samples cannot be kept") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise UsageError(
                f"{self.path}: another offload bench is at it; wait for it, or name another"
                " --profile"
            ) from None
        self._end = self._cut_torn_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row and force it to the disk.

        Raises OffloadError where that fails; the file then ends as it did before.
        """
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        try:
            n_written = os.pwrite(self._fd, line, self._end)
            if n_written != len(line):  # the rest would not fit either
                os.pwrite(self._fd, line[n_written:], self._end + n_written)
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise OffloadError(
                f"{self.path}: a sample could not be kept: {error.strerror}; free some space"
            ) from None
        self._end += len(line)

    def rows(self) -> tuple[dict[str, Any], ...]:
        """Every row there is."""
        return parse_rows(os.pread(self._fd, min(self._end, _FILE_MAX_BYTES), 0), self.path)

    def clear(self) -> None:
        """Forget every row."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
        self._end = 0

    def remove(self) -> None:
        """Delete the file: what it held is elsewhere now."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _cut_torn_line(self) -> int:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            return 0
        size = end = os.fstat(self._fd).st_size
        while end:
            start = max(0, end - _LINE_MAX_BYTES)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end != size:
            os.ftruncate(self._fd, end)
        return end


def read_samples(path: str | os.PathLike[str]) -> tuple[dict[str, Any], ...]:
    """The rows of a file that nobody writes now, a torn last line left out.

    Raises UsageError where it cannot be read or holds something else.
    """
    try:
        with open(path, "rb") as file:
            return parse_rows(file.read(_FILE_MAX_BYTES), Path(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; no samples to read") from None


def parse_rows(raw: bytes, path: Path) -> tuple[dict[str, Any], ...]:
    """Rows of complete lines; UsageError names the line that is none of ours."""
    rows = []
    lines = raw.split(b"\n")[:-1]  # what follows the last newline is torn or nothing
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {number}: no JSON object; is this a file of samples?")
        if row.get("schema_version") != SCHEMA_VERSION:
            raise UsageError(
                f"{path}, line {number}: samples of another version of offload; move the file away"
            )
        rows.append(row)
    return tuple(rows)
