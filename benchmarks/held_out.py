"""Do costs measured on a small cut predict a larger model that was never timed?

For each target a file with many of a real model's layers is written (random weights), and a
cut of at most a quarter of them. `measure` times the cut with the sweep of `offload bench`
and then the target, in placements, `-ub` and depths that no sweep has, each in several
rounds; `judge` fits the cuts' samples and lays predictions beside what was measured.

    python -m benchmarks.held_out measure FOLDER --llama-server PATH [--targets ...]
    python -m benchmarks.held_out judge FOLDER [FOLDER ...]

Cards are virtual, one thread each beside one for the host. A llama-bench whose CPU back end
was compiled for an older processor than its ggml-rpc-server's makes the host slower than
the cards. Targets are gone afterwards; FOLDER/NAME.jsonl keeps every repetition. `judge`
prints what a profile of the target's own cut says, and what one of all other cuts would have.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from offload.cost import Coefficients, Prediction, Work, predict
from offload.errors import LlamaCppError
from offload.model import Model, make_model
from offload.source import read_header
from tuner.bench import Site, choose_runner, run_sweep, virtual_devices
from tuner.cells import Bench, Cell, Timed, even_counts
from tuner.fit import fit
from tuner.quiet import LoadMeter
from tuner.runners import Runner
from tuner.samples import make_runs
from tuner.scale_file import write_scale_model
from tuner.scale_model import make_scale_model_of_shape
from tuner.store import SampleLog
from tuner.subject import cut_model
from tuner.synth.model import find_shape

N_CARDS: Final = 2
N_ROUNDS: Final = 1
N_REPETITIONS: Final = 4
TARGETS: Final = (
    "qwen3-30b-a3b:8,gpt-oss-20b:8,ernie-4.5-21b-a3b:8,qwen3.5-35b-a3b:8,gemma-4-26b-a4b:8"
)
"""Real models and how many of their layers: 3 to 6 GB each."""

_ROOM_BYTES: Final = 16 << 30


class Held(NamedTuple):
    """One timed thing that was held out, with what was predicted of it."""

    target: str
    label: str
    phase: str
    n_tokens: int
    seconds: float
    """The median of its repetitions."""
    scatter: float
    """Standard deviation of its repetitions over their median."""
    load: float
    prediction: Prediction

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.prediction.seconds / self.seconds - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the 90 % interval holds it."""
        return self.prediction.low_s <= self.seconds <= self.prediction.high_s


