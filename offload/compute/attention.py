"""Which operations does attention add: plain, or with a gate in its queries?

Mirrors `build_qkv`, `build_attn` and `build_attn_mha` (src/llama-graph.cpp) and the
attention parts of src/models/*.cpp, b11434.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from offload.compute.blocks import Builder
from offload.compute.graph import Node, Outside, Source, view
from offload.compute.inputs import F32, CacheInputs


def cache_inputs(b: Builder) -> CacheInputs:
    """Inputs of the layer's attention cache; of any where it reuses another layer's."""
    for cache in b.layer.caches:
        if cache.kind in b.inputs.caches and cache.kind != "indexer":
            return b.inputs.caches[cache.kind]
    return next(inputs for kind, inputs in b.inputs.caches.items() if kind != "indexer")


_SOFT_CAPPED: Final = frozenset(("gemma2", "grok"))


def attend(
    b: Builder,
    q: Source,
    k: Source | None,
    v: Source | None,
    make_mask: Callable[[], Source] | None = None,
) -> Source:
    """`build_attn` with or without a cache of keys and values, up to `kqv_out`."""
    inputs, layer = cache_inputs(b), b.layer
    keys, values = store_kv(b, inputs, k, v)
    n_out = layer.head_v * layer.n_head
    sinks = (b.weight("attn_sinks"),) if b.has("attn_sinks") else ()
    if b.inputs.flash_attn:
        keys, values = (
            b.in_f16(keys, b.inputs.options.type_k),
            b.in_f16(values, b.inputs.options.type_v),
        )
        mask = make_mask() if make_mask else inputs.mask
        out = b.attend(n_out, q, keys, values, mask, *sinks)
    else:
        if not b.inputs.v_is_transposed and not inputs.is_batch_only:
            values = b.fresh_bytes(values.n_bytes, view(values))
        kq = b.fresh(inputs.n_kv * layer.n_head, view(keys), view(q))
        if b.arch in _SOFT_CAPPED:
            kq = b.rowwise(b.rowwise(b.rowwise(kq)))
        kq = b.rowwise(kq, make_mask() if make_mask else inputs.mask, *sinks)
        out = b.fresh(n_out, view(b.fresh(n_out, view(values), kq)))
    b.graph.expand()
    return hadamard(b, view(out), inputs.v_rot)


def store_kv(
    b: Builder, inputs: CacheInputs, k: Source | None, v: Source | None
) -> tuple[Source, Source]:
    """The caches, after the batch's keys and values are stored; or just these, cast."""
    if inputs.is_batch_only and k is not None and v is not None:
        if not b.inputs.flash_attn:
            return k, b.fresh_bytes(v.n_bytes, view(v))
        return b.fresh_bytes(k.n_bytes // 2, view(k)), b.fresh_bytes(v.n_bytes // 2, view(v))
    sizes = b.cache_bytes("full", "swa")
    k_bytes, v_bytes = sizes[0], sizes[-1]
    k_cache, v_cache = Outside(k_bytes, b.cache_home), Outside(v_bytes, b.cache_home)
    if k is not None and v is not None:
        b.store(k_cache, view(k), inputs.k_idxs)
        v_width = b.hp.n_embd_v_gqa_max
        if b.inputs.v_is_transposed and b.layer.head_v * b.layer.n_head_kv < v_width:
            v = b.fresh(v_width, view(v))
        b.store(v_cache, view(v), inputs.v_idxs)
    return k_cache, v_cache


def hadamard(b: Builder, x: Source, rotation: Outside | None) -> Source:
    """`llama_mul_mat_hadamard`: quantised caches hold rotated keys and values."""
    if rotation is None:
        return x
    return view(b.fresh(b.width(x), rotation, view(x)))


class Style(NamedTuple):
    """How one architecture's plain attention differs from the most common one."""

    norm_after_rope: bool = False
    norms_values: bool = False
    scales_full: bool = False
    """Layers without a window have no rope, but queries scaled by position."""


def plain_attention(b: Builder, x: Source, style: Style) -> Node:
    """Q, K and V, their norms and rotations, attention, gate and output projection."""
    return b.linear("attn_output", attended(b, x, style))


def attended(b: Builder, x: Source, style: Style) -> Source:
    """Plain attention up to its output projection."""
    out = _attended(b, x, style)
    if not b.has("attn_gate"):
        return out
    return b.rowwise(out, view(b.rowwise(b.mul_mat("attn_gate", x))))


def _attended(b: Builder, x: Source, style: Style) -> Source:
    layer, rot = b.layer, cache_inputs(b)
    if b.has("attn_qkv"):
        qkv = b.linear("attn_qkv", x)
        n_head = layer.n_head * layer.head_k
        n_kv = layer.n_head_kv * layer.head_k
        parts = [view(qkv, n * b.rows * F32) for n in (n_head, n_kv)]
        q = hadamard(b, rotated(b, parts[0], "attn_q_norm", style, is_part=True), rot.k_rot)
        v = hadamard(b, view(qkv, layer.n_head_kv * layer.head_v * b.rows * F32), rot.v_rot)
        k = hadamard(b, rotated(b, parts[1], "attn_k_norm", style, is_part=True), rot.k_rot)
        return attend(b, q, k, v)
    q = hadamard(b, rotated(b, b.linear("attn_q", x), "attn_q_norm", style), rot.k_rot)
    if not layer.caches and not rot.is_batch_only:
        return attend(b, q, None, None)
    if "swa" in b.inputs.caches or rot.is_batch_only:
        k_raw = b.linear("attn_k", x)
        k = hadamard(b, rotated(b, k_raw, "attn_k_norm", style), rot.k_rot)
        v = hadamard(b, _values(b, x, k_raw, style), rot.v_rot)
    else:
        v = hadamard(b, b.linear("attn_v", x), rot.v_rot)
        k_raw = b.linear("attn_k", x)
        k = hadamard(b, rotated(b, k_raw, "attn_k_norm", style), rot.k_rot)
    return attend(b, q, k, v)


def _values(b: Builder, x: Source, k_raw: Node, style: Style) -> Source:
    """V, or K before its norm where there is no projection for it."""
    v = b.linear("attn_v", x) if b.has("attn_v") else k_raw
    return b.rowwise(view(v)) if style.norms_values else v


def rotated(b: Builder, x: Source, norm: str, style: Style, *, is_part: bool = False) -> Source:
    """Norm and rope of Q or K; a norm over whole rows works in place, one over heads does not."""
    heads: Source = view(x)
    if style.scales_full and b.layer.caches[0].kind == "full" and "swa" in b.inputs.caches:
        return (
            b.rowwise(heads, b.input("attn scale", b.inputs.n_tokens * F32))
            if norm == "attn_q_norm"
            else heads
        )
    if not b.has(norm):
        return b.rope(heads)
    if style.norm_after_rope:
        return b.norm(b.rope(heads), norm)
    if not is_part and b.shape(norm)[0] == b.width(x):
        return b.rope(view(b.norm(x, norm)))
    return b.rope(b.norm(heads, norm))


def gated_attention(b: Builder, x: Source, make_mask: Callable[[], Source] | None = None) -> Node:
    """Queries come with a gate for the result (Qwen3-Next and Qwen3.5)."""
    rot = cache_inputs(b)
    both = b.linear("attn_q", x)
    half = both.n_bytes // 2
    q = hadamard(b, b.rope(b.norm(view(both, half), "attn_q_norm")), rot.k_rot)
    v = hadamard(b, b.linear("attn_v", x), rot.v_rot)
    k = b.rope(b.norm(view(b.linear("attn_k", x)), "attn_k_norm"))
    out = attend(b, q, hadamard(b, k, rot.k_rot), v, make_mask)
    gate = b.rowwise(b.fresh_bytes(half, view(both)))
    return b.linear("attn_output", b.rowwise(out, gate))
