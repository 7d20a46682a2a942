"""MoE models that run on small machines as they are: OLMoE, Granite 3.1, Qwen1.5 MoE."""

from __future__ import annotations

from typing import Final

from tuner.shapes.shape import Shape

_OLMOE_7B: Final = Shape(
    name="olmoe-1b-7b",
    title="OLMoE 1B 7B",
    arch="olmoe",
    source="the model card",
    n_layer=16,
    n_embd=2048,
    n_head=16,
    n_head_kv=16,
    n_embd_head=128,
    n_vocab=50304,
    n_ctx_train=4096,
    n_expert=64,
    n_expert_used=8,
    n_ff_exp=1024,
    n_rot=128,
    qk_norm=True,
    f_norm_rms_eps=1e-5,
    extra={"rope.freq_base": 10000.0},
    n_params=6.919e9,
)

_GRANITE_3B: Final = Shape(
    name="granite-3.1-3b-a800m",
    title="Granite 3.1 3B A800M",
    arch="granitemoe",
    source="the model card",
    n_layer=32,
    n_embd=1536,
    n_head=24,
    n_head_kv=8,
    n_embd_head=64,
    n_vocab=49155,
    n_ctx_train=131072,
    n_expert=40,
    n_expert_used=8,
    n_ff_exp=512,
    n_rot=64,
    output_is_tied=True,
    extra={
        "rope.freq_base": 1e7,
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "attention.scale": 0.015625,
        "logit_scale": 6.0,
    },
    n_params=3.299e9,
)

_QWEN1_5_MOE: Final = Shape(
    name="qwen1.5-moe-a2.7b",
    title="Qwen1.5 MoE A2.7B",
    arch="qwen2moe",
    source="the model card",
    n_layer=24,
    n_embd=2048,
    n_head=16,
    n_head_kv=16,
    n_embd_head=128,
    n_ff=5632,
    n_vocab=151936,
    n_ctx_train=8192,
    n_expert=60,
    n_expert_used=4,
    n_ff_exp=1408,
    n_ff_shexp=5632,
    n_rot=128,
    qkv_bias=True,
    extra={"rope.freq_base": 1e6},
    n_params=14.316e9,
)

MODELS: Final = (_OLMOE_7B, _GRANITE_3B, _QWEN1_5_MOE)
