"""How is a server's output kept, in a file and in memory, so that it never blocks the server?

A thread drains the pipe whatever happens to the file: on a full disk the server
goes on, the last lines stay in memory for diagnosis, and it is said once.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from offload.errors import UsageError

_LINES_MAX: Final = 4000
"""Enough for all that one loading says, and for the last words of any server."""
_LINE_MAX_BYTES: Final = 16 << 10
_CHUNK_BYTES: Final = 64 << 10
_JOIN_TIMEOUT_S: Final = 5.0


class LogFile:
    """An append-only file that may become unwritable; `say` is told once each time it does."""

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        """Open `path`, or a private temporary file; UsageError where `path` cannot be opened."""
        self._say = say
        self._is_lost = False
        self._fd: int | None = None
        self._is_ours = path is None
        self.path = path
        if path is None:
            self._open_temporary()
            return
        # not blocking: a named pipe that nobody reads must stop neither us nor the server
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise UsageError(f"--log {path}: {error.strerror}; name a file to write to") from None
        if _is_no_log(path):
            self.close()
            raise UsageError(f"--log {path} is a model or a plan; name a file to write to")

    def _open_temporary(self) -> None:
        try:
            self._fd, name = tempfile.mkstemp(prefix="offload-serve-", suffix=".log")
        except OSError as error:
            self._say(f"no log file ({error.strerror}); its last lines are kept in memory")
        else:
            self.path = Path(name)

    def write(self, data: bytes) -> None:
        """Append, if it can be."""
        if self._fd is None:
            return
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            if not self._is_lost:
                self._is_lost = True
                self._say(
                    f"the log {self.path} cannot be written ({error.strerror}); the server goes"
                    " on, its last lines are kept in memory"
                )
            return
        if self._is_lost:
            self._is_lost = False
            self._say(f"the log {self.path} is written again")

    def close(self) -> None:
        """Close; a temporary file that nothing was written to goes away."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            if self._is_ours and self.path is not None and not os.fstat(self._fd).st_size:
                self.path.unlink()
            os.close(self._fd)
        self._fd = None


def _is_no_log(path: Path) -> bool:
    """Whether a log would spoil what is there: a mistyped command, or a link."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            start = file.read(64)
        return start.startswith(b"GGUF") or (start[:1] == b"{" and b'"schema_version"' in start)
    except OSError:
        return False


class LogPump:
    """Reads one process's output to its end, in a thread of its own."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._lines: deque[str] = deque(maxlen=_LINES_MAX)
        self._rest = b""
        self._lock = threading.Lock()
        self.n_lines = 0
        read_fd, write_fd = os.pipe()
        self._read_fd = read_fd
        self.write_fd: int | None = write_fd
        self._thread = threading.Thread(target=self._pump, daemon=True, name="llama-server log")
        self._thread.start()

    def started(self) -> None:
        """The process has its end of the pipe: let go of ours, so that its end is seen."""
        if self.write_fd is not None:
            os.close(self.write_fd)
            self.write_fd = None

    def lines(self, since: int = 0) -> list[str]:
        """The last lines, the oldest first; with `since` those after that many (`n_lines`)."""
        with self._lock:
            rest = [_text(self._rest)] if self._rest else []
            n_wanted = max(self.n_lines - since, 0)
            kept = list(self._lines)
            return [*kept[max(len(kept) - n_wanted, 0) :], *rest]

    def close(self) -> None:
        """Wait until all is read; whoever still holds the pipe after a while is not waited for."""
        self.started()
        self._thread.join(_JOIN_TIMEOUT_S)

    def _pump(self) -> None:
        try:
            while chunk := os.read(self._read_fd, _CHUNK_BYTES):
                self._file.write(chunk)
                self._take(chunk)
        finally:
            os.close(self._read_fd)

    def _take(self, chunk: bytes) -> None:
        with self._lock:
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            self._lines.extend(_text(line) for line in whole)
            self.n_lines += len(whole)
            if len(self._rest) > _LINE_MAX_BYTES:
                self._lines.append(_text(self._rest))
                self.n_lines += 1
                self._rest = b""


def _text(line: bytes) -> str:
    return line[:_LINE_MAX_BYTES].decode(errors="replace").rstrip("\r")
