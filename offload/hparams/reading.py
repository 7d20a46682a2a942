"""Which value does each hyper-parameter get: the file's, or what llama.cpp hard-codes?

Mirrors `llama_model_base::load_hparams` of src/llama-model.cpp and the
`load_arch_hparams` of src/models/*.cpp (b11434), as far as they decide memory
or work per token.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from offload.arch import Arch, Memory, State
from offload.hparams.patterns import INDEXED, indexer_layers, recurrent_layers, window_layers
from offload.hparams.values import HParams
from offload.metadata import MAX_LAYERS, Metadata

MAX_EXPERTS: Final = 1024
"""`LLAMA_MAX_EXPERTS` of src/llama-hparams.h."""

WIDTH_MAX: Final = 1 << 24
_HEADS_MAX: Final = 1 << 16
_STREAMS_MAX: Final = 1 << 8

_SSM: Final = frozenset((State.SSM, State.SSM_UNGROUPED))


def make_hparams(
    keys: Metadata, arch: Arch, *, n_vocab: int, tensor_names: Container[str]
) -> HParams:
    """Every hyper-parameter, resolved; `tensor_names` are those of the file.

    Raises GGUFError naming the key that is missing, of the wrong type or beyond sense.
    """
    n_embd = keys.uint("embedding_length", at_most=WIDTH_MAX)
    if n_embd == 0:
        raise keys.error("embedding_length", "an embedding of width 0")
    layers = _layers(keys, arch, tensor_names)
    n_block, n_layer = layers.pop("n_block"), layers["n_layer_all"]
    heads = _heads(keys, arch, n_block, n_layer, n_embd)
    trunk = n_layer - layers["n_layer_nextn"]
    is_recr = recurrent_layers(keys, arch, heads["n_head_kv"], heads["n_ff"], trunk)
    state = _state(keys, arch, heads)
    indexer = _indexer(keys, arch, n_layer)
    return HParams(
        n_ctx_train=keys.uint("context_length", 0),
        n_vocab=n_vocab,
        n_embd=n_embd,
        n_embd_out=_output_width(keys, arch, n_embd),
        causal_attn=keys.flag("attention.causal", True) and arch.is_causal,
        f_max_alibi_bias=keys.number("attention.max_alibi_bias", 0.0),
        f_attn_logit_softcapping=keys.number("attn_logit_softcapping", 0.0),
        f_final_logit_softcapping=keys.number("final_logit_softcapping", 0.0),
        is_recr=is_recr,
        is_indexer_full=indexer_layers(keys, arch, n_layer, trunk),
        **_widths(keys),
        **layers,
        **heads,
        **_experts(keys, arch, n_block, n_layer),
        **window_layers(keys, arch.window, n_layer, trunk, is_recr),
        **state,
        **indexer,
        **_ngram_state(keys, arch, n_layer, n_embd),
    )


def _output_width(keys: Metadata, arch: Arch, n_embd: int) -> int:
    if arch.output_is_hyper:
        return n_embd * keys.uint("hyper_connection.count", 1, at_most=_STREAMS_MAX)
    return keys.uint("embedding_length_out", 0, at_most=WIDTH_MAX) or n_embd


def _layers(keys: Metadata, arch: Arch, tensor_names: Container[str]) -> dict[str, Any]:
    """Layer counts; `n_block` is the file's, from which looped and router layers are made."""
    n_block = n_layer = keys.uint("block_count", at_most=MAX_LAYERS)
    if n_block == 0:
        raise keys.error("block_count", "a model of 0 layers")
    n_nextn = keys.uint("nextn_predict_layers", 0)
    if n_nextn > n_layer:
        raise keys.error("nextn_predict_layers", f"{n_nextn} of {n_layer} layers")
    probe = f"blk.{n_layer - n_nextn}.nextn.eh_proj.weight"
    if arch.nextn_needs_tensors and probe not in tensor_names:
        n_nextn = 0
    router = -1
    if arch.has_router_layer:  # a file saved by llama.cpp counts its router as an MTP block
        router = n_layer - n_nextn
        n_layer, n_nextn = router + 1, 0
    n_loops = max(1, keys.uint("num_loops", 1, at_most=MAX_LAYERS)) if arch.is_looped else 1
    n_layer *= n_loops
    if n_layer > MAX_LAYERS:
        raise keys.error("block_count", f"{n_layer} layers where llama.cpp takes {MAX_LAYERS}")
    from_start = arch.kv_from_start
    if arch.reads_shared_kv_layers:
        shared = keys.uint("attention.shared_kv_layers", 0)
        from_start = n_layer - shared
        if shared and from_start < 2:
            raise keys.error("attention.shared_kv_layers", f"{shared} of {n_layer} layers")
    return {
        "n_block": n_block,
        "n_layer_all": n_layer,
        "n_layer_nextn": n_nextn,
        "n_loops": n_loops,
        "n_layer_dense_lead": keys.uint("leading_dense_block_count", 0),
        "n_layer_kv_from_start": from_start,
        "router_layer": router,
    }


