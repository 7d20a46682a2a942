"""How do signals become a wish to stop, which a loop looks at when it can?"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class StopRequest:
    """Set by signal handlers: `stop` to end in good order, `hurry` to end now."""

    stop: threading.Event = field(default_factory=threading.Event)
    hurry: threading.Event = field(default_factory=threading.Event)
    signal_number: int | None = None

    def __call__(self, number: int, _frame: object = None) -> None:
        """A signal came; the second one hurries."""
        if self.stop.is_set():
            self.hurry.set()
        self.signal_number = self.signal_number or number
        self.stop.set()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request for the length of the `with` block."""
    request = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup and shells that start us in the background have a say
    heard = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, request) for number in heard}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
