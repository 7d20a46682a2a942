"""Children and what they start end with us, whatever they say and however we were started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from offload.engine import process as process_module
from offload.engine.process import run_program, started
from offload.errors import LlamaCppError

WAIT_S = 60.0
SLEEP = "sleep 7654"
"""What a script of the user's starts instead of becoming it."""
pytestmark = pytest.mark.skipif(os.name != "posix", reason="shell scripts")


def sleepers(below: int) -> list[psutil.Process]:
    """The `sleep`s below a process."""
    found = psutil.Process(below).children(recursive=True)
    return [each for each in found if each.name() == "sleep"]


def await_true(what: Callable[[], object]) -> None:
    """Wait for it, for a minute at most."""
    deadline_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("text", [f"{SLEEP}; exit 0", f"setsid {SLEEP} & wait"])
def test_a_script_does_not_leave_its_program_behind(text: str) -> None:
    """A wrapper that does not `exec` is killed with what it has started."""
    with started(["sh", "-c", text], python=False, stdin=False, stderr=subprocess.PIPE) as guard:
        await_true(lambda: sleepers(guard.pid))
        left = sleepers(guard.pid)
    assert not any(each.is_running() for each in left)


def test_a_script_that_ends_takes_its_program_with_it() -> None:
    """A program that went to the background is nobody's any more."""
    ended = run_program(["sh", "-c", f"{SLEEP} & echo $!"], timeout_s=WAIT_S)
    assert ended.exit_code == 0
    assert not psutil.pid_exists(int(ended.stdout))


def test_a_script_asked_to_end_is_waited_for_with_its_program() -> None:
    """SIGTERM reaches the program too, which may take its time although the script is gone."""
    program = "trap 'sleep 0.3; echo done; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    script = ["sh", "-c", f'sh -c "{program}"; exit 0']
    with started(script, python=False, stdin=False, stderr=subprocess.PIPE) as guard:
        assert guard.stdout is not None
        assert guard.stdout.readline() == b"up\n"
        guard.send_signal(signal.SIGTERM)
        # the script ends by itself or by the signal, whichever is first; never the guard
        assert guard.wait(WAIT_S) in (0, 128 + signal.SIGTERM)
        assert guard.stdout.read() == b"done\n"


def test_a_program_that_talks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped before it fills our memory, and that is said."""
    monkeypatch.setattr(process_module, "_OUTPUT_MAX_BYTES", 1 << 20)
    for where in ("", " >&2"):
        with pytest.raises(LlamaCppError, match="says more than 1 MiB"):
            run_program(["sh", "-c", f"exec yes{where}"], timeout_s=WAIT_S)


@pytest.mark.parametrize("missing", [(0,), (1,), (2,), (0, 1, 2)])
def test_standard_streams_that_are_closed(missing: tuple[int, ...], tmp_path: Path) -> None:
    """`offload … <&- >&- 2>&-`: our pipes must not become the child's standard streams."""
    text = (
        "import sys; from pathlib import Path; from offload.engine.process import run_program;"
        "done = run_program(['sh', '-c', 'echo out; echo err >&2'], timeout_s=60);"
        "Path(sys.argv[1]).write_text(repr((done.exit_code, done.stdout, done.log)))"
    )

    def close() -> None:
        for fd in missing:
            os.close(fd)

    subprocess.run(
        [sys.executable, "-c", text, str(tmp_path / "said")],
        preexec_fn=close,
        timeout=WAIT_S,
        check=True,
    )
    assert (tmp_path / "said").read_text() == repr((0, b"out\n", ("err",)))
