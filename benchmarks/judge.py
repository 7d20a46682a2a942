"""How close are our placement rules and memory numbers to llama.cpp's own?

Draws random cells (architecture x cards x options, seeded), plans each, asks
llama.cpp for a dry run of exactly the emitted arguments on loopback RPC cards,
and lays the two side by side:

- owner of every layer, and set of tensors that rules moved: must be equal;
- weights and context of every device: must be equal to the byte;
- compute: an estimate, judged by a band (never more than 5 % or 8 MiB below,
  at most 25 % or 32 MiB above, whichever is larger, in 95 % of cells).

    python -m benchmarks.judge MODELS_DIR --cells 500 --seed 1

MODELS_DIR holds one GGUF per architecture, as llama.cpp's test-llama-archs
writes them. Prints a table per architecture and every cell that misses.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from offload.device import Device, parse_device
from offload.engine.library_build import library_build
from offload.engine.verify import verify_plan
from offload.engine.virtual_cards import virtual_cards
from offload.errors import LlamaCppError, OffloadError
from offload.model import Model, make_model
from offload.options import PlanOptions, Strategy, parse_kv_type
from offload.plan import Plan, make_plan
from offload.rules import Rule, make_rules
from offload.source import read_header
from offload.units import MIB
from offload.verification import DeviceCheck, Verification

BELOW = (0.05, 8 * MIB)
ABOVE = (0.25, 32 * MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One drawn problem: a model, some cards and the user's options."""

    path: Path
    n_cards: int
    options: PlanOptions
    offloads_ops: bool = False
    """The cards take over host operations, as CUDA's do; RPC's own do not."""

    def __str__(self) -> str:
        o = self.options
        shares = ",".join(f"{share:g}" for share in o.tensor_split or ())
        kv = f"{o.type_k.name.lower()}/{o.type_v.name.lower()}"
        return (
            f"{self.path.name} cards={self.n_cards} -ngl {o.n_gpu_layers} -ts {shares}"
            f" -c {o.n_ctx} -ub {o.n_ubatch} -np {o.n_parallel} kvu={o.kv_unified} {kv}"
            f" fa={o.flash_attn} swa_full={o.swa_full} rules={len(o.override_rules)}"
            f"{'' if o.offload_kqv else ' -nkvo'}{'' if o.op_offload else ' --no-op-offload'}"
            f"{' --no-host' if o.no_host else ''}{' like CUDA' if self.offloads_ops else ''}"
        )


def draw_rules(rng: random.Random, model: Model) -> tuple[Rule, ...]:
    """Nothing, whole layers, or whole layers and a few single tensors, to the host."""
    names = [t.name for t in model.expert_tensors if t.loaded]
    choice = rng.random()
    if not names or choice < 0.25:
        return ()
    layers = sorted({t.il for t in model.expert_tensors if t.il is not None})
    chosen = set(rng.sample(layers, rng.randint(1, len(layers))))
    moved = {name for name in names if int(name.split(".")[1]) in chosen}
    if choice > 0.7:
        moved |= set(rng.sample(names, rng.randint(1, min(3, len(names)))))
    return make_rules(dict.fromkeys(moved, "CPU"), model.tensor_names)


def draw_cell(rng: random.Random, path: Path, model: Model) -> Cell:
    """Random but valid options."""
    n_cards = rng.randint(1, 4)
    n_units = model.n_layer + 1
    n_parallel = rng.choice((None, 1, 2, 4, 8))
    flash_attn = rng.choice((None, True, False))
    has_blocks = all(model.hparams.n_embd_head_k(il) % 32 == 0 for il in range(model.n_layer))
    types = ("f16", "f16", "bf16", "f32", *(("q8_0", "q8_0", "q4_0") if has_blocks else ()))
    type_k = rng.choice(types)
    has_flash_attn = flash_attn is not False and model.has_flash_attn
    type_v = rng.choice(types if has_flash_attn else ("f16", "f16", "f32"))
    if model.hparams.is_mla or model.arch == "deepseek4":
        type_k = type_v  # llama.cpp refuses two types there
    n_ubatch = rng.choice((32, 64, 128, 512, 512, 1024, 2048, 4096))
    return Cell(
        path=path,
        n_cards=n_cards,
        offloads_ops=rng.random() < 0.5,
        options=PlanOptions(
            n_ctx=rng.choice((512, 1000, 4096, 8192, 20000, 32768, 65536)),
            n_batch=max(2048, n_ubatch),
            n_ubatch=n_ubatch,
            n_parallel=n_parallel,
            kv_unified=None if n_parallel is None else rng.random() < 0.5,
            type_k=parse_kv_type(type_k, "-ctk"),
            type_v=parse_kv_type(type_v, "-ctv"),
            flash_attn=flash_attn,
            swa_full=rng.random() < 0.1,
            offload_kqv=rng.random() > 0.15,
            op_offload=rng.random() > 0.1,
            no_host=rng.random() < 0.1,
            n_gpu_layers=rng.choice((-1, -1, rng.randint(1, n_units))),
            tensor_split=tuple(float(rng.choice((1, 1, 2, 3, 0.7))) for _ in range(n_cards)),
            override_rules=draw_rules(rng, model),
            strategy=Strategy.NONE,
        ),
    )


