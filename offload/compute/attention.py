"""Which operations does attention add: plain, gated, latent, and latent with an indexer?

Mirrors `build_qkv`, `build_attn` and `build_attn_mha` (src/llama-graph.cpp) and the
attention parts of src/models/*.cpp, b11434.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from offload.compute.blocks import Builder
from offload.compute.graph import Node, Op, Outside, Source, view
from offload.compute.inputs import F32, CacheInputs, Inputs
from offload.hparams import HParams


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
    k_bytes, v_bytes = b.cache_bytes("full", "swa")
    k_cache, v_cache = Outside(k_bytes, b.cache_home), Outside(v_bytes, b.cache_home)
    if k is not None and v is not None:
        b.store(k_cache, view(k), inputs.k_idxs)
        v_width = b.hp.n_embd_v_gqa_max
        if not b.inputs.flash_attn and b.layer.head_v * b.layer.n_head_kv < v_width:
            v = b.fresh(v_width, view(v))
        b.store(v_cache, view(v), inputs.v_idxs)
    return k_cache, v_cache


def hadamard(b: Builder, x: Source, rotation: Outside | None) -> Source:
    """`llama_mul_mat_hadamard`: quantised caches hold rotated keys and values."""
    if rotation is None:
        return x
    return view(b.fresh(b.width(x), rotation, view(x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
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
        return b.rowwise(heads, b.inputs.attn_scale) if norm == "attn_q_norm" else heads
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


def latent_attention(b: Builder, x: Source, *, has_rope: bool = True) -> Node:
    """MLA with the key projection absorbed into the queries (deepseek2.cpp, glm-dsa.cpp)."""
    return latent_output(b, latent_attended(b, x, has_rope=has_rope), x)


def latent_output(b: Builder, out: Source, x: Source) -> Node:
    """The gate, where there is one, and the output projection."""
    if b.has("attn_gate"):
        out = b.rowwise(out, view(b.rowwise(b.mul_mat("attn_gate", x))))
    return b.linear("attn_output", out)


def latent_attended(b: Builder, x: Source, *, has_rope: bool = True) -> Source:
    """Latent attention up to its gate."""
    indexer = b.inputs.caches.get("indexer") if b.has("indexer.attn_k") else None
    if indexer is not None:
        _store_indexer_keys(b, x, indexer)
    compressed = None
    if b.has("attn_q_a"):
        compressed = b.norm(b.linear("attn_q_a", x), "attn_q_a_norm")
        q = b.linear("attn_q_b", compressed)
    else:
        q = b.linear("attn_q", x)
    n_head = b.layer.n_head
    n_latent = b.shape("attn_k_b")[1]
    n_key = b.shape("attn_kv_a_mqa")[1]
    n_rope = n_key - n_latent
    absorbed = b.fresh(n_latent * n_head, b.weight("attn_k_b"), view(q))
    q_pe: Source = view(q, n_rope * n_head * b.rows * F32)
    q_pe = b.rope(q_pe) if has_rope else q_pe
    q = b.fresh(n_key * n_head, view(absorbed), q_pe)
    kv = b.linear("attn_kv_a_mqa", x)
    latent = b.norm(view(kv, n_latent * b.rows * F32), "attn_kv_a_norm")
    k_pe: Source = view(kv, n_rope * b.rows * F32)
    k_pe = b.norm(k_pe, "attn_k_norm") if b.has("attn_k_norm") else k_pe
    k_pe = b.rope(k_pe) if has_rope else k_pe
    k = b.fresh(n_key, view(latent), k_pe)
    inputs, full = cache_inputs(b), b.inputs.caches.get("mla")
    cache = Outside(b.layer.caches[0].tensor_bytes(b.inputs.options)[0], b.cache_home)
    b.store(cache, k, inputs.k_idxs)

    def mask() -> Source:
        if b.hp.indexer_top_k and "indexer" in b.inputs.caches and inputs is full:
            return _sparse_mask(b, x, compressed, inputs)
        return inputs.mask

    return attend_latent(b, q, cache, mask, inputs, n_latent)


def attend_latent(
    b: Builder,
    q: Node,
    cache: Outside,
    make_mask: Callable[[], Source],
    inputs: CacheInputs,
    n_latent: int,
) -> Source:
    """`build_attn_mha` on a latent cache; `make_mask` adds what the mask needs, if anything."""
    n_out = b.layer.n_head * n_latent
    n_v = b.layer.n_head * b.shape("attn_v_b")[1]

    def unpack(latent: Source) -> Node:
        """Latent results to values; the batch that op offload looks at is that of a stream."""
        n_rows = b.rows // inputs.n_stream
        operands = (b.weight("attn_v_b"), view(latent))
        return b.graph.add(Op.FRESH, n_v * b.rows * F32, *operands, rows=n_rows)

    if b.inputs.flash_attn:
        type_k = b.inputs.options.type_k
        k, v = b.in_f16(cache, type_k), b.in_f16(cache, type_k)
        out = b.attend(n_out, q, k, v, make_mask())
        out = unpack(out)
    else:
        v = b.fresh_bytes(cache.n_bytes * n_latent // b.shape("attn_kv_a_mqa")[1], view(cache))
        kq = b.fresh(inputs.n_kv * b.layer.n_head, view(cache), view(q))
        kq = b.rowwise(kq, make_mask())
        out = b.fresh(n_out, v, kq)
        out = unpack(out)
    out = b.fresh(n_v, view(out))
    b.graph.expand()
    return view(out)


def _store_indexer_keys(b: Builder, x: Source, inputs: CacheInputs) -> None:
    k: Source = b.norm(b.linear("indexer.attn_k", x), "indexer.k_norm")
    k = b.rope(view(k))
    if inputs.k_rot is not None:
        k = b.fresh(b.width(k), inputs.k_rot, k)
    b.store(Outside(0, b.cache_home), view(k), inputs.k_idxs)


def sparse_leaf_bytes(hp: HParams, inputs: Inputs) -> int:
    """Each sparse layer has a leaf of zeros, one for every cell it unmasks; 0 without indexer.

    Leaves have memory from the start, so those of all layers count.
    """
    cache = inputs.caches.get("mla")
    if not hp.indexer_top_k or cache is None or "indexer" not in inputs.caches:
        return 0
    return min(hp.indexer_top_k, cache.n_kv) * inputs.n_tokens * F32


def _sparse_mask(b: Builder, x: Source, q_compressed: Source | None, inputs: CacheInputs) -> Node:
    """Only the best `indexer_top_k` cells stay unmasked."""
    n_top = min(b.hp.indexer_top_k, inputs.n_kv)
    top: Source
    zeros = b.rowwise(b.graph.leaf(sparse_leaf_bytes(b.hp, b.inputs)))
    indexer = b.inputs.caches["indexer"]
    if b.has("indexer.attn_k"):
        q: Source = b.rope(view(b.linear("indexer.attn_q_b", q_compressed or x)))
        if indexer.k_rot is not None:
            q = b.fresh(b.width(q), indexer.k_rot, q)
        weights = b.rowwise(view(b.linear("indexer.proj", x)))
        keys = Outside(b.cache_bytes("indexer")[0], b.cache_home)
        scores = b.fresh(indexer.n_kv, view(q), view(keys), weights, indexer.mask)
        top = b.fresh(n_top, b.fresh(n_top, scores))
        b.inputs.shared.append(top)
    else:
        top = b.inputs.shared[-1]
    masked = b.rowwise(inputs.mask)
    return b.rowwise(b.scatter(masked, zeros, view(top)), inputs.mask)
