"""The facts of every architecture of llama.cpp b11434, one line each where a line is enough.

Names are those of `LLM_ARCH_NAMES` (src/llama-arch.cpp); the facts come from
src/models/<name>.cpp and `llama_model::create_memory`. tests/llama lets the
real program judge them on a file of each.
"""

from __future__ import annotations

from typing import Final

from offload.arch.facts import (
    Arch,
    Attended,
    Indexed,
    Memory,
    Pattern,
    Recurrence,
    RopeCopies,
    State,
    Window,
    WindowWhen,
)

# plain attention on every layer: nothing to add
_PLAIN: Final = (
    "llama deci falcon gpt2 gptj gptneox mpt baichuan starcoder refact bloom stablelm qwen qwen2"
    " qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe plamo codeshell orion"
    " internlm2 minicpm minicpm3 gemma starcoder2 xverse command-r dbrx olmo olmoe openelm arctic"
    " deepseek deepseek2-ocr chatglm glm4 glm4moe t5 t5encoder jais jais2 nemotron exaone"
    " granite granitemoe chameleon plm bailingmoe bailingmoe2 dots1 arcee ernie4_5 ernie4_5-moe"
    " hunyuan-moe smollm3 seed_oss grovemoe apertus minimax-m2 cogvlm pangu-embedded mistral3"
    " paddleocr llama-embed maincoder talkie qwen3tts pockettts hrm_text"
).split()

# encoders: no memory, no output matrix
_ENCODERS: Final = (
    "bert nomic-bert nomic-bert-moe jina-bert-v2 jina-bert-v3 neo-bert eurobert"
).split()

_DIFFUSION: Final = "dream llada llada-moe rnd1".split()

_OPTIONAL: Final = WindowWhen.IF_POSITIVE
_LISTED: Final = Window(pattern=Pattern.ARRAY)

# interleaved sliding windows and nothing else
_WINDOWS: Final = {
    "afmoe": Window(when=_OPTIONAL, period=4),
    "cohere2": Window(period=4),
    "exaone-moe": Window(period=4),
    "exaone4": Window(period=4, n_swa_default=4096, only_n_layer=64),
    "gemma2": Window(period=2, n_swa_default=4096),
    "gemma3": Window(when=_OPTIONAL, period=6),
    "gpt-oss": Window(period=2),
    "granite_swa": _LISTED,
    "laguna": Window(when=_OPTIONAL, period=4, dense_first=True),
    "llama4": Window(when=WindowWhen.UNLESS_ZERO, period=4, n_swa_fixed=8192, kind="chunked"),
    "maple": _LISTED,
    "mellum": Window(when=_OPTIONAL, period=4),
    "mimo2": _LISTED,
    "muse-glimmer": Window(period=4),
    "olmo2": Window(when=_OPTIONAL, period=4),
    "plamo3": Window(when=_OPTIONAL, period=8),
    "smallthinker": Window(when=_OPTIONAL, period=4, dense_first=True, n_swa_fixed=4096),
    "spark2_5": _LISTED,
}

_NEXTN_HEAD: Final = frozenset(
    ("nextn.embed_tokens", "nextn.shared_head_head", "nextn.shared_head_norm")
)
_NEXTN_EXPERTS: Final = frozenset(
    ("ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp", "exp_probs_b", "ffn_gate_exps",
     "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps", "ffn_gate_shexp", "ffn_up_shexp",
     "ffn_down_shexp")
)  # fmt: skip
_STEP35_ATTENTION: Final = frozenset(("attn_q_norm", "attn_k_norm", "attn_gate"))

_DELTA_NET: Final = Arch(
    name="",
    memory=Memory.HYBRID,
    recurrence=Recurrence.INTERVAL,
    full_attention_interval=4,
    state=State.SSM,
    attended=Attended.TRUNK_NOT_RECURRENT,
)
_MAMBA_HYBRID: Final = Arch(
    name="", memory=Memory.HYBRID, recurrence=Recurrence.NO_KV_HEADS, state=State.SSM
)
_KDA: Final = _MAMBA_HYBRID._replace(state=State.KDA, is_mla=True)
_LFM2: Final = _MAMBA_HYBRID._replace(state=State.SHORTCONV, token_norm_is_output=True)
_NEMOTRON_H: Final = _MAMBA_HYBRID._replace(
    recurrence=Recurrence.NO_KV_HEADS_NO_FF, attended=Attended.WITHOUT_FF
)
_RECURRENT: Final = Arch(name="", memory=Memory.RECURRENT, recurrence=Recurrence.ALWAYS)
_RWKV: Final = _RECURRENT._replace(state=State.WKV)
_DSA: Final = Arch(name="", memory=Memory.DSA, is_mla=True)
_DRAFT: Final = Arch(name="", is_draft=True)

