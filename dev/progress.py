"""How far is a build, and if it fails, why?"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dev.environment import say

STEP: Final = re.compile(r"\s*\[\s*(\d+(?:/\d+|%))\]")
"""What ninja ([3/40]) or make ([ 7%]) say is done."""
QUIET_S = 20.0
"""Between two lines of progress where no one watches."""


def follow(
    program: Sequence[str | Path], *args: str | Path, log: Path, env: Mapping[str, str]
) -> None:
    """Run a step of a build with its output in `log` (NAME-KEY.log), and its progress on stderr."""
    title = log.stem.rpartition("-")[0]
    start_s, shown_s, watched = time.monotonic(), 0.0, sys.stderr.isatty()
    process = subprocess.Popen(
        [*program, *args],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    with process, log.open("a", errors="replace") as file:
        try:
            for line in process.stdout:
                file.write(line)
                passed_s = time.monotonic() - start_s
                step = STEP.match(line)
                if step and (watched or passed_s - shown_s >= QUIET_S):
                    shown_s = passed_s
                    say(f"{title}: {step[1]}, {clock(passed_s)}", end="\r" if watched else "\n")
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)  # with all of its compilers
            raise
    if watched and shown_s:
        say("")
    if process.returncode:
        last = "".join(f"    {line}\n" for line in log.read_text().splitlines()[-15:])
        sys.exit(
            f"{last}{title}: the build failed, exit code {process.returncode}; all it said is in"
            f" {log}\nIf memory is short, CMAKE_BUILD_PARALLEL_LEVEL=1 may help."
        )


def clock(seconds: float) -> str:
    """Minutes and seconds, as 4:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
