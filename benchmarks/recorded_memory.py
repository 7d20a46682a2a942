"""Do our numbers agree with buffers that other people's real cards logged?

Lays the planner's weights, context and compute beside those of public CUDA
logs of llama.cpp and ik_llama.cpp (tests/fixtures/recorded_memory.json). The
placement is the recorded command's own: its `-ts`, `-ot`, `-ncmoe` and `-ngl`
are the user's options, and nothing is solved. Weights are compared where the
log tells every tensor's type, context wherever it was logged; compute is shown
only, since those builds are not ours.

    python -m benchmarks.recorded_memory [--markdown]

No GPU and no file: headers are made from the shapes of the catalogue.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from offload.device import device_by_name
from offload.ggml import TYPES_BY_NAME, GGMLType
from offload.gguf import GGUFHeader, TensorInfo, Value
from offload.memory import MemoryBytes
from offload.model import Model, make_model
from offload.options import PlanOptions, Strategy, parse_kv_type
from offload.plan import Plan, make_plan
from offload.render.text import render_columns
from offload.rules import parse_overrides
from offload.units import MIB
from tuner.shapes import SHAPES, Shape
from tuner.shapes.metadata import make_metadata
from tuner.shapes.recipes import choose_types
from tuner.shapes.tensors import TensorShape, make_tensors

FIXTURE: Final = Path(__file__).parents[1] / "tests" / "fixtures" / "recorded_memory.json"
TOLERANCE: Final = 0.01
"""Weights and context must be within this of the recorded ones."""
_CARD_BYTES: Final = 1 << 40  # nothing is solved, so the room does not matter

BUFFERS: Final = ("weights", "context", "compute")
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One buffer of one device: what was logged, what we plan, and whether that is a test."""

    run: str
    device: str
    what: str
    recorded_mib: float
    planned_mib: float | None
    is_judged: bool

    @property
    def difference(self) -> float | None:
        """Planned less recorded, as a share of the recorded."""
        return None if self.planned_mib is None else self.planned_mib / self.recorded_mib - 1

    @property
    def agrees(self) -> bool:
        """True where the difference is within what is asked."""
        return self.difference is not None and abs(self.difference) <= TOLERANCE


@cache
def load() -> Json:
    """The recorded facts."""
    found: Json = json.loads(FIXTURE.read_text(encoding="utf-8"))
    return found


def runs() -> tuple[Json, ...]:
    """Every run that can be planned."""
    return tuple(load()["runs"])


def _type_of(name: str, n_row: int) -> GGMLType:
    """A type of ggml or of the fork; the fork's may begin each row with a few bytes of its own.

    One block of those is a whole row, which is also why each row length is a type here.
    """
    if name in TYPES_BY_NAME:
        return TYPES_BY_NAME[name]
    figures = load()["types"]
    row_bytes = n_row // 256 * figures[name]["block_bytes"] + figures[name]["row_bytes"]
    id_ = 1000 * (1 + list(figures).index(name)) + n_row // 256
    return GGMLType(id=id_, name=name, block_size=n_row, block_bytes=row_bytes)


def _tensors(shape: Shape, file: Json) -> tuple[TensorShape, ...]:
    found = [
        t for t in make_tensors(shape) if not any(f".{d}." in t.name for d in file.get("drops", ()))
    ]
    mla = shape.mla
    if "attn_kv_b" in file.get("adds", ()) and mla is not None:
        joint = (mla.n_lora_kv, shape.n_head * (mla.n_nope + mla.n_value))
        found += [
            TensorShape(f"blk.{il}.attn_kv_b.weight", joint) for il in range(shape.n_layer_all)
        ]
    return tuple(found)


def _types(shape: Shape, tensors: Sequence[TensorShape], file: Json) -> tuple[GGMLType, ...]:
    chosen = choose_types(shape, tensors, file.get("recipe", "Q8_0"))
    if "types" not in file:
        return chosen
    return tuple(
        type_
        if type_.name == "F32"
        else _type_of(
            next(name for pattern, name in file["types"] if re.search(pattern, t.name)), t.shape[0]
        )
        for t, type_ in zip(tensors, chosen, strict=True)
    )


@cache
def model_of(file_name: str) -> Model:
    """The model of a recorded file; types are placeholders where they are not known."""
    file: Json = load()["files"][file_name]
    shape = replace(SHAPES[file["shape"]], **file.get("changes", {}))
    tensors = _tensors(shape, file)
    metadata: dict[str, Value] = dict(make_metadata(shape))
    infos = tuple(
        TensorInfo(
            name=t.name,
            type=type_,
            shape=t.shape,
            offset_bytes=0,
            n_bytes=t.n_elements // type_.block_size * type_.block_bytes,
        )
        for t, type_ in zip(tensors, _types(shape, tensors, file), strict=True)
    )
    model = make_model(
        GGUFHeader(
            version=3,
            metadata=metadata,
            tensors=infos,
            data_offset_bytes=0,
            file_bytes=0,
            n_files=1,
            path=file_name,
        )
    )
    # the fork loads what llama.cpp would skip
    loaded = [t._replace(loaded=True) if ".attn_kv_b." in t.name else t for t in model.tensors]
    return replace(model, tensors=tuple(loaded))


