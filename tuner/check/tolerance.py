"""By how much may a size differ before it counts?"""

from __future__ import annotations

from dataclasses import dataclass

from offload.errors import UsageError
from offload.units import parse_size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """A share of what was recorded, or bytes; the larger counts."""

    share: float = 0.0
    n_bytes: int = 0

    def allows(self, was: int, now: int, *, slack_bytes: int = 0) -> bool:
        """Whether `now` counts as what it was."""
        return abs(now - was) <= max(self.share * was, self.n_bytes, slack_bytes)


def parse_tolerance(text: str, what: str) -> Tolerance:
    """`1%`, `64MiB`, or `0`; UsageError names `what`."""
    if not text.endswith("%"):
        n_bytes = 0 if text == "0" else parse_size_bytes(text, what)
        return Tolerance(n_bytes=n_bytes)
    try:
        share = float(text[:-1]) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"{what} {text!r}: write it like 1%, 64MiB or 0")
    return Tolerance(share=share)
