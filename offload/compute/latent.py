"""Which operations does latent attention add: absorbed, expanded, and with an indexer?

Mirrors the attention parts of src/models/deepseek2.cpp, deepseek32.cpp, glm-dsa.cpp and
dots3note.cpp (b11434). Where the key projection is absorbed into the queries, the cache holds
latent keys, of which the values are a part.
"""

from __future__ import annotations

from collections.abc import Callable

from offload.compute.attention import attend, cache_inputs, hadamard
from offload.compute.blocks import Builder
from offload.compute.graph import Node, Op, Outside, Source, view
from offload.compute.inputs import F32, CacheInputs, Inputs
from offload.hparams import HParams


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


def expanded_latent_attention(b: Builder, x: Source) -> Node:
    """Latent keys expanded to those of every head, as older files and MiniCPM 3 want it."""
    layer, rot = b.layer, cache_inputs(b)
    if b.has("attn_q_a"):
        q = b.mul_mat("attn_q_b", b.norm(b.mul_mat("attn_q_a", x), "attn_q_a_norm"))
    else:
        q = b.mul_mat("attn_q", x)
    rotated = hadamard(b, b.rope(view(q)), rot.k_rot)
    both = b.mul_mat("attn_kv_a_mqa", x)
    n_latent = b.shape("attn_kv_b")[0]
    n_rope = b.shape("attn_kv_a_mqa")[1] - n_latent
    kv = b.mul_mat("attn_kv_b", b.norm(view(both, n_latent * b.rows * F32), "attn_kv_a_norm"))
    v = hadamard(b, b.fresh(layer.head_v * layer.n_head, view(kv)), rot.v_rot)
    k_pe = b.rope(view(both, n_rope * b.rows * F32))
    repeated = b.fresh(n_rope * layer.n_head, k_pe)
    k = b.fresh(layer.head_k * layer.n_head, view(kv), repeated)
    return b.linear("attn_output", attend(b, rotated, hadamard(b, k, rot.k_rot), v))
