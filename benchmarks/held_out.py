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
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.held_out_errors import judge
from offload.errors import LlamaCppError
from offload.model import Model, make_model
from offload.source import read_header
from tuner.bench import Site, choose_runner, run_sweep, virtual_devices
from tuner.cells import ANCHOR, Bench, Cell, Sizes, Timed, candidate_cells, even_counts
from tuner.quiet import LoadMeter
from tuner.runners import Runner
from tuner.scale_file import write_scale_model
from tuner.scale_model import make_scale_model_of_shape
from tuner.store import SampleLog
from tuner.subject import cut_model
from tuner.synth.model import find_shape

N_CARDS: Final = 2
N_ROUNDS: Final = 2
N_REPETITIONS: Final = 4
TARGETS: Final = (
    "granite-3.1-3b-a800m:32,olmoe-1b-7b:16,qwen1.5-moe-a2.7b:8,granite-3.1-3b-a800m:32:Q8_0,"
    "olmoe-1b-7b:16:Q8_0"
)
"""Real models, how many of their layers, and another recipe than Q4_K_M: 2 to 7.4 GB each."""

BESIDE: Final = "own 2/4"
"""The run of the cut that is made beside each of the target's: experts on both sides."""

_ROOM_BYTES: Final = 16 << 30


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
    folder: Path,
    name: str,
    n_layer: int,
    quant: str | None,
    runner: Runner,
    *,
    time_s: float,
    n_rounds: int,
) -> None:
    """Time the cut and the target; a target that is there already is left alone."""
    target = name if quant is None else f"{name}-{quant}"
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
        scale = make_scale_model_of_shape(find_shape(name), n_layer=n_layer, quant=quant)
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
        name, n_layer, *quant = part.split(":")
        measure(
            asked.folder,
            name,
            int(n_layer),
            quant[0] if quant else None,
            runner,
            time_s=asked.time,
            n_rounds=asked.rounds,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
