"""How do signals become a wish to stop, which a loop looks at when it can?"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_LOOK_S: Final = 0.05


class Flag:
    """What `threading.Event` is, for signal handlers.

    An Event is set under a lock that the very code that was interrupted may hold, while it
    waits or is about to: then its own handler never returns. Setting this takes none.
    """

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """From now on."""
        self._is_set = True

    def is_set(self) -> bool:
        """Whether it was."""
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Until it is set, or for so long; whether it is set."""
        deadline_s = time.monotonic() + timeout_s
        while not self._is_set and (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))
        return self._is_set


@dataclass(slots=True)
class StopRequest:
    """Set by signal handlers: `stop` to end in good order, `hurry` to end now."""

    stop: Flag = field(default_factory=Flag)
    hurry: Flag = field(default_factory=Flag)
    signal_number: int | None = None

    def __call__(self, number: int, _frame: object = None) -> None:
        """A signal came; the second one hurries."""
        if self.stop.is_set():
            self.hurry.set()
        self.signal_number = self.signal_number or number
        self.stop.set()


@contextlib.contextmanager
def stop_on_signals(*, to_the_end: bool = False) -> Iterator[StopRequest]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request for the length of the `with` block.

    `to_the_end`: the process is about to end then, and no signal changes that any more.
    """
    request = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup and shells that start us in the background have a say
    heard = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, request) for number in heard}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if to_the_end else handler)
