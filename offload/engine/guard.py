"""How does a program of somebody else die with us, whatever kills us?

`python -m offload.engine.guard FD PROGRAM ARGS…` runs the program and watches
the read end of a pipe that only our own process holds the write end of: when
that closes, for whatever reason, the program is killed. Where the kernel can
(Linux), the program is also tied to the guard itself, so that killing the
guard with SIGKILL leaves no orphan either. SIGTERM is passed on: it is how the
program is asked to end in its own time. Exits as the program does, 128 + signal
when a signal ended it.

The program may be a script that starts the real one and waits for it, so all of its
group is meant, and on Linux whatever else it has started.
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
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS_MAX = 100


def watch_lifeline(fd: int, on_loss: Callable[[], None]) -> None:
    """Call `on_loss` in a thread of its own once the other end of pipe `fd` is gone."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(fd, 1):
                pass
        on_loss()

    threading.Thread(target=wait, daemon=True).start()


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    """Ask Linux to kill this process when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def _children() -> list[int]:
    """Of this process, as far as the system tells."""
    with contextlib.suppress(OSError, ValueError):
        tasks = [f"/proc/self/task/{task}/children" for task in os.listdir("/proc/self/task")]
        texts = [_text(task) for task in tasks]
        return [int(pid) for text in texts for pid in text.split()]
    return []


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()


def _kill_all(group: int) -> None:
    """Kill the group, and whatever is left below us: who loses a parent comes to us."""
    _signal_group(group, signal.SIGKILL)
    for _ in range(_ROUNDS_MAX):
        if not (children := _children()):
            return
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _reap_all() -> None:
    """Wait until nothing is left below us."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def main(argv: list[str]) -> int:
    """Run `argv[1:]` until it ends or lifeline `argv[0]` is lost; its exit code."""
    import subprocess

    # the guard has one thread here and outlives its child, so both caveats of
    # preexec_fn and PR_SET_PDEATHSIG (threads, the starting thread's end) do not apply
    preexec = None
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        preexec = _die_with_parent
    asked: list[int] = []
    groups: list[int] = []

    def stop(number: int, _frame: object) -> None:
        asked.append(number)
        for group in groups:
            _signal_group(group, signal.SIGTERM)

    # before there is a program: asked in between, we would end, and what a script started not
    signal.signal(signal.SIGTERM, stop)
    try:
        program = subprocess.Popen(
            argv[1:], stdin=subprocess.DEVNULL, preexec_fn=preexec, process_group=0
        )
    except OSError as error:
        print(f"cannot run {argv[1]}: {error.strerror}", file=sys.stderr)
        return 127
    groups.append(program.pid)
    if asked:
        _signal_group(program.pid, signal.SIGTERM)

    def kill() -> None:
        _kill_all(program.pid)
        os._exit(128 + signal.SIGKILL)

    watch_lifeline(int(argv[0]), kill)
    code = program.wait()
    if asked:
        _reap_all()  # a script may end before what it has started
    else:
        _kill_all(program.pid)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