def _heads(keys: Metadata, arch: Arch, n_block: int, n_layer: int, n_embd: int) -> dict[str, Any]:
    """Heads of every layer and their sizes; what the file lists is repeated over loops."""

    def spread(values: tuple[int, ...], router: int) -> tuple[int, ...]:
        if arch.has_router_layer:
            return (*values[: n_layer - 1], router)
        return values * (n_layer // n_block)

    n_head = keys.uints("attention.head_count", n_block, (0,) * n_block, at_most=_HEADS_MAX)
    n_head_kv = keys.uints("attention.head_count_kv", n_block, n_head, at_most=_HEADS_MAX)
    n_ff = keys.uints("feed_forward_length", n_block, (0,) * n_block, at_most=WIDTH_MAX)
    size = n_embd // n_head[0] if n_head[0] else 0
    k = v = rot = 0
    if n_head[0]:
        k = keys.uint("attention.key_length", size, at_most=WIDTH_MAX)
        v = keys.uint("attention.value_length", size, at_most=WIDTH_MAX)
        rot = keys.uint("rope.dimension_count", k, at_most=WIDTH_MAX)
    k_swa = keys.uint("attention.key_length_swa", k, at_most=WIDTH_MAX)
    v_swa = keys.uint("attention.value_length_swa", v, at_most=WIDTH_MAX)
    n_lora_kv = keys.uint("attention.kv_lora_rank", 0, at_most=WIDTH_MAX)
    k_mla = v_mla = 0
    if arch.is_mla:
        k_mla = keys.uint("attention.key_length_mla", 0, at_most=WIDTH_MAX)
        v_mla = keys.uint("attention.value_length_mla", 0, at_most=WIDTH_MAX)
    return {
        "n_head": spread(n_head, 1),
        "n_head_kv": spread(n_head_kv, 1),
        "n_ff": spread(n_ff, 0),
        "n_embd_head_k_full": k,
        "n_embd_head_v_full": n_lora_kv if arch.value_is_latent else v,
        "n_embd_head_k_swa": k_swa,
        "n_embd_head_v_swa": v_swa,
        "n_embd_head_k_mla": k_mla,
        "n_embd_head_v_mla": v_mla,
        "n_rot_full": rot,
        "n_rot_swa": keys.uint("rope.dimension_count_swa", rot, at_most=WIDTH_MAX),
        "n_lora_q": keys.uint("attention.q_lora_rank", 0, at_most=WIDTH_MAX),
        "n_lora_kv": n_lora_kv,
    }


def _experts(keys: Metadata, arch: Arch, n_block: int, n_layer: int) -> dict[str, Any]:
    """Counts and widths of routed and shared experts."""
    n_expert = keys.uint("expert_count", 0, at_most=MAX_EXPERTS)
    used = keys.uints("expert_used_count", n_block, (0,) * n_block)
    if arch.ignores_lone_expert and n_expert <= 1:
        n_expert, used = 0, (0,) * n_block
    if max(used) > n_expert:
        raise keys.error("expert_used_count", f"{max(used)} of {n_expert} experts")
    if n_expert and not max(used):
        raise keys.error("expert_used_count", f"none of {n_expert} experts is used")
    width = keys.uints("expert_feed_forward_length", n_block, (0,) * n_block, at_most=WIDTH_MAX)
    extra = max(0, n_layer - n_block)
    return {
        "n_expert": n_expert,
        "n_expert_used": (used + used[-1:] * extra)[:n_layer],
        "n_ff_exp": (width + width[-1:] * extra)[:n_layer],
        "n_expert_shared": keys.uint("expert_shared_count", 0, at_most=MAX_EXPERTS),
        "n_expert_groups": keys.uint("expert_group_count", 0),
        "n_group_used": keys.uint("expert_group_used_count", 0),
        "n_moe_layer_step": keys.uint("interleave_moe_layer_step", 0),
    }


def _widths(keys: Metadata) -> dict[str, Any]:
    """Widths of parts that only some architectures have."""
    names = {
        "n_embd_per_layer": "embedding_length_per_layer_input",
        "n_ff_shexp": "expert_shared_feed_forward_length",
        "n_ff_chexp": "expert_chunk_feed_forward_length",
        "moe_latent_size": "moe_latent_size",
        "n_expert_latent": "expert_latent_length",
        "n_deepstack_layers": "n_deepstack_layers",
        "hc_mult": "hyper_connection.count",
    }
    return {field: keys.uint(name, 0, at_most=WIDTH_MAX) for field, name in names.items()}


def _state(keys: Metadata, arch: Arch, heads: dict[str, Any]) -> dict[str, Any]:
    """The keys that size a recurrent state, only those this architecture reads."""
    state = arch.state
    ssm = state in _SSM

    def required(name: str, wanted: bool) -> int:
        return keys.uint(name, at_most=WIDTH_MAX) if wanted else 0

    l_cache = required("shortconv.l_cache", state is State.SHORTCONV)
    if state is State.SHORTCONV and l_cache == 0:
        raise keys.error("shortconv.l_cache", "a convolution of length 0")
    return {
        "wkv_head_size": required("wkv.head_size", state is State.WKV),
        "token_shift_count": keys.uint("token_shift_count", 2, at_most=64),
        "n_shortconv_l_cache": l_cache,
        "n_embd_head_kda": required("kda.head_dim", state is State.KDA),
        "n_embd_head_la": heads["n_embd_head_k_full"] if state is State.LIGHTNING else 0,
        "ssm_d_conv": required("ssm.conv_kernel", ssm or state is State.KDA),
        "ssm_d_inner": required("ssm.inner_size", ssm),
        "ssm_d_state": required("ssm.state_size", ssm),
        "ssm_dt_rank": required("ssm.time_step_rank", ssm),
        "ssm_n_group": required("ssm.group_count", state is State.SSM),
    }


def _indexer(keys: Metadata, arch: Arch, n_layer: int) -> dict[str, Any]:
    """Sizes of the sparse-attention indexer; `indexer_kpool_row` is its key slots per token."""
    ratios = (0,) * n_layer
    kpool, row = 0, 3
    if arch.memory is Memory.DSV4:
        n = keys.length("attention.compress_ratios")
        if n is None or n < n_layer:
            raise keys.error("attention.compress_ratios", f"not a value for each of {n_layer}")
        ratios = keys.array("attention.compress_ratios", n_layer) or ratios
    elif arch.memory is Memory.HYBRID_INDEXED and arch.state is State.SSM:
        ratios = keys.uints("attention.compress_ratios", n_layer, ratios)
        kpool, row = max(ratios), 2
    elif arch.memory is Memory.HYBRID_INDEXED:
        kpool = keys.uint("attention.indexer.kpool", at_most=WIDTH_MAX)
    top_k = keys.uint("attention.indexer.top_k", 0) if arch.memory in INDEXED else 0
    is_used = arch.memory in INDEXED and (top_k > 0 or not arch.indexer_is_optional)
    size = keys.uint("attention.indexer.key_length", at_most=WIDTH_MAX) if is_used else 0
    return {
        "indexer_n_head": keys.uint("attention.indexer.head_count", 0) if is_used else 0,
        "indexer_head_size": size,
        "indexer_top_k": top_k,
        "indexer_block_size": keys.uint("attention.indexer.block_size", 0) if is_used else 0,
        "indexer_kpool": kpool,
        "indexer_kpool_row": row if kpool else 1,
        "compress_ratios": ratios,
    }


def _ngram_state(keys: Metadata, arch: Arch, n_layer: int, n_embd: int) -> dict[str, Any]:
    """History of the n-gram embedding's convolution (`llama_hparams::ple_conv_state`)."""
    listed = keys.array("ple.layers", MAX_LAYERS) if arch.memory is Memory.HYBRID_INDEXED else None
    n = keys.length("ple.layers") or 0
    if arch.state is not State.SSM or listed is None or n == 0:
        return {"ple_conv_state": 0, "is_ple": (False,) * n_layer}
    layers = frozenset(listed[:n])
    kernel = keys.uint("ple.conv_kernel", at_most=1 << 12)
    ngram = keys.uint("ple.ngram_size", at_most=1 << 8)
    hc_mult = keys.uint("hyper_connection.count", at_most=_STREAMS_MAX)
    return {
        "ple_conv_state": max(kernel - 1, 0) * ngram * hc_mult * n_embd,
        "is_ple": tuple(il in layers for il in range(n_layer)),
    }
