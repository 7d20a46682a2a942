"""Models with DeepSeek's latent attention: DeepSeek, Kimi, GLM 5, Mistral Small 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tuner.shapes.models.keys import SOFTMAX, router, yarn
from tuner.shapes.shape import MLA, Indexer, Shape

_V3: Final = Shape(
    name="deepseek-v3",
    title="DeepSeek V3",
    arch="deepseek2",
    source="the model card (also R1, V3-0324, V3.1), without its MTP block",
    n_layer=61,
    n_layer_dense_lead=3,
    n_embd=7168,
    n_head=128,
    n_head_kv=128,
    n_embd_head=192,
    n_ff=18432,
    n_vocab=129280,
    n_ctx_train=163840,
    n_expert=256,
    n_expert_used=8,
    n_expert_shared=1,
    n_ff_exp=2048,
    n_rot=64,
    mla=MLA(n_lora_q=1536, n_lora_kv=512, n_nope=128, n_rope=64, n_value=128),
    extra={
        "rope.freq_base": 10000.0,
        **yarn(40.0, 4096, 0.1),
        **router(2.5),
        "expert_group_count": 8,
        "expert_group_used_count": 4,
    },
    n_params=671.03e9,
)

_V2_5: Final = replace(
    _V3,
    name="deepseek-v2.5",
    title="DeepSeek V2.5",
    source="the model card; parameters as llama.cpp prints them",
    n_layer=60,
    n_layer_dense_lead=1,
    n_embd=5120,
    n_ff=12288,
    n_vocab=102400,
    n_expert=160,
    n_expert_used=6,
    n_expert_shared=2,
    n_ff_exp=1536,
    extra={
        "rope.freq_base": 10000.0,
        **yarn(40.0, 4096, 0.1),
        **router(16.0, norm=False, func=SOFTMAX),
    },
    n_params=235.74e9,
)

_V2_LITE: Final = replace(
    _V2_5,
    name="deepseek-v2-lite",
    title="DeepSeek V2 Lite",
    source="the model card",
    n_layer=27,
    n_embd=2048,
    n_head=16,
    n_head_kv=16,
    n_ff=10944,
    n_expert=64,
    n_ff_exp=1408,
    mla=MLA(n_lora_q=0, n_lora_kv=512, n_nope=128, n_rope=64, n_value=128),
    extra={
        "rope.freq_base": 10000.0,
        **yarn(40.0, 4096, 0.0707),
        **router(1.0, norm=False, func=SOFTMAX),
    },
    n_params=15.706e9,
)

_KIMI_K2: Final = replace(
    _V3,
    name="kimi-k2",
    title="Kimi K2",
    source="Kimi-K2-Instruct's model card; parameters as llama.cpp prints them (1.026 T)",
    n_layer_dense_lead=1,
    n_head=64,
    n_head_kv=64,
    n_vocab=163840,
    n_ctx_train=131072,
    n_expert=384,
    extra={"rope.freq_base": 50000.0, **yarn(32.0, 4096, 0.1), **router(2.827)},
    n_params=1026.4e9,
)

_GLM_5: Final = Shape(
    name="glm-5",
    title="GLM 5",
    arch="glm-dsa",
    source="the model card; parameters as llama.cpp prints them for the public GGUF",
    n_layer=78,
    n_layer_nextn=1,
    n_layer_dense_lead=3,
    n_embd=6144,
    n_head=64,
    n_head_kv=64,
    n_embd_head=256,
    n_ff=12288,
    n_vocab=154880,
    n_ctx_train=202752,
    n_expert=256,
    n_expert_used=8,
    n_expert_shared=1,
    n_ff_exp=2048,
    n_rot=64,
    mla=MLA(n_lora_q=2048, n_lora_kv=512, n_nope=192, n_rope=64, n_value=256),
    indexer=Indexer(n_head=32, n_embd_head=128, top_k=2048),
    f_norm_rms_eps=1e-5,
    extra={"rope.freq_base": 1e6, **router(2.5)},
    n_params=753.86e9,
)

_MISTRAL_SMALL_4: Final = Shape(
    name="mistral-small-4-119b",
    title="Mistral Small 4 119B",
    arch="mistral4",
    source="the configuration of Mistral-Small-4-119B-2603; the mix of types is ours, found from "
    "the case study's weights per card, which it gives to the MiB",
    n_layer=36,
    n_embd=4096,
    n_head=32,
    n_head_kv=32,
    n_embd_head=128,
    n_ff=12288,
    n_vocab=131072,
    n_ctx_train=1048576,
    n_expert=128,
    n_expert_used=4,
    n_expert_shared=1,
    n_ff_exp=2048,
    n_rot=64,
    mla=MLA(n_lora_q=1024, n_lora_kv=256, n_nope=64, n_rope=64, n_value=128),
    extra={
        "rope.freq_base": 10000.0,
        **yarn(128.0, 8192, 0.1),
        **router(1.0, func=SOFTMAX),
    },
    quant="Q3_K_MIX",
    n_params=118.97e9,
)

MODELS: Final = (_MISTRAL_SMALL_4, _V3, _V2_5, _V2_LITE, _KIMI_K2, _GLM_5)
