"""Do costs measured on a small cut predict a larger model that was never timed?

For each target a file with many of a real model's layers is written (random weights), and a
cut of a quarter of them. `measure` times the cut with the sweep of `offload bench` and then
the target, in placements, `-ub` and depths that no sweep has, each in every round;
`judge` fits the cuts' samples and lays predictions beside what was measured.

A machine that is slower in one minute than in the next would spoil that, whatever the
prediction is worth. So one run of the cut is made again before and after each of the
target's, and `judge` prints all errors twice: as they are, and with the speed of the machine
at that time divided out. How far two rounds of the same run differ is printed too.

    python -m benchmarks.held_out measure FOLDER --llama-server PATH [--targets ...]
    python -m benchmarks.held_out judge FOLDER [FOLDER ...]

Cards are virtual, one thread each beside one for the host. A llama-bench whose CPU back end
was compiled for an older processor than its ggml-rpc-server's makes the host slower than
the cards. Targets are gone afterwards; FOLDER/NAME.jsonl keeps every repetition. `judge`
prints what a profile of the target's own cut says, and what one of all other cuts would have.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from offload.cost import Coefficients, Prediction, Work, predict
from offload.errors import LlamaCppError
from offload.model import Model, make_model
from offload.source import read_header
from tuner.bench import Site, choose_runner, run_sweep, virtual_devices
from tuner.cells import ANCHOR, Bench, Cell, Sizes, Timed, candidate_cells, even_counts
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
N_ROUNDS: Final = 2
N_REPETITIONS: Final = 4
TARGETS: Final = (
    "granite-3.1-3b-a800m:32,olmoe-1b-7b:16,qwen1.5-moe-a2.7b:12,gpt-oss-20b:8,ernie-4.5-21b-a3b:8"
)
"""Real models and how many of their layers: 2 to 4.5 GB each, the first two whole."""

BESIDE: Final = "own 2/4"
"""The run of the cut that is made beside each of the target's: experts on both sides."""

_ROOM_BYTES: Final = 16 << 30