def plan_of(run: Json) -> Plan:
    """The recorded placement, priced by the planner."""
    given = run["options"]
    options = PlanOptions(
        n_ctx=given["c"],
        n_batch=given["b"],
        n_ubatch=given["ub"],
        n_parallel=given["np"],
        n_gpu_layers=given.get("ngl"),
        n_cpu_moe=given.get("ncmoe"),
        type_k=parse_kv_type(given.get("ctk", "f16"), "-ctk"),
        type_v=parse_kv_type(given.get("ctv", "f16"), "-ctv"),
        flash_attn=given.get("fa"),
        tensor_split=tuple(float(share) for share in run.get("ts", (1.0,))),
        override_rules=tuple(rule for text in run["ot"] for rule in parse_overrides(text)),
        strategy=Strategy.NONE,
    )
    cards = [device_by_name(name, _CARD_BYTES) for name in run["devices"]]
    return make_plan(model_of(run["file"]), cards, options)


def rows_of(run: Json) -> Iterator[Row]:
    """Every recorded buffer of one run beside the planned one."""
    plan = plan_of(run)
    knows_types = load()["files"][run["file"]]["why"] is None
    stored, kept = run.get("context_factor", (1, 1))
    for (name, recorded), planned in zip(run["devices"].items(), plan.memory.devices, strict=True):
        context_bytes = planned.context_bytes * stored // kept
        memory = replace(planned, context_bytes=context_bytes)
        yield from _device_rows(run["id"], name, recorded, memory, knows_types)
    if run["host_model_mib"] is not None:
        host = {"model_mib": run["host_model_mib"]}
        memory = MemoryBytes(model_bytes=plan.memory.host.model_bytes)
        yield from _device_rows(run["id"], "host", host, memory, knows_types)


def _device_rows(
    run: str, device: str, recorded: Json, planned: MemoryBytes, knows_types: bool
) -> Iterator[Row]:
    for what, n_bytes, is_known, is_judged in (
        ("weights", planned.model_bytes, knows_types, True),
        ("context", planned.context_bytes, True, True),
        ("compute", planned.compute_bytes, knows_types, False),
    ):
        value = recorded.get({"weights": "model_mib"}.get(what, f"{what}_mib"))
        if value is not None:
            yield Row(
                run=run,
                device=device,
                what=what,
                recorded_mib=value,
                planned_mib=n_bytes / MIB if is_known else None,
                is_judged=is_judged and is_known,
            )


def _cells(rows: Sequence[Row]) -> tuple[str, ...]:
    """One device: recorded, planned and difference of its three buffers."""
    found = [rows[0].run, rows[0].device]
    by_what = {row.what: row for row in rows}
    for what in BUFFERS:
        row = by_what.get(what)
        planned = None if row is None else row.planned_mib
        difference = None if row is None else row.difference
        found.append("" if row is None else f"{row.recorded_mib:.2f}")
        found.append("" if planned is None else f"{planned:.2f}")
        found.append("" if difference is None else f"{100 * difference:z.2f} %")
    differs = any(row.is_judged and not row.agrees for row in rows)
    return (*found, "DIFFERS" if differs else "")


def _print(rows: Sequence[Row], *, markdown: bool) -> None:
    head = ["run", "device"]
    for what in BUFFERS:
        head += [f"{what}, recorded", "planned", "off"]
    head.append("")
    cells = [_cells(list(group)) for _, group in groupby(rows, key=lambda r: (r.run, r.device))]
    if markdown:
        for line in (head, ["---"] * 2 + ["---:"] * 9 + ["---"], *cells):
            print("|", " | ".join(line), "|")
        return
    for text in render_columns([tuple(head), *cells], "<<>>>>>>>>><"):
        print(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; exit 1 where a judged buffer differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    markdown = parser.parse_args(argv).markdown
    rows = [row for run in runs() for row in rows_of(run)]
    _print(rows, markdown=markdown)
    for what in ("weights", "context"):
        judged = [row for row in rows if row.is_judged and row.what == what]
        worst = max(abs(row.difference or 0.0) for row in judged)
        n = sum(row.agrees for row in judged)
        print(f"\n{what}: {n} of {len(judged)} buffers within 1 %, the worst {worst:.3%} off")
    return 0 if all(row.agrees for row in rows if row.is_judged) else 1


if __name__ == "__main__":
    sys.exit(main())
