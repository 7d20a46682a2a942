"""Which text may be shown now, when tokens end inside characters and stop words inside tokens?

Pure. A token may end in the middle of a UTF-8 character, or of a stop word that
must not be shown: both are held back until what follows decides.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Bytes of tokens in, whole characters out, up to the first of the `stops`."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.is_stopped = False

    def add(self, piece: bytes) -> str:
        """The text that can be shown after this token; "" while it is undecided."""
        return self._take(self._decoder.decode(piece))

    def rest(self) -> str:
        """What was held back when nothing more will come."""
        shown = self._take(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return shown

    def _take(self, text: str) -> str:
        if not self._stops or self.is_stopped:
            return "" if self.is_stopped else text
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        n_undecided = max((self._overlap(stop) for stop in self._stops), default=0)
        n_shown = len(self._held) - n_undecided
        shown, self._held = self._held[:n_shown], self._held[n_shown:]
        return shown

    def _overlap(self, stop: str) -> int:
        """How many of the last characters may be the beginning of `stop`."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
