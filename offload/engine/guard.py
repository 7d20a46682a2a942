"""How does a program of somebody else die with us, whatever kills us?

`python -m offload.engine.guard FD PROGRAM ARGS…` runs the program and watches
the read end of a pipe that only our own process holds the write end of: when
that closes, for whatever reason, the program is killed. Where the kernel can
(Linux), the program is also tied to the guard itself, so that killing the
guard with SIGKILL leaves no orphan either. SIGTERM is passed on: it is how the
program is asked to end in its own time. Exits as the program does, 128 + signal
when a signal ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

EXIT_REFUSED = 3
"""Exit code of a child of ours that replied with an error instead of an answer."""
_PR_SET_PDEATHSIG = 1


def watch_lifeline(fd: int, on_loss: Callable[[], None]) -> None:
    """Call `on_loss` in a thread of its own once the other end of pipe `fd` is gone."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(fd, 1):
                pass
        on_loss()

    threading.Thread(target=wait, daemon=True).start()


def _die_with_parent() -> None:
    """Ask Linux to kill this process when the thread that started it ends."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(argv: list[str]) -> int:
    """Run `argv[1:]` until it ends or lifeline `argv[0]` is lost; its exit code."""
    import subprocess

    # the guard has one thread here and outlives its child, so both caveats of
    # preexec_fn and PR_SET_PDEATHSIG (threads, the starting thread's end) do not apply
    preexec = _die_with_parent if sys.platform == "linux" else None
    try:
        program = subprocess.Popen(argv[1:], stdin=subprocess.DEVNULL, preexec_fn=preexec)
    except OSError as error:
        print(f"cannot run {argv[1]}: {error.strerror}", file=sys.stderr)
        return 127

    def kill() -> None:
        program.kill()
        program.wait()
        os._exit(128 + signal.SIGKILL)

    watch_lifeline(int(argv[0]), kill)
    signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    code = program.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
