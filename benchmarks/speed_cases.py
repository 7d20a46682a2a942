"""Which amounts of work stand behind the speeds that other people recorded?

Reads tests/fixtures/recorded_speed.json: machines, files by shape and quantisation, and
series of levels that differ in one thing. Headers are made from the catalogue's shapes,
with every byte count scaled to the recorded size of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from offload.context import ContextOptions
from offload.cost import ROUTING_SKEW, Work, decode_work, prefill_work
from offload.device import Device, device_by_name
from offload.ggml import TYPES_BY_NAME, tensor_bytes
from offload.gguf import GGUFHeader, TensorInfo
from offload.machine import Host
from offload.model import Model, make_model
from offload.placement import Placement
from offload.split import HOST, split_layers
from tuner.shapes import SHAPES, Shape
from tuner.shapes.metadata import make_metadata
from tuner.shapes.recipes import choose_types
from tuner.shapes.tensors import make_tensors

FIXTURE: Final = Path(__file__).parents[1] / "tests" / "fixtures" / "recorded_speed.json"
_BACKEND_NAMES: Final = {"CUDA": "CUDA", "ROCm": "ROCm", "Vulkan": "Vulkan", "RPC": "RPC"}
_CARD_BYTES: Final = 1 << 40  # nothing is planned, so the room does not matter
_N_PROMPT: Final = 512
PHASES: Final = ("decode", "prefill")
Json = Mapping[str, Any]


@cache
def load() -> Json:
    """The recorded facts."""
    found: Json = json.loads(FIXTURE.read_text(encoding="utf-8"))
    return found


@cache
def model_of(shape_name: str, recipe: str) -> Model:
    """The model of a catalogue shape, quantised by one of llama-quantize's recipes."""
    return model_of_shape(SHAPES[shape_name], recipe)


def model_of_shape(shape: Shape, recipe: str) -> Model:
    """The model of any shape, as a header without a file gives it."""
    tensors = make_tensors(shape)
    types = choose_types(shape, tensors, recipe)
    infos = tuple(
        TensorInfo(
            name=t.name, type=y, shape=t.shape, offset_bytes=0, n_bytes=tensor_bytes(y, t.shape)
        )
        for t, y in zip(tensors, types, strict=True)
    )
    return make_model(
        GGUFHeader(
            version=3,
            metadata=make_metadata(shape),
            tensors=infos,
            data_offset_bytes=0,
            file_bytes=0,
            n_files=1,
            path=shape.name,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One measured point of a series: seconds per token, and the work of both phases."""

    x: int
    seconds: Mapping[str, float]
    work: Mapping[str, Work]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Levels of one case that differ in one thing."""

    case: str
    machine: str
    varies: str
    label: str
    levels: tuple[Level, ...]


def cards_of(case: Json) -> tuple[Device, ...]:
    """The case's cards by llama.cpp's names, described as their owner described them."""
    kinds = load()["machines"][case["machine"]]["cards"]
    names = [kind["name"] or "" for kind in kinds for _ in range(kind["count"])]
    prefix = _BACKEND_NAMES.get(case["backend"], "CUDA")
    return tuple(
        replace(device_by_name(f"{prefix}{i}", _CARD_BYTES), description=name)
        for i, name in enumerate(names)
    )


def host_of(case: Json) -> Host:
    """The case's host, as far as its memory bandwidth is known."""
    rate = load()["machines"][case["machine"]]["host_gb_per_s"]
    return Host(bandwidth_bytes_per_s=None if rate is None else int(rate * 1e9))


def _host_layers(model: Model, at: Json) -> set[int]:
    if at.get("n_cpu_moe") is not None:
        return set(range(at["n_cpu_moe"]))
    return {il for first, end in at.get("host_layers", ()) for il in range(first, end)}


def placement_of(model: Model, n_cards: int, at: Json) -> Placement:
    """Where everything was in one level."""
    shares = at.get("tensor_split") or [1.0] * n_cards
    split = split_layers(model.n_layer, at.get("n_gpu_layers", 999), shares)
    away = _host_layers(model, at)
    placed = {t.name: HOST for t in model.expert_tensors if t.il in away}
    return Placement(split=split, placed=placed, has_rules=bool(placed))


def work_of(case: Json, at: Json) -> dict[str, Work]:
    """Work per token of both phases; bytes are scaled to the recorded size of the file."""
    model = model_of(case["shape"], case["recipe"])
    n_cards = at["x"] if at.get("varies") == "n_cards" else len(cards_of(case))
    cards = cards_of(case)[:n_cards]
    placement = placement_of(model, len(cards), at)
    n_prompt = at.get("n_prompt") or _N_PROMPT
    context = ContextOptions(
        n_ctx=1 << 18,
        n_batch=max(2048, at.get("n_ubatch") or 512),
        n_ubatch=at.get("n_ubatch") or 512,
        n_parallel=1,
        type_k=TYPES_BY_NAME[(at.get("type_k") or "f16").upper()],
        type_v=TYPES_BY_NAME[(at.get("type_v") or "f16").upper()],
    )
    depth = at.get("n_depth") or 0
    repacked = bool(at.get("repacked"))
    decode = decode_work(
        model, placement, cards, context=context, n_depth=depth, host_is_repacked=repacked
    )
    prefill = prefill_work(
        model,
        placement,
        cards,
        context=context,
        n_prompt=n_prompt,
        n_depth=depth,
        op_offload=at.get("op_offload", True),
        host_is_repacked=repacked,
        host_is_mapped=True,  # the default of all these builds
        routing_skew=ROUTING_SKEW,
    ).scaled(1 / n_prompt)
    size = case["size_gib"]
    factor = 1.0 if size is None else size * (1 << 30) / model.size_bytes
    return {"decode": _resized(decode, factor), "prefill": _resized(prefill, factor)}


def _resized(work: Work, factor: float) -> Work:
    kinds = (".read.", ".stream_mmap.", ".stream.")
    return Work(
        amounts={
            name: amount * (factor if any(kind in name for kind in kinds) else 1.0)
            for name, amount in work.amounts.items()
        }
    )


@cache
def all_series() -> tuple[Series, ...]:
    """Every recorded series with the work of its levels."""
    found = []
    for case in load()["cases"]:
        for series in case["series"]:
            varies = series["varies"]
            levels = []
            for row in series["levels"]:
                at = {**series, **row, varies: row["x"]}
                levels.append(
                    Level(
                        x=row["x"],
                        seconds={
                            phase: 1 / row[key]
                            for phase, key in zip(
                                PHASES, ("decode_t_s", "prefill_t_s"), strict=True
                            )
                            if row[key]
                        },
                        work=work_of(case, at),
                    )
                )
            found.append(
                Series(
                    case=case["id"],
                    machine=case["machine"],
                    varies=varies,
                    label=_label(series),
                    levels=tuple(levels),
                )
            )
    return tuple(found)


def _label(series: Json) -> str:
    """What stays the same in a series, where it has to be told from its neighbours."""
    keys = ("n_cpu_moe", "n_ubatch", "host_layers", "n_gpu_layers")
    fixed = {k: series[k] for k in keys if k in series and k != series["varies"]}
    return ", ".join(f"{key} {value}" for key, value in fixed.items())
