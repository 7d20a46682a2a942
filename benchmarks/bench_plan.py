"""How long does a plan take from process start to exit, beside everything else that plans?

The model is Kimi-K2's true header (61 layers, 1096 tensors, a 164k-entry
vocabulary) over a hole. Commands run in turns, a fresh process each time, so
that a drifting machine slows all of them alike; wall time from start to exit,
peak memory from the kernel's account of the finished child. Only programs that
are found are run; name others with --also.

    python -m benchmarks.bench_plan [--rounds 9] [--also "NAME=COMMAND {model}"]
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Final

CARDS: Final = "--gpus 2 --vram 24GiB --host-ram 1024GiB"
READ_ALL: Final = "import gguf, sys; gguf.GGUFReader(sys.argv[1])"
CANDIDATES: Final = {
    "python -c pass": f"{shlex.quote(sys.executable)} -c pass",
    "offload inspect": f"{shlex.quote(sys.executable)} -m offload inspect {{model}}",
    "offload plan": f"{shlex.quote(sys.executable)} -m offload plan {{model}} {CARDS}",
    "moefit plan": "moefit plan {model}",
    "mdl fit": "mdl fit {model}",
    "llama-fit-params": "llama-fit-params -m {model} -c 32768",
    "gguf.GGUFReader": f"{shlex.quote(sys.executable)} -c {shlex.quote(READ_ALL)} {{model}}",
}
"""`offload plan` and the peers; a program that is not on PATH is left out and said to be."""


@dataclass(slots=True, kw_only=True)
class Timing:
    """Samples of one command."""

    wall_s: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    exit_code: int = 0


def run_once(argv: Sequence[str], timing: Timing) -> None:
    """Run a command to its end and keep its wall time and peak memory."""
    started = time.perf_counter()
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    timing.wall_s.append(time.perf_counter() - started)
    timing.peak_bytes.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
    timing.exit_code = child.returncode = os.waitstatus_to_exitcode(status)


def commands(also: Sequence[str], model: Path) -> dict[str, list[str]]:
    """Name to argv of every command that can run here."""
    listed = dict(CANDIDATES) | dict(text.split("=", 1) for text in also)
    found = {}
    for name, text in listed.items():
        argv = [part.replace("{model}", str(model)) for part in shlex.split(text)]
        if which(argv[0]):
            found[name] = argv
        else:
            print(f"{name}: {argv[0]} is not here, left out")
    return found


def report(timings: Mapping[str, Timing]) -> None:
    """Median, spread and ratio to `offload plan`, one row per command."""
    base = statistics.median(timings["offload plan"].wall_s)
    print(
        f"{'command':20} {'median s':>9} {'min':>7} {'max':>7} {'x plan':>7} {'peak MiB':>9} exit"
    )
    for name, timing in timings.items():
        median = statistics.median(timing.wall_s)
        print(
            f"{name:20} {median:9.3f} {min(timing.wall_s):7.3f} {max(timing.wall_s):7.3f}"
            f" {median / base:7.2f} {max(timing.peak_bytes) / 2**20:9.1f} {timing.exit_code}"
        )


def main() -> int:
    """Time everything in turns and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND {model}")
    parser.add_argument("--shape", default="kimi-k2")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model.gguf"
        # written by another process: a child's peak counts what its parent held when it forked
        make = ["-m", "tuner.synth", "shape", args.shape, str(model), "--vocab", "full"]
        subprocess.run([sys.executable, *make], check=True, stdout=subprocess.DEVNULL)
        listed = commands(args.also, model)
        timings = {label: Timing() for label in listed}
        for i in range(args.rounds + 1):
            for label, argv in listed.items():
                # the first round only warms the page cache
                run_once(argv, timings[label] if i else Timing())
        report(timings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
