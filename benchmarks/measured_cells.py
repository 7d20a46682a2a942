"""Is the chosen placement really faster than `--fit`'s, where cards are not equally fast?

Virtual cards of one thread each, some by a ggml-rpc-server that was compiled for an older
processor and is slower, beside one thread of such a host. A cut of each model is timed on
three of these cards by the sweep of `offload bench`; with its costs the whole model is
planned for every cell, a machine with so much memory on its cards, and llama-fit-params is
asked for the same. Both placements are then loaded at once, as llama-servers with cards of their
own, and timed in turns, so that the machine's moods fall on both.

    python -m benchmarks.measured_cells run FOLDER --fast BIN --slow BIN [--time 30]
    python -m benchmarks.measured_cells summary FOLDER [--cells]

`--fast` and `--slow` are folders of llama.cpp programs of the same release. FOLDER/MODEL.jsonl
keeps the sweep's samples and every pair; what is there already is not timed again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.measured_summary import print_summary
from offload.contenders import fit_contender
from offload.device import Device, device_by_name
from offload.emit import make_launch
from offload.engine.binaries import find_binary
from offload.engine.fit_choice import ask_fit
from offload.engine.virtual_cards import BINARY, virtual_cards
from offload.errors import InfeasibleError, LlamaCppError
from offload.forecast import make_forecast
from offload.machine import Host
from offload.model import Model, make_model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.speeds import Measured, Speeds
from offload.turn import Turn
from offload.units import GIB, MIB
from tuner.bench import choose_runner, run_sweep
from tuner.fit import fit
from tuner.paired import ServerArm, SpeedOptions
from tuner.paired.arm import Loaded, Sizes
from tuner.paired.run import compare_builds_with_pairs
from tuner.samples import make_runs
from tuner.scale_file import write_scale_model
from tuner.scale_model import make_scale_model_of_shape
from tuner.store import SCHEMA_VERSION, SampleLog
from tuner.subject import cut_model
from tuner.synth.model import find_shape

MODELS: Final = ("granite-3.1-3b-a800m:32", "olmoe-1b-7b:16")
"""Whole models with random weights, 2 and 4.2 GB."""

MACHINES: Final[Mapping[str, tuple[str, ...]]] = {
    "fast+slow": ("fast", "slow"),
    "slow+fast": ("slow", "fast"),
    "fast+fast+slow": ("fast", "fast", "slow"),
    "slow+fast+fast": ("slow", "fast", "fast"),
}
TIMED: Final = ("fast", "fast", "slow")
"""The cards of the sweep."""

SHARES: Final = (0.35, 0.5, 0.65, 0.8, 1.3)
"""Memory of all cards over the model's bytes."""

SPLITS: Final[Mapping[str, tuple[float, ...]]] = {"even": (1, 1, 1), "first twice": (2, 1, 1)}
TURN: Final = Turn(n_prompt=256, n_generate=64, n_depth=0)
N_UBATCH: Final = 32
SIZES: Final = Sizes(n_prompt=N_UBATCH, n_gen=4)
OPTIONS: Final = PlanOptions(
    n_ctx=1024,
    n_parallel=1,
    n_ubatch=N_UBATCH,
    margin_bytes=(32 * MIB,),
    load_mode="none",
    llama_build=11434,
)
HOST: Final = Host()
SWEEP_S: Final = 240.0
_ROOM_BYTES: Final = 16 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A machine and how much memory its cards have, all of them and one beside the other."""

    machine: str
    share: float
    split: str

    @property
    def kinds(self) -> tuple[str, ...]:
        """`fast` or `slow`, card by card."""
        return MACHINES[self.machine]

    def free_bytes(self, model: Model) -> list[int]:
        """What each card reports as free, margins included."""
        weights = SPLITS[self.split][: len(self.kinds)]
        total = self.share * model.size_bytes
        margin = OPTIONS.margin_bytes[0]
        return [int(total * w / sum(weights)) // MIB * MIB + margin for w in weights]

    def key(self) -> str:
        """The same for the same cell."""
        return f"{self.machine}, {self.share}, {self.split}"


def cells_of(n_skip: int) -> tuple[Cell, ...]:
    """Every machine at every share; splits take turns, so that no model has both of one cell."""
    splits = tuple(SPLITS)
    return tuple(
        Cell(machine=machine, share=share, split=splits[(i + j + n_skip) % len(splits)])
        for j, share in enumerate(SHARES)
        for i, machine in enumerate(MACHINES)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Folders of the two builds; the host is the slow one."""

    folders: Mapping[str, Path]

    @property
    def server(self) -> Path:
        """The host's llama-server."""
        return self._find("llama-server", "slow")

    @property
    def fit_params(self) -> Path:
        """Memory is the same in both."""
        return self._find("llama-fit-params", "slow")

    def card(self, kind: str) -> Path:
        """The ggml-rpc-server that plays this kind."""
        return self._find(BINARY, kind)

    def _find(self, name: str, kind: str) -> Path:
        found = find_binary(name, self.folders[kind])
        if found is None:
            raise LlamaCppError(f"no {name} in the folder of --{kind}")
        return found


