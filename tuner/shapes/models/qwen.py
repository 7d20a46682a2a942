"""Qwen's MoE models: Qwen3, and the hybrids Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tuner.shapes.shape import DeltaNet, Shape

_QWEN3_30B: Final = Shape(
    name="qwen3-30b-a3b",
    title="Qwen3 30B A3B",
    arch="qwen3moe",
    source="the model card; size as llama.cpp prints it",
    n_layer=48,
    n_embd=2048,
    n_head=32,
    n_head_kv=4,
    n_embd_head=128,
    n_ff=6144,
    n_vocab=151936,
    n_ctx_train=40960,
    n_expert=128,
    n_expert_used=8,
    n_ff_exp=768,
    n_rot=128,
    qk_norm=True,
    extra={"rope.freq_base": 1e6},
    n_params=30.53e9,
    size_gib={"Q4_K_M": 17.28},
)

_QWEN3_235B: Final = replace(
    _QWEN3_30B,
    name="qwen3-235b-a22b",
    title="Qwen3 235B A22B",
    n_layer=94,
    n_embd=4096,
    n_head=64,
    n_ff=12288,
    n_ff_exp=1536,
    n_params=235.09e9,
    size_gib={"Q6_K": 179.75, "Q2_K": 79.80},
)

_QWEN3_CODER_480B: Final = replace(
    _QWEN3_30B,
    name="qwen3-coder-480b-a35b",
    title="Qwen3 Coder 480B A35B",
    source="the model card",
    n_layer=62,
    n_embd=6144,
    n_head=96,
    n_head_kv=8,
    n_ff=8192,
    n_ctx_train=262144,
    n_expert=160,
    n_ff_exp=2560,
    extra={"rope.freq_base": 1e7},
    n_params=480.15e9,
    size_gib={},
)

_QWEN3_NEXT: Final = Shape(
    name="qwen3-next-80b-a3b",
    title="Qwen3 Next 80B A3B",
    arch="qwen3next",
    source="the model card; parameters as llama-bench prints them",
    n_layer=48,
    n_embd=2048,
    n_head=16,
    n_head_kv=2,
    n_embd_head=256,
    n_ff=5120,
    n_vocab=151936,
    n_ctx_train=262144,
    n_expert=512,
    n_expert_used=10,
    n_ff_exp=512,
    n_ff_shexp=512,
    n_rot=64,
    qk_norm=True,
    delta=DeltaNet(interval=4, d_state=128, n_group=16, dt_rank=32),
    extra={"rope.freq_base": 1e7},
    n_params=79.67e9,
)

_QWEN35_35B: Final = replace(
    _QWEN3_NEXT,
    name="qwen3.5-35b-a3b",
    title="Qwen3.5 35B A3B",
    arch="qwen35moe",
    source="the model card; 733 tensors as in the public GGUF",
    n_layer=40,
    n_ff=0,
    n_vocab=248320,
    n_expert=256,
    n_expert_used=8,
    extra={"rope.freq_base": 1e7, "rope.dimension_sections": (11, 11, 10, 0)},
    n_params=34.66e9,
)

_QWEN35_35B_MTP: Final = replace(
    _QWEN35_35B,
    name="qwen3.5-35b-a3b-mtp",
    title="Qwen3.5 35B A3B with MTP",
    source="the model card; 753 tensors as in the public GGUF with the MTP block",
    n_layer_nextn=1,
    n_params=None,
)

_QWEN35_122B: Final = replace(
    _QWEN35_35B,
    name="qwen3.5-122b-a10b",
    title="Qwen3.5 122B A10B",
    source="the model card; parameters as llama-bench prints them",
    n_layer=48,
    n_embd=3072,
    n_head=32,
    n_ff_exp=1024,
    n_ff_shexp=1024,
    delta=DeltaNet(interval=4, d_state=128, n_group=16, dt_rank=64),
    n_params=122.11e9,
)

_QWEN35_397B: Final = replace(
    _QWEN35_122B,
    name="qwen3.5-397b-a17b",
    title="Qwen3.5 397B A17B",
    n_layer=60,
    n_embd=4096,
    n_expert=512,
    n_expert_used=10,
    n_params=396.35e9,
)

MODELS: Final = (
    _QWEN3_30B, _QWEN3_235B, _QWEN3_CODER_480B,
    _QWEN3_NEXT, _QWEN35_35B, _QWEN35_35B_MTP, _QWEN35_122B, _QWEN35_397B,
)  # fmt: skip
