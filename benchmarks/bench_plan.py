"""How long does a plan take from process start to exit, beside everything else that plans?

The model is Kimi-K2's true header (61 layers, 1096 tensors, a 164k-entry
vocabulary) over a hole, the machine has two cards of 24 GiB; llama-fit-params
gets them as virtual ones, PyPI's planners are told or find, and skip what they would measure.
Commands run in turns, a fresh process each time, so that a drifting machine slows
all of them alike. Everybody has bytecode: the first round, which is not counted,
writes it. Wall time is from start to exit, CPU time and peak memory are the
kernel's account of the finished child. Load above the number of cores makes wall
times worthless; CPU times then are still an upper bound.

    python -m benchmarks.bench_plan [--rounds 9] [--also "NAME=COMMAND {model}"]

PyPI's planners, whose command here is `moefit` and `mdl`, are run where they are on PATH
or given: --also "moefit plan=/path/to/moefit plan {model}".
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Final

from benchmarks.bench_header import READERS, measure
from offload.engine.binaries import find_binary
from offload.engine.virtual_cards import virtual_cards
from offload.errors import OffloadError
from offload.units import GIB

CARDS: Final = "--gpus 2 --vram 24GiB --host-ram 1024GiB"
READ_ALL: Final = "import gguf, sys; gguf.GGUFReader(sys.argv[1])"
PYTHON: Final = shlex.quote(sys.executable)
CANDIDATES: Final = {
    "python -c pass": f"{PYTHON} -c pass",
    "import typer": f"{PYTHON} -c 'import typer'",
    "offload inspect": f"{PYTHON} -m offload inspect {{model}}",
    "offload plan": f"{PYTHON} -m offload plan {{model}} {CARDS}",
    "moefit plan": "moefit plan {model} --vram-gb 48 --ram-gb 1024 --no-measure",
    "mdl fit": "mdl fit {model} --no-oracle",
    "llama-fit-params": "llama-fit-params -m {model} -c 32768 --rpc {rpc}",
    "gguf.GGUFReader": f"{PYTHON} -c {shlex.quote(READ_ALL)} {{model}}",
}
"""`offload plan` and the peers; a program that is not found is left out and said to be."""

RUN_ONE: Final = """
import os, sys, time
null = os.open(os.devnull, os.O_RDWR)
started = time.perf_counter()
child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ,
                        file_actions=[(os.POSIX_SPAWN_DUP2, null, i) for i in (0, 1, 2)])
_, status, used = os.wait4(child, 0)
print(time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss,
      os.waitstatus_to_exitcode(status))
"""
"""A small parent: the kernel counts what a process's parent held as the process's own peak."""


@dataclass(slots=True, kw_only=True)
class Timing:
    """Samples of one command."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    exit_code: int = 0


def run_once(argv: Sequence[str], timing: Timing) -> None:
    """Run a command to its end and keep its times and peak memory."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ended = subprocess.run(
        [sys.executable, "-S", "-c", RUN_ONE, *argv], capture_output=True, check=True, env=env
    )
    wall_s, cpu_s, peak, exit_code = ended.stdout.split()
    timing.wall_s.append(float(wall_s))
    timing.cpu_s.append(float(cpu_s))
    timing.peak_bytes.append(int(peak) * (1 if sys.platform == "darwin" else 1024))
    timing.exit_code = int(exit_code)


def commands(also: Sequence[str], model: Path, rpc: str) -> dict[str, list[str]]:
    """Name to argv of every command that can run here."""
    listed = dict(CANDIDATES) | dict(text.split("=", 1) for text in also)
    found = {}
    for name, text in listed.items():
        argv = [
            part.replace("{model}", str(model)).replace("{rpc}", rpc) for part in shlex.split(text)
        ]
        program = which(argv[0]) or find_binary(argv[0])
        if program is None or ("{rpc}" in text and not rpc):
            print(f"{name}: {argv[0]} or the virtual cards for it are not here, left out")
        else:
            found[name] = [str(program), *argv[1:]]
    return found


@contextlib.contextmanager
def two_cards() -> Iterator[str]:
    """Endpoints of two virtual cards for llama.cpp; empty where they cannot be had."""
    with contextlib.ExitStack() as stack:
        try:
            served = stack.enter_context(virtual_cards(2, free_bytes=24 * GIB))
        except OffloadError as error:
            print(f"no virtual cards: {error}")
            served = ()
        yield ",".join(card.endpoint for card in served)


def report(timings: Mapping[str, Timing], header_s: Sequence[float]) -> None:
    """Wall and CPU time, ratio to `offload plan` and peak memory, one row per command."""
    base = statistics.median(timings["offload plan"].wall_s)
    print(f"{'command':17} {'wall s':>7} {'min':>7} {'max':>7} {'x plan':>7}", end="")
    print(f" {'cpu s':>7} {'min':>7} {'peak MiB':>9} exit")
    for name, timing in timings.items():
        wall, cpu = timing.wall_s, timing.cpu_s
        print(
            f"{name:17} {statistics.median(wall):7.3f} {min(wall):7.3f} {max(wall):7.3f}"
            f" {statistics.median(wall) / base:7.2f} {statistics.median(cpu):7.3f} {min(cpu):7.3f}"
            f" {max(timing.peak_bytes) / 2**20:9.1f} {timing.exit_code}"
        )
    low, middle, high = (1e3 * f(header_s) for f in (min, statistics.median, max))
    print(f"header read alone, after the imports: {middle:.1f} ms ({low:.1f} to {high:.1f})")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"load over 1, 5 and 15 minutes: {load}, on {os.cpu_count()} cores")


def main() -> int:
    """Time everything in turns and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND {model}")
    parser.add_argument("--shape", default="kimi-k2")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, two_cards() as rpc:
        model = Path(name) / "model.gguf"
        make = ["-m", "tuner.synth", "shape", args.shape, str(model), "--vocab", "full"]
        subprocess.run([sys.executable, *make], check=True, stdout=subprocess.DEVNULL)
        listed = commands(args.also, model, rpc)
        timings = {label: Timing() for label in listed}
        header_s: list[float] = []
        for i in range(args.rounds + 1):
            for label, argv in listed.items():
                run_once(argv, timings[label] if i else Timing())
            read_s = measure(*READERS["offload"], model)["read_s"]
            if i:
                header_s.append(read_s)
        report(timings, header_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
