"""A few models without experts, for which there is nothing to offload."""

from __future__ import annotations

from typing import Final

from tuner.shapes.shape import Shape, SlidingWindow

_LLAMA_70B: Final = Shape(
    name="llama-3.1-70b",
    title="Llama 3.1 70B",
    arch="llama",
    source="the model card; size as llama-bench prints it",
    n_layer=80,
    n_embd=8192,
    n_head=64,
    n_head_kv=8,
    n_embd_head=128,
    n_ff=28672,
    n_vocab=128256,
    n_ctx_train=131072,
    n_rot=128,
    f_norm_rms_eps=1e-5,
    extra={"rope.freq_base": 500000.0},
    n_params=70.55e9,
    size_gib={"Q4_K_M": 39.59},
)

_QWEN3_14B: Final = Shape(
    name="qwen3-14b",
    title="Qwen3 14B",
    arch="qwen3",
    source="the model card; size as llama-bench prints it",
    n_layer=40,
    n_embd=5120,
    n_head=40,
    n_head_kv=8,
    n_embd_head=128,
    n_ff=17408,
    n_vocab=151936,
    n_ctx_train=40960,
    n_rot=128,
    qk_norm=True,
    extra={"rope.freq_base": 1e6},
    n_params=14.77e9,
    size_gib={"Q4_K_M": 8.38},
)

_GEMMA_3_4B: Final = Shape(
    name="gemma-3-4b",
    title="Gemma 3 4B",
    arch="gemma3",
    source="the model card; size as llama-bench prints it",
    n_layer=34,
    n_embd=2560,
    n_head=8,
    n_head_kv=4,
    n_embd_head=256,
    n_ff=10240,
    n_vocab=262144,
    n_ctx_train=131072,
    qk_norm=True,
    output_is_tied=True,
    swa=SlidingWindow(n_swa=1024, period=6),
    tokenizer="llama",
    extra={"rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    n_params=3.88e9,
    size_gib={"Q4_K_M": 2.31},
)

MODELS: Final = (_LLAMA_70B, _QWEN3_14B, _GEMMA_3_4B)