class Held(NamedTuple):
    """One timed thing that was held out, with what was predicted of it."""

    target: str
    label: str
    phase: str
    n_tokens: int
    round: int
    seconds: float
    """The median of its repetitions."""
    scatter: float
    """Standard deviation of its repetitions over their median."""
    load: float
    prediction: Prediction
    slowness: float = 1.0
    """What the run of the cut took beside it, over what was expected of that."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.prediction.seconds / self.seconds - 1.0

    @property
    def error_beside(self) -> float:
        """The same with the machine's speed at that time divided out."""
        return self.prediction.seconds * self.slowness / self.seconds - 1.0

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
        n_cut = max(n_layer // 4, 1)
        with cut_model(
            str(whole), _ROOM_BYTES, time_s=time_s, virtual=True, n_layer=n_cut
        ) as subject:
            _tell(target, f"{n_layer} layers; cut of {subject.model.n_layer}")
            sweep = run_sweep(
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
            assert sweep.sizes is not None
            beside = _run_beside(replace(bench, model=subject.model), sweep.sizes)
            with contextlib.closing(site):
                _log_beside(site, subject.model, beside, log)
                for round_, cell in _plan_of_runs(model, n_rounds):
                    for row in _timed_rows(site, cell):
                        log.append({"kind": "held", "target": target, "round": round_, **row})
                    _tell(target, f"round {round_}: {cell.label}")
                    _log_beside(site, subject.model, beside, log)
        log.append({"kind": "done", "n_layer": n_layer, "size_bytes": model.size_bytes})


def _plan_of_runs(model: Model, n_rounds: int) -> Iterator[tuple[int, Cell]]:
    """Every cell once in each round, every other round backwards."""
    cells = held_cells(model)
    for round_ in range(n_rounds):
        for cell in cells[:: -1 if round_ % 2 else 1]:
            yield round_, cell


def _run_beside(bench: Bench, sizes: Sizes) -> Cell:
    cells = {cell.label: cell for cell in candidate_cells(bench, sizes)}
    return cells.get(BESIDE, cells[ANCHOR])


def _log_beside(site: Site, cut: Model, cell: Cell, log: SampleLog) -> None:
    """One run of the cut on the cards of `site`."""
    with_cut = Site(
        bench=replace(site.bench, model=cut),
        runner=site.runner,
        n_cards=0 if site.bench.endpoints else site.n_cards,
    )
    with contextlib.closing(with_cut):
        for row in _timed_rows(with_cut, cell):
            log.append({"kind": "beside", **row})


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
    slowness = _slowness_at(rows, coefficients)
    for i, row in enumerate(rows):
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
            round=row["round"],
            seconds=middle,
            scatter=statistics.stdev(seconds) / middle,
            load=row["load"],
            prediction=said,
            slowness=slowness(i, row["phase"]),
        )


def _slowness_at(
    rows: Sequence[Mapping[str, Any]], coefficients: Coefficients
) -> Callable[[int, str], float]:
    """How slow the machine was at row `i`: by the runs of the cut before and after it.

    Their seconds over what is expected of them, geometric mean; 1 where none was made.
    """
    found: dict[str, list[tuple[int, float]]] = {"decode": [], "prefill": []}
    for i, row in enumerate(rows):
        if row["kind"] == "beside":
            said = predict(Work(amounts=row["work"]), coefficients)
            if said is not None:
                seconds = statistics.median(row["samples_ns"]) / 1e9
                found[row["phase"]].append((i, seconds / said.seconds))

    def at(i: int, phase: str) -> float:
        # a run of the cut leaves several rows: two prompts, one generation
        n = 2 if phase == "prefill" else 1
        before = [ratio for j, ratio in found[phase] if j < i][-n:]
        after = [ratio for j, ratio in found[phase] if j > i][:n]
        return statistics.geometric_mean(before + after) if before or after else 1.0

    return at


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
        _print_noise(own)


def _print_cells(cells: Sequence[Held]) -> None:
    print(
        "| target | placement | phase | t/s | predicted | 90 % | error | beside"
        " | scatter | others' load |"
    )
    print("|---|---|---|--:|--:|---|--:|--:|--:|--:|")
    for cell in cells:
        said, n = cell.prediction, cell.n_tokens
        print(
            f"| {cell.target} | {cell.label} | {cell.phase} | {n / cell.seconds:.1f}"
            f" | {n / said.seconds:.1f} | {n / said.high_s:.1f}-{n / said.low_s:.1f}"
            f" | {cell.error:+.1%} | {cell.error_beside:+.1%} | {cell.scatter:.1%}"
            f" | {cell.load:.0%} |"
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
            f" inside the 90 % interval {inside:.0%}; repetitions scatter {scatter:.1%};"
            f" machine's speed divided out: {_errors_beside(chosen)}"
        )


def _errors_beside(cells: Sequence[Held]) -> str:
    errors = sorted(abs(cell.error_beside) for cell in cells)
    within = sum(error <= 0.10 for error in errors) / len(errors)
    return f"median error {statistics.median(errors):.1%}, within 10 % {within:.0%}"


def _print_noise(cells: Sequence[Held]) -> None:
    """How far rounds of the same run differ, and runs of the cut: no prediction is in that."""
    for phase in ("decode", "prefill"):
        by_run: dict[tuple[str, str], list[Held]] = {}
        for cell in cells:
            if cell.phase == phase:
                by_run.setdefault((cell.target, cell.label), []).append(cell)
        raw = [_spread([c.seconds for c in runs]) for runs in by_run.values() if runs[1:]]
        if not raw:
            continue
        rest = [
            _spread([c.seconds / c.slowness for c in runs]) for runs in by_run.values() if runs[1:]
        ]
        print(
            f"{phase}, the same run in another round: differs by {statistics.median(raw):.1%}"
            f" (median of {len(raw)}), at most {max(raw):.1%}; machine's speed divided out"
            f" {statistics.median(rest):.1%}, at most {max(rest):.1%}"
        )


def _spread(seconds: Sequence[float]) -> float:
    return max(seconds) / min(seconds) - 1.0


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