@contextlib.contextmanager
def open_cards(programs: Programs, kinds: Sequence[str]) -> Iterator[tuple[Device, ...]]:
    """Virtual cards of these kinds, as many as there are."""
    with ExitStack() as stack:
        found = []
        for d, kind in enumerate(kinds):
            cards = virtual_cards(1, backend=BINARY, program=programs.card(kind))
            (card,) = stack.enter_context(cards)
            device = device_by_name(f"RPC{d}", _ROOM_BYTES)
            found.append(
                replace(
                    device,
                    memory_total_bytes=None,
                    endpoint=card.endpoint,
                    buffer_type=card.buffer_type,
                    description=f"virtual card ({kind})",
                )
            )
        yield tuple(found)


def learn(path: Path, programs: Programs, log: SampleLog, *, time_s: float) -> None:
    """Time a cut of the model at `path` on the cards of TIMED, unless that is in the log."""
    if any(row.get("kind") == "learned" for row in log.rows()):
        return
    n_layer = make_model(read_header(path)).n_layer
    with (
        cut_model(
            str(path), _ROOM_BYTES, time_s=time_s, virtual=True, n_layer=max(n_layer // 4, 2)
        ) as subject,
        open_cards(programs, TIMED) as devices,
    ):
        run_sweep(
            subject,
            devices,
            runner=choose_runner(str(programs.server)),
            log=log,
            time_s=time_s,
            n_threads=1,
            on_progress=lambda p: _tell(f"{p.left_s:.0f} s left ({p.label})"),
        )
    log.append({"schema_version": SCHEMA_VERSION, "kind": "learned"})


@dataclass(slots=True, kw_only=True)
class _Watch:
    """A clock that stands still while something is loaded: that takes longer than all else."""

    loading_s: float = 0.0

    def now_s(self) -> float:
        """Seconds in which something was timed."""
        return time.monotonic() - self.loading_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm(ServerArm):
    """A llama-server that is loaded off the clock."""

    watch: _Watch

    @contextlib.contextmanager
    def open(self) -> Iterator[Loaded]:
        """Start it and wait until it is ready."""
        start_s = time.monotonic()
        with ServerArm.open(self) as loaded:
            self.watch.loading_s += time.monotonic() - start_s
            yield loaded


def speeds_of(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> Speeds:
    """What the sweep says of cards of these kinds."""
    samples = [row for row in rows if row["kind"] == "sample"]
    left = {kind: [f"RPC{d}" for d, k in enumerate(TIMED) if k == kind] for kind in set(TIMED)}
    device_of = {f"RPC{d}": left[kind].pop(0) for d, kind in enumerate(kinds)}
    models = {f"RPC{d}": kind for d, kind in enumerate(TIMED)}
    coefficients = fit(make_runs(samples), card_models=models).coefficients
    return Speeds(turn=TURN, host=HOST, measured=Measured(coefficients, device_of))


def run(folder: Path, target: str, programs: Programs, *, time_s: float, n_skip: int) -> None:
    """Learn and time every cell of one model that is not in its file yet."""
    name, _, n_layer = target.partition(":")
    with (
        tempfile.TemporaryDirectory(prefix="measured-", dir=folder) as scratch,
        SampleLog(folder / f"{name}.jsonl") as log,
    ):
        scale = make_scale_model_of_shape(find_shape(name), n_layer=int(n_layer), vocab="bytes")
        path = write_scale_model(scale, Path(scratch) / "target.gguf")
        learn(path, programs, log, time_s=SWEEP_S)
        model = make_model(read_header(path))
        done = {row["cell"] for row in log.rows() if row.get("kind") == "cell"}
        todo = [cell for cell in cells_of(n_skip) if cell.key() not in done]
        for machine, kinds in MACHINES.items():
            mine = [cell for cell in todo if cell.machine == machine]
            if not mine:
                continue
            speeds = speeds_of(log.rows(), kinds)
            with open_cards(programs, kinds) as ours, open_cards(programs, kinds) as theirs:
                for cell in mine:
                    row = _row(cell, model, speeds, (ours, theirs), programs, time_s)
                    log.append(
                        {
                            "schema_version": SCHEMA_VERSION,
                            "kind": "cell",
                            "model": name,
                            "cell": cell.key(),
                            **row,
                        }
                    )
                    _tell(f"{name} {cell.key()}: {_short(row)}")


def _row(
    cell: Cell,
    model: Model,
    speeds: Speeds,
    cards: tuple[tuple[Device, ...], tuple[Device, ...]],
    programs: Programs,
    time_s: float,
) -> dict[str, Any]:
    free = cell.free_bytes(model)
    ours, theirs = (
        [replace(device, memory_free_bytes=n) for device, n in zip(mine, free, strict=True)]
        for mine in cards
    )
    try:
        own = make_plan(model, ours, OPTIONS, speeds=speeds)
        other = fit_contender(
            model,
            theirs,
            OPTIONS,
            ask_fit(make_plan(model, theirs, OPTIONS), programs.fit_params),
            speeds=speeds,
        ).plan
    except (InfeasibleError, LlamaCppError) as error:
        return {"skipped": str(error).splitlines()[0]}
    if not own.feasible:
        return {"skipped": "does not fit"}
    row = {
        "over_mib": max(other.short_bytes.values(), default=0) // MIB,
        "choice": own.choice.name if own.choice else "",
        "predicted": [_predicted(own, speeds), _predicted(other, speeds)],
    }
    if own.placement == other.placement:
        return {**row, "pairs": []}
    watch = _Watch()
    arms = [
        _Arm(program=programs.server, launch=make_launch(plan), n_threads=1, watch=watch)
        for plan in (own, other)
    ]
    options = SpeedOptions(time_s=time_s, sizes=SIZES, is_together=True)
    try:
        check, pairs = compare_builds_with_pairs(arms[0], arms[1], options, clock=watch.now_s)
    except LlamaCppError as error:
        return {**row, "skipped": str(error).splitlines()[0]}
    return {
        **row,
        "load": check.load,
        "pairs": [
            [round(side.seconds[test], 6) for side in pair for test in ("decode", "prefill")]
            for pair in pairs
        ],
    }


def _predicted(plan: Plan, speeds: Speeds) -> dict[str, float]:
    """Seconds per token."""
    said = make_forecast(plan, speeds.host, speeds.measured)
    if said is None:
        return {}
    return {"decode": said.decode.seconds, "prefill": said.prefill.seconds / said.n_prompt}


def _short(row: Mapping[str, Any]) -> str:
    if "skipped" in row:
        return str(row["skipped"])
    if not row["pairs"]:
        return "the same placement"
    ratios = [statistics.median(pair[2 + k] / pair[k] for pair in row["pairs"]) for k in range(2)]
    return f"--fit over ours: decode {ratios[0]:.3f}, prefill {ratios[1]:.3f}"


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measured_cells")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--fast", type=Path, required=True)
    running.add_argument("--slow", type=Path, required=True)
    running.add_argument("--time", type=float, default=30.0, help="seconds of timing in a cell")
    running.add_argument("--models", default=",".join(MODELS))
    telling = commands.add_parser("summary")
    telling.add_argument("folder", type=Path)
    telling.add_argument("--cells", action="store_true", help="a row for each")
    asked = parser.parse_args(argv)
    if asked.command == "summary":
        rows = [
            row
            for path in sorted(asked.folder.glob("*.jsonl"))
            for row in map(json.loads, path.read_text().splitlines())
            if row.get("kind") == "cell"
        ]
        print_summary(rows, TURN, is_detailed=asked.cells)
        return 0
    asked.folder.mkdir(parents=True, exist_ok=True)
    programs = Programs(folders={"fast": asked.fast, "slow": asked.slow})
    for i, target in enumerate(asked.models.split(",")):
        run(asked.folder, target, programs, time_s=asked.time, n_skip=i)
    return 0


if __name__ == "__main__":
    sys.exit(main())
