"""How far has llama-server loaded, and has it hung?

There is no fixed time-out: 600 GB from a slow disk may take an hour. What is
bounded is the time without any sign of life, and the bound grows with the bytes to
load and shrinks with the rate at which they come. Signs of life are bytes read
(`/proc/PID/io`, or pages of a mapped file), lines of the log, and processor time: a
mapped file is often read at once and then sent to the cards without a word, and
shaders are compiled so. Work alone keeps it alive for ten times the bound. Pure:
times go in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_WORKING_SHARE: Final = 0.02
"""Processor seconds per second. Sending to an RPC server takes 0.2, waiting for one that is
frozen 0.002 (b11434, asked for its health ten times a second)."""
_WINDOW_S: Final = 2.0
_WORK_FACTOR: Final = 10.0
_RATE_TRUSTED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a silence may last: `quiet_min_s`, and `share` of the whole expected load."""

    quiet_min_s: float = 60.0
    share: float = 0.5
    assumed_bytes_per_s: float = 100e6
    """A slow disk's or network's rate: until one is measured, and once all is read and may have
    yet to reach the cards."""

    def quiet_max_s(self, total_bytes: int, bytes_per_s: float | None) -> float:
        """The longest silence that is still no hang."""
        return self.quiet_min_s + self.share * total_bytes / (
            bytes_per_s or self.assumed_bytes_per_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far it is; `bytes_per_s` is None until there is something to measure."""

    done_bytes: int
    total_bytes: int
    elapsed_s: float
    bytes_per_s: float | None

    @property
    def percent(self) -> int:
        """0 to 100."""
        return 100 * self.done_bytes // self.total_bytes if self.total_bytes else 0


class LoadWatch:
    """Follows one loading; `see` is told what the process shows, every now and then."""

    def __init__(self, total_bytes: int, at_s: float, patience: Patience) -> None:
        self._total_bytes = total_bytes
        self._patience = patience
        self._start_s = self._sign_s = self._work_s = at_s
        self._done_bytes = 0
        self._done_at_s = at_s
        self._n_lines = 0
        self._window = (at_s, 0.0)

    def see(self, at_s: float, *, done_bytes: int, n_lines: int, cpu_s: float) -> LoadProgress:
        """Take in how many bytes were read, lines logged and processor seconds used so far."""
        done = min(max(done_bytes, self._done_bytes), self._total_bytes)
        if done > self._done_bytes or n_lines > self._n_lines:
            self._sign_s = at_s
        if done > self._done_bytes:
            self._done_at_s = at_s
        self._done_bytes, self._n_lines = done, n_lines
        since_s, cpu_before_s = self._window
        if at_s - since_s >= _WINDOW_S:
            if cpu_s - cpu_before_s >= _WORKING_SHARE * (at_s - since_s):
                self._work_s = at_s
            self._window = (at_s, cpu_s)
        return self.progress(at_s)

    def progress(self, at_s: float) -> LoadProgress:
        """How far it is."""
        return LoadProgress(
            done_bytes=self._done_bytes,
            total_bytes=self._total_bytes,
            elapsed_s=at_s - self._start_s,
            bytes_per_s=self._bytes_per_s(),
        )

    def quiet_max_s(self) -> float:
        """How long it may do nothing at all."""
        rate = self._bytes_per_s()
        if rate is not None and self._done_bytes >= self._total_bytes:
            rate = min(rate, self._patience.assumed_bytes_per_s)
        return self._patience.quiet_max_s(self._total_bytes, rate)

    def is_hung(self, at_s: float) -> bool:
        """Whether it has done nothing, or only worked in silence, for longer than is explained."""
        longest_s = self.quiet_max_s()
        idle_s, silent_s = at_s - max(self._sign_s, self._work_s), at_s - self._sign_s
        return idle_s > longest_s or silent_s > _WORK_FACTOR * longest_s

    def _bytes_per_s(self) -> float | None:
        """Of the time in which bytes came: what follows the last byte says nothing about it."""
        span_s = self._done_at_s - self._start_s
        if self._done_bytes < _RATE_TRUSTED_BYTES or span_s <= 0:
            return None
        return self._done_bytes / span_s
