"""Which operations does MiniMax's block-sparse attention add?

Mirrors the sparse layers of src/models/minimax-m3.cpp (b11434): an indexer scores blocks of
keys, each KV head gets a mask of its own from the best blocks, one stream after the other.
The masks are what costs memory: cells times tokens times KV heads, twice as floats.
"""

from __future__ import annotations

from typing import Final

from offload.compute.attention import Style, hadamard, rotated, store_kv
from offload.compute.blocks import Builder
from offload.compute.graph import Node, Op, Outside, Source, view
from offload.compute.inputs import F32, CacheInputs

_F16: Final = 2
_N_POSITIONS: Final = 256
"""What an empty cache counts (`get_n_pos` of src/llama-kv-cache-msa.cpp)."""
_N_CHOSEN: Final = 16
"""Blocks each token attends to; too few to matter."""
_N_INPUTS: Final = 4
_STYLE: Final = Style()


def is_block_sparse(b: Builder) -> bool:
    """Only with flash attention, and with a cache for each sequence."""
    options = b.inputs.options
    has_streams = options.n_seq_max == 1 or not options.kv_unified
    return b.has("indexer.q_proj") and options.flash_attn and has_streams


def block_sparse_attention(b: Builder, x: Source) -> Node:
    """Attention under a mask for each KV head, output projection included."""
    inputs, index = b.inputs.caches["full"], b.inputs.caches["indexer"]
    keys: Source = b.norm(view(b.linear("indexer.k_proj", x)), "indexer.k_norm")
    keys = b.rope(keys)
    index_cache = Outside(b.layer.caches[1].tensor_bytes(b.inputs.options)[0], b.cache_home)
    b.store(index_cache, view(keys), index.k_idxs)
    q = hadamard(b, rotated(b, b.linear("attn_q", x), "attn_q_norm", _STYLE), inputs.k_rot)
    k = hadamard(b, rotated(b, b.linear("attn_k", x), "attn_k_norm", _STYLE), inputs.k_rot)
    v = hadamard(b, b.linear("attn_v", x), inputs.v_rot)
    caches = store_kv(b, inputs, k, v)
    iq = b.rope(b.norm(view(b.linear("indexer.q_proj", x)), "indexer.q_norm"))
    out: Source | None = None
    for _ in range(inputs.n_stream):
        mask = _masks(b, inputs, view(iq), view(index_cache))
        n_bytes = b.layer.head_v * b.layer.n_head * b.rows // inputs.n_stream * F32
        kv = (view(caches[0]), view(caches[1]))
        attended = b.graph.add(Op.ATTENTION, n_bytes, view(q), *kv, mask, rows=b.rows)
        attended = b.fresh_bytes(n_bytes, view(attended))
        out = b.fresh_bytes(out.n_bytes + n_bytes, out, view(attended)) if out else view(attended)
    if out is None:
        raise LookupError("a cache without streams")
    return b.linear("attn_output", hadamard(b, out, inputs.v_rot))


def _masks(b: Builder, inputs: CacheInputs, iq: Source, index: Source) -> Node:
    """The masks of one stream's tokens: cells x tokens x KV heads, in the end in F16."""
    n_heads, n = b.layer.n_head_kv, b.rows // inputs.n_stream
    n_blocks = -(-_N_POSITIONS // max(b.hp.indexer_block_size, 1))
    n_slots = n_blocks * max(b.hp.indexer_block_size, 1)
    n_scores, n_cells = n_blocks * n_heads * n, inputs.n_kv * n_heads * n
    fresh = b.fresh_bytes
    bias, visible, slots, cells = _shared_inputs(b, inputs, n_blocks, n_slots)
    pooled = fresh(b.hp.indexer_head_size * n_slots * F32, index, view(slots))
    score = fresh(n_slots * n_heads * n * F32, pooled, iq)
    b.graph.add(Op.STORE, 0, view(visible), view(score), rows=n)
    best = b.rowwise(fresh(n_scores * F32, view(score)), view(bias))
    chosen = fresh(min(_N_CHOSEN, n_blocks) * n_heads * n * F32, best)
    closed = fresh(n_blocks * n * _F16, fresh(n_blocks * n * F32, view(bias)))
    opened = fresh(n_scores * _F16, closed)
    zeros = b.rowwise(fresh(chosen.n_bytes, chosen))
    b.graph.add(Op.STORE, 0, view(zeros), view(chosen), view(opened), rows=n)
    blocks = fresh(n_scores * _F16, view(fresh(n_scores * _F16, view(opened))))
    spread = fresh(n_cells * F32, view(fresh(n_cells * F32, blocks, view(cells))))
    if len(b.inputs.shared) == _N_INPUTS:
        b.inputs.shared.append(fresh(inputs.n_kv * b.inputs.n_tokens * F32, inputs.mask))
    b.graph.add(Op.STORE, 0, view(b.inputs.shared[-1]), view(spread), rows=n)
    return fresh(n_cells * _F16, view(spread))


def _shared_inputs(
    b: Builder, inputs: CacheInputs, n_blocks: int, n_slots: int
) -> tuple[Source, Source, Source, Source]:
    """The graph inputs of all sparse layers; behind them the first leaves the mask as floats."""
    shared = b.inputs.shared
    if not shared:
        t, n_stream = b.inputs.n_tokens, inputs.n_stream
        sizes = (n_blocks * t, n_slots * t, n_slots * n_stream, inputs.n_kv * n_stream)
        shared += [b.graph.input(n * F32) for n in sizes]
    bias, visible, slots, cells = shared[:_N_INPUTS]
    return bias, visible, slots, cells