def held_cells(model: Model) -> tuple[Cell, ...]:
    """Placements, batches and depths that no sweep has."""
    n_units, experts = model.n_layer + 1, model.expert_layers
    even = even_counts(n_units, N_CARDS)
    third = max(1, len(experts) // 3)
    skewed = (n_units - n_units // 4, n_units // 4)

    def cell(
        label: str, counts: tuple[int, ...], host: Sequence[int], n_ubatch: int, n_depth: int = 0
    ) -> Cell:
        tests = (
            Timed(n_gen=12, n_depth=n_depth),
            Timed(n_prompt=64 if n_ubatch < 64 else 80, n_depth=n_depth),
        )
        return Cell(
            label=label,
            counts=counts,
            host_layers=tuple(host),
            n_ubatch=n_ubatch,
            tests=tests,
        )

    return (
        cell("on the cards", even, (), 80),
        cell("every other", even, experts[::2], 32),
        cell("first third", even, experts[:third], 80),
        cell("last third, 3:1", skewed, experts[-third:], 48),
        cell("all but two, 1:3", skewed[::-1], experts[2:], 48),
        cell("every third, depth 192", even, experts[::3], 80, 192),
    )


def measure(
    folder: Path, target: str, n_layer: int, runner: Runner, *, time_s: float, n_rounds: int
) -> None:
    """Time the cut and the target; a target that is there already is left alone."""
    path = folder / f"{target}.jsonl"
    if path.exists() and '"done"' in path.read_text().rpartition("\n{")[2]:
        print(f"{target}: measured already", file=sys.stderr)
        return
    path.unlink(missing_ok=True)
    devices = virtual_devices(N_CARDS, _ROOM_BYTES)
    with (
        tempfile.TemporaryDirectory(prefix="held-out-", dir=folder) as scratch,
        SampleLog(path) as log,
    ):
        scale = make_scale_model_of_shape(find_shape(target), n_layer=n_layer)
        whole = write_scale_model(scale, Path(scratch) / "target.gguf")
        with cut_model(str(whole), _ROOM_BYTES, time_s=time_s, virtual=True) as subject:
            _tell(target, f"{n_layer} layers; cut of {subject.model.n_layer}")
            run_sweep(
                subject,
                devices,
                runner=runner,
                log=log,
                time_s=time_s,
                n_threads=1,
                virtual=True,
                on_progress=lambda p: _tell(target, f"{p.left_s:.0f} s left ({p.label})"),
            )
        model = make_model(read_header(whole))
        bench = Bench(model=model, devices=devices, n_threads=1)
        site = Site(bench=bench, runner=runner, n_cards=N_CARDS)
        try:
            for round_ in range(n_rounds):
                for cell in held_cells(model):
                    for row in _timed_rows(site, cell):
                        log.append({"kind": "held", "target": target, "round": round_, **row})
                    _tell(target, f"round {round_}: {cell.label}")
        finally:
            site.close()
        log.append({"kind": "done", "n_layer": n_layer, "size_bytes": model.size_bytes})


def _timed_rows(site: Site, cell: Cell) -> Iterator[dict[str, Any]]:
    meter = LoadMeter()
    try:
        for record, timed in site.run(cell, N_REPETITIONS):
            yield {
                "label": cell.label,
                "phase": "prefill" if timed.n_prompt else "decode",
                "n_tokens": timed.n_prompt or timed.n_gen,
                "work": dict(site.bench.work(cell, timed).amounts),
                "samples_ns": record["samples_ns"],
                "load": meter.read(),
                "test_time": record["test_time"],
            }
    except LlamaCppError as error:
        print(f"{cell.label}: {error}", file=sys.stderr)


def read_rows(folders: Sequence[Path]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows of every finished target by folder and name."""
    found = {}
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl")):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            if rows and rows[-1]["kind"] == "done":
                found[folder.name, path.stem] = rows
    return found


def predicted(rows: Sequence[Mapping[str, Any]], coefficients: Coefficients) -> Iterator[Held]:
    """What the coefficients say of each held-out row."""
    for row in rows:
        if row["kind"] != "held":
            continue
        said = predict(Work(amounts=row["work"]), coefficients)
        if said is None:
            continue
        seconds = [ns / 1e9 for ns in row["samples_ns"]]
        middle = statistics.median(seconds)
        yield Held(
            target=row["target"],
            label=row["label"],
            phase=row["phase"],
            n_tokens=row["n_tokens"],
            seconds=middle,
            scatter=statistics.stdev(seconds) / middle,
            load=row["load"],
            prediction=said,
        )


def judge(folders: Sequence[Path], *, is_detailed: bool) -> None:
    """Print errors of each folder: costs of the target's own cut, and of all other cuts."""
    everything = read_rows(folders)
    for folder in folders:
        mine = {name: rows for (place, name), rows in everything.items() if place == folder.name}
        samples = {
            name: [row for row in rows if row["kind"] == "sample"] for name, rows in mine.items()
        }
        own: list[Held] = []
        other: list[Held] = []
        for name, rows in mine.items():
            own += predicted(rows, fit(make_runs(samples[name])).coefficients)
            rest = [row for key, rows_ in samples.items() if key != name for row in rows_]
            if rest:
                other += predicted(rows, fit(make_runs(rest)).coefficients)
        print(f"## {folder.name}: {len(mine)} targets, {len(own)} held-out measurements")
        if is_detailed:
            _print_cells(own)
        _print_errors("its own cut", own)
        _print_errors("all other cuts", other)


def _print_cells(cells: Sequence[Held]) -> None:
    print(
        "| target | placement | phase | t/s | predicted | 90 % | error | scatter | others' load |"
    )
    print("|---|---|---|--:|--:|---|--:|--:|--:|")
    for cell in cells:
        said, n = cell.prediction, cell.n_tokens
        print(
            f"| {cell.target} | {cell.label} | {cell.phase} | {n / cell.seconds:.1f}"
            f" | {n / said.seconds:.1f} | {n / said.high_s:.1f}-{n / said.low_s:.1f}"
            f" | {cell.error:+.1%} | {cell.scatter:.1%} | {cell.load:.0%} |"
        )


def _print_errors(source: str, cells: Sequence[Held]) -> None:
    for phase in ("decode", "prefill"):
        chosen = [cell for cell in cells if cell.phase == phase]
        if not chosen:
            continue
        errors = sorted(abs(cell.error) for cell in chosen)
        within = sum(error <= 0.10 for error in errors) / len(errors)
        inside = sum(cell.is_inside for cell in chosen) / len(chosen)
        scatter = statistics.median(cell.scatter for cell in chosen)
        bias = statistics.median(cell.error for cell in chosen)
        print(
            f"{phase}, costs of {source}: median error {statistics.median(errors):.1%}"
            f" (signed {bias:+.1%}), largest {errors[-1]:.1%}, within 10 % {within:.0%},"
            f" inside the 90 % interval {inside:.0%}; repetitions scatter {scatter:.1%}"
        )


def _tell(target: str, text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {target}: {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held_out")
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("folder", type=Path)
    measuring.add_argument("--llama-server")
    measuring.add_argument("--time", type=float, default=150.0)
    measuring.add_argument("--rounds", type=int, default=N_ROUNDS)
    measuring.add_argument("--targets", default=TARGETS)
    judging = commands.add_parser("judge")
    judging.add_argument("folders", type=Path, nargs="+")
    judging.add_argument("--cells", action="store_true", help="a row for each measurement")
    asked = parser.parse_args(argv)
    if asked.command == "judge":
        judge(asked.folders, is_detailed=asked.cells)
        return 0
    asked.folder.mkdir(parents=True, exist_ok=True)
    runner = choose_runner(asked.llama_server)
    for part in asked.targets.split(","):
        target, _, n_layer = part.partition(":")
        measure(
            asked.folder, target, int(n_layer), runner, time_s=asked.time, n_rounds=asked.rounds
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
