"""How far is the compute-buffer estimate from llama.cpp's own number, on real models?

Draws seeded cells: a true shape of `tuner.synth`, 1 to 4 CUDA cards, random options, and
one of three placements: the planner's own on cards that are too small (`plan`), random
expert tensors on the host (`rules`), nothing on the host (`none`). Each is planned and
asked of llama.cpp on virtual cards that take over host operations as CUDA cards do.

    python -m benchmarks.compute_error --cells 300 --seed 1
    python -m benchmarks.compute_error --rpc           # cards that do not
    python -m benchmarks.compute_error --library-folder FOLDER

The estimate follows the rules of the build that is asked; with `--unsaid` it is what a plan
gets whose user did not say which build will run it.

Prints every device outside the band of benchmarks.judge, then a table of the errors by
placement and by model.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.judge import Cell, compute_error, draw_cell
from offload.compute import estimate_compute
from offload.device import parse_device
from offload.engine.library_build import library_build
from offload.engine.verify import verify_plan
from offload.errors import LlamaCppError
from offload.model import Model, make_model
from offload.options import Strategy
from offload.plan import Plan, make_plan
from offload.render.text import render_columns
from offload.source import read_header
from offload.units import GIB, MIB
from offload.verification import DeviceCheck
from tuner.shapes import SHAPES
from tuner.synth import write_shape

KINDS = ("plan", "rules", "none")
CARD_GIB = (8, 12, 16, 24, 32, 48, 80)


@dataclass(slots=True)
class Errors:
    """Devices of one class: how many, how many outside the band, and the extremes in MiB."""

    n: int = 0
    low: int = 0
    high: int = 0
    exact: int = 0
    lowest_mib: float = 0.0
    highest_mib: float = 0.0
    deviations: list[float] = field(default_factory=list)

    def add(self, check: DeviceCheck) -> None:
        """Count one device."""
        planned, actual = check.planned.compute_bytes, check.actual.compute_bytes
        error = compute_error(check)
        self.n += 1
        self.low += error == "low"
        self.high += error == "high"
        self.exact += abs(planned - actual) <= MIB // 16
        self.lowest_mib = min(self.lowest_mib, (planned - actual) / MIB)
        self.highest_mib = max(self.highest_mib, (planned - actual) / MIB)
        if actual > 0:
            self.deviations.append(abs(planned / actual - 1))

    def row(self, name: str) -> tuple[str, ...]:
        """One line of the table."""
        ordered = sorted(self.deviations) or [0.0]
        return (
            name,
            str(self.n),
            f"{1 - (self.low + self.high) / max(self.n, 1):.1%}",
            f"{self.exact / max(self.n, 1):.1%}",
            str(self.low),
            str(self.high),
            f"{ordered[len(ordered) // 2]:.1%}",
            f"{self.lowest_mib:+.0f}",
            f"{self.highest_mib:+.0f}",
        )


HEAD = ("", "devices", "in band", "exact", "low", "high", "median", "MiB min", "MiB max")


def draw(rng: random.Random, path: Path, model: Model, kind: str) -> Cell:
    """A cell of the judge, turned into `kind`."""
    cell = draw_cell(rng, path, model)
    options = replace(cell.options, n_ubatch=rng.choice((128, 512, 512, 1024, 2048)))
    if kind == "none":
        options = replace(options, override_rules=())
    if kind == "plan":
        options = replace(
            options, override_rules=(), strategy=Strategy.OWN, tensor_split=None, n_gpu_layers=None
        )
    return replace(cell, options=options)


def plan_cell(rng: random.Random, cell: Cell, model: Model, kind: str, device: str) -> Plan:
    """Plan on cards of random size for `plan`, else on cards that hold anything."""
    sizes = [rng.choice(CARD_GIB) if kind == "plan" else 8192 for _ in range(cell.n_cards)]
    cards = [parse_device(f"{device}{i}:{size}GiB") for i, size in enumerate(sizes)]
    # what CUDA's flash attention adds is nothing that virtual cards could show
    cards = [
        replace(card, backend=replace(card.backend, flash_attn_copies_cache=False))
        for card in cards
    ]
    return make_plan(model, cards, cell.options, host_free_bytes=2048 * GIB)


def estimates(plan: Plan, build: int | None) -> tuple[int, ...]:
    """Compute bytes of every device and the host, by the rules of `build`."""
    found = estimate_compute(
        plan.model,
        replace(plan.context, llama_build=build),
        plan.split,
        plan.placement.host_tensors,
        tuple(device.backend for device in plan.devices),
        op_offload=plan.options.op_offload,
        n_outputs=plan.context.n_parallel,
        has_overrides=plan.placement.has_rules,
    )
    return (*found.devices, found.host)


def check_cells(
    models: Sequence[tuple[Path, Model]],
    n_cells: int,
    seed: int,
    device: str,
    library_folder: Path | None,
    build: int | None,
) -> Iterator[tuple[str, str, str, Sequence[DeviceCheck]]]:
    """(model, kind, description, checks) of every cell llama.cpp accepted."""
    rng = random.Random(seed)
    for i in range(n_cells):
        path, model = models[i % len(models)]
        kind = KINDS[i // len(models) % len(KINDS)]
        cell = draw(rng, path, model, kind)
        plan = plan_cell(rng, cell, model, kind, device)
        try:
            verification = verify_plan(plan, library_folder=library_folder)
        except LlamaCppError as error:
            print(f"refused: {cell}: {error}", flush=True)
            continue
        owners = verification.layers
        text = f"{cell} kind={kind} ts={plan.split.counts(cell.n_cards)} of {len(owners)}"
        text += f" moved={len(plan.placement.placed)}"
        checks = (*verification.devices, verification.host)
        yield (
            path.stem,
            kind,
            text,
            tuple(
                replace(check, planned=replace(check.planned, compute_bytes=n_bytes))
                for check, n_bytes in zip(checks, estimates(plan, build), strict=True)
            ),
        )


def main() -> int:
    """Print what is outside the band and the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", type=int, default=180)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rpc", action="store_true", help="cards that take over no operations")
    parser.add_argument("--library-folder", type=Path, help="ask the libllama of this folder")
    parser.add_argument("--model", action="append", help="only these shapes")
    parser.add_argument("--unsaid", action="store_true", help="plan for no build in particular")
    args = parser.parse_args()
    build = None if args.unsaid else library_build(args.library_folder)
    names = args.model or list(SHAPES)
    by_kind: dict[str, Errors] = defaultdict(Errors)
    by_model: dict[str, Errors] = defaultdict(Errors)
    with tempfile.TemporaryDirectory() as folder:
        models = []
        for name in names:
            path = Path(folder) / f"{name}.gguf"
            write_shape(name, path)
            models.append((path, make_model(read_header(path))))
        device = "RPC" if args.rpc else "CUDA"
        for name, kind, text, checks in check_cells(
            models, args.cells, args.seed, device, args.library_folder, build
        ):
            for check in checks:
                for errors in (by_kind[kind], by_kind["all"], by_model[name]):
                    errors.add(check)
                if error := compute_error(check):
                    planned, actual = check.planned.compute_bytes, check.actual.compute_bytes
                    print(
                        f"{error:4} {check.name} {planned / MIB:.1f} for {actual / MIB:.1f}"
                        f" MiB: {text}",
                        flush=True,
                    )
    for table in (by_kind, by_model):
        rows = [HEAD, *(errors.row(name) for name, errors in table.items())]
        print("\n".join(render_columns(rows, "<" + ">" * (len(HEAD) - 1))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
