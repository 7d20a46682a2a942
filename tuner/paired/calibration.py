"""Is the machine itself as fast as it was when a baseline was recorded?

Two fixed pieces of work that no build of llama.cpp changes: copying memory, as decoding is
bound by it, and hashing, as prefill is bound by computing. They see clocks, heat and other
programs; they do not see what happens on a card.
"""

from __future__ import annotations

import hashlib
import time
from typing import Final

_COPIED_BYTES: Final = 32 << 20
_HASHED_BYTES: Final = 1 << 20
KINDS: Final = ("copy", "hash")


class Calibration:
    """The work, ready to be done; about 10 ms each time."""

    def __init__(self) -> None:
        self._source = memoryview(bytearray(b"\xa5" * _COPIED_BYTES))
        self._target = memoryview(bytearray(_COPIED_BYTES))
        self.seconds()  # the first touch of memory is the kernel's work

    def seconds(self) -> dict[str, float]:
        """How long each piece took just now."""
        start_s = time.perf_counter()
        self._target[:] = self._source
        copied_s = time.perf_counter()
        hashlib.sha256(self._source[:_HASHED_BYTES]).digest()
        return {"copy": copied_s - start_s, "hash": time.perf_counter() - copied_s}
