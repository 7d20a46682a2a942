"""Compute buffers of every mixture-of-experts architecture, as two builds of llama.cpp reserved.

The cells are random ones of benchmarks.judge (cards, layers, cache types, slots, batches,
`--no-kv-offload`, `--no-op-offload`, `--no-host`, experts on the host), recorded by
benchmarks/record_compute.py on the small models of llama.cpp's own test-llama-archs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offload.backend import BACKENDS
from offload.compute import NEWEST_BUILD, OLDEST_BUILD, estimate_compute
from offload.context import ContextOptions
from offload.ggml import TYPES_BY_NAME, tensor_bytes
from offload.gguf import GGUFHeader, SkippedArray, TensorInfo, Value
from offload.model import Model, make_model
from offload.split import split_layers
from offload.units import MIB

FIXTURE = Path(__file__).parents[1] / "fixtures" / "recorded_compute.json"
RECORDED: dict[str, Any] = json.loads(FIXTURE.read_text(encoding="utf-8"))

SKETCHED = {("qwen4exp", OLDEST_BUILD), ("glm5-next", OLDEST_BUILD)}
"""Graphs that changed between the builds and are known of the newer one only."""

UNFUSED = {("deepseek4", 1)}
"""With 8 slots llama.cpp finds a fused operation of a host layer on a card, and does without
any; the estimate knows the fused ones."""


def header_of(data: dict[str, Any]) -> GGUFHeader:
    """A recorded model's header."""
    metadata: dict[str, Value] = {}
    for key, value in data["metadata"].items():
        if isinstance(value, dict):
            metadata[key] = SkippedArray(**value)
        else:
            metadata[key] = tuple(value) if isinstance(value, list) else value
    tensors = []
    for name, type_name, *shape in data["tensors"]:
        type_ = TYPES_BY_NAME[type_name]
        n_bytes = tensor_bytes(type_, shape)
        tensors.append(
            TensorInfo(name=name, type=type_, shape=tuple(shape), offset_bytes=0, n_bytes=n_bytes)
        )
    return GGUFHeader(
        version=3,
        metadata=metadata,
        tensors=tuple(tensors),
        data_offset_bytes=0,
        file_bytes=0,
        n_files=1,
        path="recorded.gguf",
    )


def _estimate(model: Model, cell: dict[str, Any], build: int) -> tuple[int, ...]:
    n_batch = min(cell["n_batch"], cell["n_ctx"])
    n_parallel = cell["n_parallel"] or 4
    unified = cell["kv_unified"]
    options = ContextOptions(
        n_ctx=cell["n_ctx"],
        n_batch=n_batch,
        n_ubatch=min(cell["n_ubatch"], n_batch),
        n_parallel=n_parallel,
        kv_unified=cell["n_parallel"] is None if unified is None else unified,
        type_k=TYPES_BY_NAME[cell["type_k"]],
        type_v=TYPES_BY_NAME[cell["type_v"]],
        flash_attn=cell["flash_attn"] is not False and model.has_flash_attn,
        flash_attn_auto=cell["flash_attn"] is None and model.has_flash_attn,
        swa_full=cell["swa_full"],
        offload_kqv=cell["offload_kqv"],
        no_host=cell["no_host"],
        llama_build=build,
    )
    backend = replace(BACKENDS["RPC"], offloads_ops=cell["offloads_ops"])
    moved = frozenset(cell["moved"])
    found = estimate_compute(
        model,
        options,
        split_layers(model.n_layer, cell["n_gpu_layers"], cell["tensor_split"]),
        moved,
        (backend,) * cell["n_cards"],
        op_offload=cell["op_offload"],
        n_outputs=n_parallel,
        has_overrides=bool(moved),
    )
    return (*found.devices, found.host)


def test_as_many_architectures_as_llama_cpp_has() -> None:
    """At least 45, or the others mean little."""
    assert len(RECORDED) >= 45


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("build", [OLDEST_BUILD, NEWEST_BUILD])
def test_every_architecture_needs_what_llama_cpp_reserved(name: str, build: int) -> None:
    """Within 2 % or 4 MiB on every device and the host; at least about as much where sketched."""
    model = make_model(header_of(RECORDED[name]))
    for i, cell in enumerate(RECORDED[name]["cells"]):
        if (name, i) in UNFUSED:
            continue
        reserved = cell["older" if build == OLDEST_BUILD else "newer"]
        for planned, actual in zip(_estimate(model, cell, build), reserved, strict=True):
            slack = max(actual // 50, 4 * MIB)
            if (name, build) in SKETCHED:
                assert planned >= actual - max(actual // 10, 8 * MIB), cell
            else:
                assert abs(planned - actual) <= slack, cell


def test_flash_attention_left_to_llama_cpp_can_be_lost() -> None:
    """LFM2's attention on the host goes to the card of the recurrent layer behind it.

    llama.cpp then gives flash attention up, and the scores of all cells take memory; what the
    user asked for is kept.
    """
    model = make_model(header_of(RECORDED["lfm2moe"]))
    split = split_layers(model.n_layer, 2, (1.0,))

    def card_bytes(*, is_auto: bool) -> int:
        options = ContextOptions(n_ctx=32768, n_parallel=1, flash_attn_auto=is_auto)
        backend = replace(BACKENDS["RPC"], offloads_ops=True)
        found = estimate_compute(
            model,
            options,
            split,
            frozenset(),
            (backend,),
            op_offload=True,
            n_outputs=1,
            has_overrides=True,
        )
        return found.devices[0]

    assert card_bytes(is_auto=True) > card_bytes(is_auto=False) + 32 * MIB
