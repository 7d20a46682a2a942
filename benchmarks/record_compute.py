"""What do llama.cpp's builds reserve for every architecture, written down once for tests?

Draws a few cells of benchmarks.judge for each model of a folder, asks two builds about each and
writes headers, cells and compute buffers as one JSON file, which
tests/unit/test_compute_recorded.py reads where there is no llama.cpp.

    python -m benchmarks.record_compute MODELS_DIR LIBLLAMA_FOLDER OUTPUT

MODELS_DIR is that of benchmarks.judge, LIBLLAMA_FOLDER holds b11434; the other build is
llama-cpp-python's own. OUTPUT is tests/fixtures/recorded_compute.json. Scales of weights, which
only these test files have everywhere, are left out of the headers, and vocabularies are counted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.judge import Cell, draw_cell, moe_files, plan_cell
from offload.engine.dry_run import dry_run
from offload.engine.verify import load_options
from offload.engine.virtual_cards import virtual_cards
from offload.errors import LlamaCppError
from offload.gguf import GGUFHeader, SkippedArray, Value
from offload.model import make_model
from offload.plan import Plan
from offload.source import read_header

CELLS: Final = 3
SEED: Final = 31


class Watched(dict[str, Value]):
    """Metadata that remember which keys were asked for."""

    def __init__(self, metadata: Mapping[str, Value]) -> None:
        super().__init__(metadata)
        self.used: set[str] = set()

    def __getitem__(self, key: str) -> Value:
        self.used.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As of any dictionary."""
        self.used.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.used.add(str(key))
        return super().__contains__(key)


def header_to_json(header: GGUFHeader) -> dict[str, Any]:
    """Metadata that a model is made of, and (name, type, shape) of every tensor."""
    watched = Watched(header.metadata)
    make_model(replace(header, metadata=watched))
    kept = {
        key: asdict(value) if isinstance(value, SkippedArray) else value
        for key, value in header.metadata.items()
        if key in watched.used
    }
    tensors = [
        [t.name, t.type.name, *t.shape]
        for t in header.tensors
        if not t.name.endswith((".scale", ".input_scale")) or t.name.endswith("gate_inp.scale")
    ]
    return {"metadata": kept, "tensors": tensors}


def cell_to_json(cell: Cell, plan: Plan) -> dict[str, Any]:
    """The options that sizes depend on, and the tensors that rules send to the host."""
    o = cell.options
    return {
        "n_cards": cell.n_cards,
        "offloads_ops": cell.offloads_ops,
        "n_gpu_layers": o.n_gpu_layers,
        "tensor_split": o.tensor_split,
        "n_ctx": o.n_ctx,
        "n_batch": o.n_batch,
        "n_ubatch": o.n_ubatch,
        "n_parallel": o.n_parallel,
        "kv_unified": o.kv_unified,
        "type_k": o.type_k.name,
        "type_v": o.type_v.name,
        "flash_attn": o.flash_attn,
        "swa_full": o.swa_full,
        "offload_kqv": o.offload_kqv,
        "op_offload": o.op_offload,
        "no_host": o.no_host,
        "moved": sorted(plan.placement.placed),
    }


def ask(plan: Plan, endpoints: Sequence[str], folder: Path | None) -> list[int]:
    """Compute bytes of every device and the host."""
    like_cuda = any(device.backend.offloads_ops for device in plan.devices)
    report = dry_run(
        load_options(plan),
        endpoints=endpoints,
        op_offload_like_cuda=like_cuda,
        library_folder=folder,
    )
    return [*(d.compute_bytes for d in report.devices), report.host.compute_bytes]


def record(path: Path, endpoints: Sequence[str], folder: Path) -> dict[str, Any]:
    """One model: its header and what both builds said about its cells."""
    header = read_header(path)
    model = make_model(header)
    rng = random.Random(f"{SEED}{path.name}")
    cells: list[dict[str, Any]] = []
    while len(cells) < CELLS:
        cell = draw_cell(rng, path, model)
        plan = plan_cell(cell, model, endpoints)
        used = endpoints[: cell.n_cards]
        try:
            answers = [ask(plan, used, one) for one in (None, folder)]
        except LlamaCppError:
            continue  # an option the architecture lacks
        cells.append({**cell_to_json(cell, plan), "older": answers[0], "newer": answers[1]})
    return {**header_to_json(header), "cells": cells}


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", type=Path)
    parser.add_argument("library", type=Path, help="folder of b11434's libllama")
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    recorded: dict[str, Any] = {}
    with virtual_cards(4) as cards:
        endpoints = [card.endpoint for card in cards]
        for path in moe_files(args.models):
            recorded[path.stem.removesuffix("-moe")] = record(path, endpoints, args.library)
            sys.stderr.write(f"{path.name}\n")
    dump = json.JSONEncoder(separators=(",", ":")).encode
    lines = [f"{dump(name)}:{dump(one)}" for name, one in recorded.items()]
    args.output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