_OTHERS: Final = {
    # recurrent
    "mamba": _RECURRENT._replace(state=State.SSM_UNGROUPED),
    "mamba2": _RECURRENT._replace(state=State.SSM),
    "rwkv6": _RWKV,
    "rwkv6qwen2": _RWKV,
    "rwkv7": _RWKV,
    "arwkv7": _RWKV,
    # hybrids
    "jamba": _MAMBA_HYBRID._replace(state=State.SSM_UNGROUPED),
    "plamo2": _MAMBA_HYBRID,
    "granitehybrid": _MAMBA_HYBRID,
    "falcon-h1": _MAMBA_HYBRID._replace(recurrence=Recurrence.ALWAYS, attended=Attended.ALL),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
    "lfm2": _LFM2._replace(window=Window(when=_OPTIONAL, pattern=Pattern.ATTENTION)),
    "lfm2moe": _LFM2,
    "qwen3next": _DELTA_NET,
    "qwen35": _DELTA_NET,
    "qwen35moe": _DELTA_NET,
    "qwen4exp": _DELTA_NET._replace(
        memory=Memory.HYBRID_INDEXED, lazy_inputs=True, output_is_hyper=True
    ),
    "minimax-01": _DELTA_NET._replace(full_attention_interval=8, state=State.LIGHTNING),
    "kimi-linear": _KDA,
    "kimi-k3": _KDA._replace(value_is_latent=True),
    "bailingmoe3": _KDA,
    "glm5-next": _KDA._replace(
        memory=Memory.HYBRID_INDEXED,
        attended=Attended.TRUNK_NOT_RECURRENT,
        indexed=Indexed.LISTED,
        value_is_latent=True,
    ),
    # latent and sparse attention
    "deepseek2": Arch(name="", is_mla=True),
    "mistral4": Arch(name="", is_mla=True),
    "deepseek32": _DSA._replace(kept_in_nextn=frozenset(("exp_probs_b",))),
    "glm-dsa": _DSA._replace(indexed=Indexed.LISTED_GLM, kept_in_nextn=frozenset(("exp_probs_b",))),
    "hy_v4": _DSA._replace(indexed=Indexed.LISTED, indexer_is_optional=True),
    "dots3note": _DSA._replace(
        memory=Memory.DSA_WINDOWED, window=_LISTED, indexed=Indexed.LISTED_SHORT
    ),
    "deepseek4": Arch(
        name="",
        memory=Memory.DSV4,
        window=Window(pattern=Pattern.ALL),
        nextn_needs_tensors=True,
        output_is_hyper=True,
    ),
    "minimax-m3": Arch(name="", memory=Memory.MSA, indexed=Indexed.AFTER_DENSE_LEAD),
    # windows and more
    "cohere2moe": Arch(
        name="", window=Window(period=4, dense_first=True), kept_in_nextn=_NEXTN_HEAD
    ),
    "gemma3n": Arch(name="", window=Window(period=5), kv_from_start=20),
    "gemma4": Arch(
        name="",
        window=_LISTED,
        reads_shared_kv_layers=True,
        rope_copies=RopeCopies.FULL_ATTENTION,
        lazy_inputs=True,
        output_is_first=True,
    ),
    "step35": Arch(
        name="",
        window=_LISTED,
        rope_copies=RopeCopies.ALL,
        kept_in_nextn=_NEXTN_EXPERTS | _NEXTN_HEAD | _STEP35_ATTENTION,
    ),
    # odds
    "grok": Arch(name="", has_flash_attn=False),
    "bitnet": Arch(name="", has_output=False),
    "hy_v3": Arch(name="", kept_in_nextn=_NEXTN_EXPERTS | _NEXTN_HEAD),
    "hunyuan-dense": Arch(name="", ignores_lone_expert=True),
    "hunyuan_vl": Arch(name="", ignores_lone_expert=True),
    "graniteswitch": Arch(name="", has_router_layer=True),
    "nanbeige": Arch(name="", is_looped=True),
    "gemma-embedding": Arch(
        name="",
        memory=Memory.NONE,
        is_causal=False,
        window=Window(period=6, kind="symmetric"),
    ),
    "modern-bert": Arch(
        name="",
        memory=Memory.NONE,
        has_output=False,
        window=Window(when=_OPTIONAL, period=3, dense_first=True, kind="symmetric"),
    ),
    "clef": _DELTA_NET._replace(memory=Memory.NONE),
    "wavtokenizer-dec": Arch(name="", memory=Memory.NONE),
    # drafts, loaded beside another model
    "gemma4-assistant": _DRAFT._replace(
        window=_LISTED, rope_copies=RopeCopies.FULL_ATTENTION, nextn_is_loaded=True
    ),
    "eagle3": _DRAFT,
    "dflash": _DRAFT._replace(
        window=Window(when=_OPTIONAL, pattern=Pattern.ARRAY, all_if_hyper=True)
    ),
}


def _make_table() -> dict[str, Arch]:
    table = {name: Arch(name=name) for name in _PLAIN}
    for name in _ENCODERS:
        table[name] = Arch(name=name, memory=Memory.NONE, has_output=False)
    for name in _DIFFUSION:
        table[name] = Arch(name=name, memory=Memory.NONE, is_causal=False)
    for name, window in _WINDOWS.items():
        table[name] = Arch(name=name, window=window)
    table |= {name: arch._replace(name=name) for name, arch in _OTHERS.items()}
    return table


UNKNOWN: Final = Arch(name="")
"""Plain attention: what an architecture newer than this table is planned as."""

ARCHS: Final = _make_table()

OUTPUTS_AFTER_LAYERS: Final = frozenset(
    "qwen3next qwen35 qwen35moe gpt-oss gemma4 cohere2moe step35 bailingmoe3 hy_v3"
    " hy_v4 deepseek4 glm5-next kimi-k3 nemotron_h nemotron_h_moe".split()
)
"""The last layer computes all tokens, for its hidden state may feed an MTP block; elsewhere only
those with an output go on from its attention (`inp_out_ids`, src/models/*.cpp, b11434)."""
