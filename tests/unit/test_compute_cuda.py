"""What only CUDA's compute buffers hold: flash attention's F16 copies of a quantised cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offload.backend import BACKENDS, Backend
from offload.compute import estimate_compute
from offload.context import ContextOptions
from offload.ggml import TYPES_BY_NAME
from offload.model import Model, make_model
from offload.source import read_header
from offload.split import split_by_counts
from tuner.synth import write_shape

N_CTX = 131072


def _compute(model: Model, backend: Backend, kv: str) -> int:
    """Compute bytes of one card that holds the whole model."""
    options = ContextOptions(
        n_ctx=N_CTX,
        n_parallel=1,
        kv_unified=False,
        type_k=TYPES_BY_NAME[kv],
        type_v=TYPES_BY_NAME[kv],
    )
    found = estimate_compute(
        model,
        options,
        split_by_counts(model.n_layer, (model.n_layer + 1,)),
        frozenset(),
        (backend,),
        op_offload=True,
        n_outputs=1,
        has_overrides=True,
    )
    return found.devices[0]


@pytest.mark.parametrize(
    ("name", "elements"),
    # K and V of 4 heads of 128; keys only, 512 + 64, of which the values are a part
    [("qwen3-235b-a22b", 2 * 4 * 128), ("mistral-small-4-119b", None)],
)
def test_a_quantised_cache_costs_its_f16_copy(
    name: str, elements: int | None, tmp_path: Path
) -> None:
    """One layer's cache in F16 is added at the peak of attention, on CUDA and on no other card."""
    model = make_model(read_header(write_shape(name, tmp_path / "m.gguf")))
    cuda = BACKENDS["CUDA"]
    plain = replace(cuda, flash_attn_copies_cache=False)
    if elements is None:
        elements = model.hparams.n_embd_k_gqa(0)
    copy_bytes = N_CTX * elements * 2
    added = _compute(model, cuda, "Q8_0") - _compute(model, plain, "Q8_0")
    # not exactly: the peak moves to attention, and holes in the buffer with it
    assert copy_bytes // 2 < added < 2 * copy_bytes
    assert _compute(model, cuda, "F16") == _compute(model, plain, "F16")