def plan_cell(cell: Cell, model: Model, endpoints: Sequence[str]) -> Plan:
    """The plan of a cell on roomy RPC cards: the user's own options decide everything."""
    cards: list[Device] = [
        parse_device(f"RPC{i}[{endpoint}]:4096GiB")
        for i, endpoint in enumerate(endpoints[: cell.n_cards])
    ]
    if cell.offloads_ops:
        cards = [replace(card, backend=replace(card.backend, offloads_ops=True)) for card in cards]
    return make_plan(model, cards, cell.options)


def compute_error(check: DeviceCheck) -> str:
    """`low`, `high` or `` for the compute estimate of one device."""
    planned, actual = check.planned.compute_bytes, check.actual.compute_bytes
    if planned < actual - max(BELOW[0] * actual, BELOW[1]):
        return "low"
    if planned > actual + max(ABOVE[0] * actual, ABOVE[1]):
        return "high"
    return ""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was counted over all cells; `misses` has one line per fault."""

    cells: int = 0
    refused: int = 0
    devices: int = 0
    wrong_owner: int = 0
    wrong_tensors: int = 0
    wrong_weights: int = 0
    wrong_context: int = 0
    compute_low: int = 0
    compute_high: int = 0

    def add(self, cell: Cell, verification: Verification) -> Iterator[str]:
        """Count one cell and yield a line for everything that differs."""
        self.cells += 1
        if verification.wrong_owners:
            self.wrong_owner += 1
            yield f"owner of layers {verification.wrong_owners}: {cell}"
        if verification.wrong_tensors:
            self.wrong_tensors += 1
            yield f"place of {verification.wrong_tensors[:3]}…: {cell}"
        for check in (*verification.devices, verification.host):
            yield from self._add_device(cell, check)

    def _add_device(self, cell: Cell, check: DeviceCheck) -> Iterator[str]:
        planned, actual = check.planned, check.actual
        self.devices += 1
        if planned.model_bytes != actual.model_bytes:
            self.wrong_weights += 1
            yield f"weights {check.name} {planned.model_bytes} != {actual.model_bytes}: {cell}"
        if planned.context_bytes != actual.context_bytes:
            self.wrong_context += 1
            yield f"context {check.name} {planned.context_bytes} != {actual.context_bytes}: {cell}"
        error = compute_error(check)
        self.compute_low += error == "low"
        self.compute_high += error == "high"
        if error:
            yield (
                f"compute {error} {check.name} {planned.compute_bytes / MIB:.1f}"
                f" for {actual.compute_bytes / MIB:.1f} MiB: {cell}"
            )


def judge(
    paths: Sequence[Path],
    n_cells: int,
    seed: int,
    library_folder: Path | None = None,
    *,
    is_unsaid: bool = False,
) -> Iterator[tuple[Cell, str | None, Verification | None]]:
    """Draw and check cells over `paths` in turn: (cell, refusal, verification).

    Plans are for the build of the library that is asked, unless `is_unsaid`.
    """
    rng = random.Random(seed)
    build = None if is_unsaid else library_build(library_folder)
    models = [(path, make_model(read_header(path))) for path in paths]
    with virtual_cards(4) as cards:
        endpoints = [card.endpoint for card in cards]
        for i in range(n_cells):
            path, model = models[i % len(models)]
            cell = draw_cell(rng, path, model)
            cell = replace(cell, options=replace(cell.options, llama_build=build))
            plan = plan_cell(cell, model, endpoints)
            try:
                checked = verify_plan(
                    plan, endpoints=endpoints[: cell.n_cards], library_folder=library_folder
                )
                yield cell, None, checked
            except LlamaCppError as error:
                yield cell, str(error), None


def moe_files(folder: Path) -> list[Path]:
    """The files of `folder` that hold routed experts."""
    found = []
    for path in sorted(folder.glob("*.gguf")):
        try:
            if make_model(read_header(path)).expert_tensors:
                found.append(path)
        except OffloadError as error:
            sys.stderr.write(f"{path.name}: {error}\n")
    return found


def main() -> int:
    """Run the judge and print the table; exit 1 when a hard rule is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", type=Path)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="dense architectures too")
    parser.add_argument("--library", type=Path, help="folder of the libllama to ask")
    parser.add_argument("--unsaid", action="store_true", help="plan for no build in particular")
    args = parser.parse_args()
    paths = sorted(args.models.glob("*.gguf")) if args.all else moe_files(args.models)
    tally, refusals = Tally(), Counter[str]()
    for cell, refusal, verification in judge(
        paths, args.cells, args.seed, args.library, is_unsaid=args.unsaid
    ):
        if verification is None:
            tally.refused += 1
            refusals[f"{cell.path.name}: {refusal}"] += 1
            continue
        for line in tally.add(cell, verification):
            print(line, flush=True)
    for text, n in refusals.most_common():
        print(f"llama.cpp refused {n}x {text}")
    n = max(tally.devices, 1)
    print(f"{len(paths)} architectures, {tally}")
    print(f"compute in band: {1 - (tally.compute_low + tally.compute_high) / n:.4f} of {n} devices")
    hard = tally.wrong_owner + tally.wrong_tensors + tally.wrong_weights + tally.wrong_context
    return 1 if hard else 0


if __name__ == "__main__":
    sys.exit(main())
