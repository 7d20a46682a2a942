"""How are a header's bytes read without trusting a single length in them?

Knows no format, only the file's size: every read is bounded by it and by the caps, and every
failed read is one GGUFError that says what could not be read and where.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from offload.errors import GGUFError

MAX_HEADER_BYTES: Final = 128 << 20
MAX_KEPT_BYTES: Final = 8 << 20  # of keys and values together

DAMAGED: Final = "the file is damaged: download it again"
INCOMPLETE: Final = "the download is incomplete or the file damaged: resume it or download again"

_WINDOW_BYTES: Final = 1 << 20
_SHOWN_MAX: Final = 80
_U64: Final = struct.Struct("<Q")
_RUN_STRINGS: Final = 128
_USUAL_LENGTHS: Final = (6, 7, 5, 8, 4, 9, 3, 10, 11, 12, 2, 13, 14, 15, 16, 1, *range(17, 49))
"""Bytes of a vocabulary's strings, the frequent ones first."""

ReadAt: TypeAlias = Callable[[int, int], bytes]


def printable(text: str) -> str:
    """`text` with control and other unprintable characters escaped, safe for a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shortened(text: str) -> str:
    """The beginning of a text from a file, for a message of one line."""
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


@functools.cache
def _short_strings() -> re.Pattern[bytes]:
    """A run of strings of usual lengths, each behind its length, without going back into one.

    The regex engine steps over a vocabulary in half the time of a loop over its lengths.
    """
    each = b"|".join(re.escape(_U64.pack(n)) + b".{%d}" % n for n in _USUAL_LENGTHS)
    return re.compile(b"(?:%s){%d}+" % (each, _RUN_STRINGS), re.DOTALL)


class HeaderBytes:
    """The file's bytes, front to back through a window that never reaches behind its end.

    `key` is the metadata key or tensor being read, for errors.
    """

    __slots__ = ("_base", "_file_bytes", "_index", "_kept_bytes", "_path", "_read_at", "_window",
                 "key")  # fmt: skip

    def __init__(self, read_at: ReadAt, file_bytes: int, path: str) -> None:
        self._read_at = read_at
        self._file_bytes = file_bytes
        self._path = path
        self._window = b""
        self._base = 0
        self._index = 0
        self._kept_bytes = 0
        self.key = ""

    @property
    def offset(self) -> int:
        """Where in the file the next read begins."""
        return self._base + self._index

    def error(self, message: str, offset: int | None = None) -> GGUFError:
        """The error to raise, located at `offset` or where reading stands."""
        return GGUFError(
            printable(message),
            path=printable(self._path),
            offset_bytes=self.offset if offset is None else offset,
            key=shortened(self.key),
        )

    def check_room(self, n_bytes: int, what: str) -> None:
        """Refuse `what` when its bytes cannot be there."""
        left = self._file_bytes - self.offset
        if n_bytes > left:
            raise self.error(
                f"the file ends inside {what} ({n_bytes} bytes needed, {left} left); {INCOMPLETE}"
            )
        if self.offset + n_bytes > MAX_HEADER_BYTES:
            raise self.error(
                f"{what} would make the header longer than {MAX_HEADER_BYTES >> 20} MiB; {DAMAGED}"
            )

    def check_count(self, n: int, what: str, n_max: int, each_bytes: int) -> None:
        """Refuse a count above its cap, or of more things than the file has room for."""
        room = (self._file_bytes - self.offset) // each_bytes
        if n > n_max:
            raise self.error(f"the header claims {n} {what}, more than {n_max}; {DAMAGED}")
        if n > room:
            raise self.error(
                f"the header claims {n} {what}, the file has room for {room}; {INCOMPLETE}"
            )

    def keep(self, n_bytes: int) -> None:
        """Count bytes that stay in memory; no sum of small values may add up to gigabytes."""
        self._kept_bytes += n_bytes
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise self.error(f"metadata of more than {MAX_KEPT_BYTES >> 20} MiB; {DAMAGED}")

    def peek(self, n_bytes: int) -> bytes:
        """Up to `n_bytes` of the next bytes, fewer at the end; the reader stays where it is."""
        if self._index + n_bytes > len(self._window):
            self._move_window(0, "the first bytes")
        return self._window[self._index : self._index + n_bytes]

    def unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        """The next values, as `layout` lays them out."""
        start = self._claim(layout.size, what)
        return layout.unpack_from(self._window, start)

    def take(self, n_bytes: int, what: str) -> bytes:
        """The next `n_bytes` bytes."""
        start = self._claim(n_bytes, what)
        return self._window[start : start + n_bytes]

    def take_string(self, what: str, max_bytes: int) -> bytes:
        """The next string, which may have up to `max_bytes` bytes."""
        (n_bytes,) = self.unpack(_U64, what)
        if n_bytes > max_bytes:
            raise self.error(f"{what} of {n_bytes} bytes, more than {max_bytes}; {DAMAGED}")
        return self.take(n_bytes, what)

    def skip(self, n_bytes: int, what: str) -> None:
        """Step over bytes without reading them."""
        self.check_room(n_bytes, what)
        self._index += n_bytes

    def skip_strings(self, n_strings: int, what: str) -> None:
        """Step over strings by their lengths: the one hot loop, 300 000 times in a big header."""
        start = self.offset
        length_at = _U64.unpack_from
        match_run = _short_strings().match if n_strings > _RUN_STRINGS else None
        n_left = n_strings
        while n_left:
            window, index = self._window, self._index
            while match_run and n_left >= _RUN_STRINGS and (run := match_run(window, index)):
                index = run.end()
                n_left -= _RUN_STRINGS
            n_next = min(n_left, _RUN_STRINGS)
            n_left -= n_next
            try:
                for n_next in range(n_next, 0, -1):  # noqa: B007, B020 - where it stops counts
                    index += 8 + length_at(window, index)[0]
                n_next = 0
            except (struct.error, OverflowError):  # the next length is not in the window
                pass
            n_left += n_next
            self._index = index
            if self.offset > self._file_bytes:
                raise self.error(
                    f"the file ends inside string {n_strings - n_left} of {n_strings} of {what}; "
                    f"{INCOMPLETE}",
                    start,
                )
            if n_next:
                self._move_window(8, what)

    def _claim(self, n_bytes: int, what: str) -> int:
        """Where in the window the next `n_bytes` bytes stand; the reader moves behind them."""
        if self._index + n_bytes > len(self._window):
            self._move_window(n_bytes, what)
        start = self._index
        self._index = start + n_bytes
        return start

    def _move_window(self, n_bytes: int, what: str) -> None:
        """Bring at least the next `n_bytes` bytes into the window."""
        self.check_room(n_bytes, what)
        offset = self.offset
        window = self._read_at(offset, min(max(n_bytes, _WINDOW_BYTES), self._file_bytes - offset))
        if len(window) < n_bytes:
            raise self.error(
                f"only {len(window)} bytes of {what} could be read, {n_bytes} needed; {INCOMPLETE}"
            )
        self._window, self._base, self._index = window, offset, 0
