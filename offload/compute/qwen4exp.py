"""Which operations does one layer of Qwen4-exp add?

Mirrors src/models/qwen4exp.cpp (b11434): several residual streams behind gates, an n-gram
embedding in some layers, gated delta nets, and attention whose indexer scores pools of tokens.
"""

from __future__ import annotations

from typing import Final

from offload.compute.attention import gated_attention
from offload.compute.blocks import Builder
from offload.compute.builds import pools_by_cell
from offload.compute.graph import Node, Op, Source, view
from offload.compute.inputs import F32, I32, I64
from offload.compute.pooled import (
    Pools,
    choose_cells,
    index_cache,
    open_chosen,
    pools_of,
    read_rows,
    score_pools,
)
from offload.compute.recurrent import delta_net, load_state, store_state

_GATE_STEPS: Final = 3
_OLDER_MASKS: Final = 38
"""Masks of floats that were alive together."""


def qwen4exp_layer(b: Builder, x: Node, *, is_last: bool) -> Node:
    """Attention and experts, each reading a sum of the streams and added to all of them."""
    if b.has("ple_value") and b.inputs.shared:
        x = _with_ngrams(b, x, b.inputs.shared[0])
    y, wide = _mixed(b, x, "hc_attn")
    b.graph.expand()
    if b.layer.is_recr:
        out: Source = delta_net(b, y, repeats_keys=False)
    else:
        out = _attention(b, y)
    streams: Source = x
    if is_last:
        out, streams = b.take_outputs(out), b.take_outputs(view(x))
    inject: Source = b.mul_mat("hc_attn_inject", view(wide))
    if is_last:
        inject = b.take_outputs(inject)
        b.rows = b.inputs.n_outputs
    x = _spread(b, out, streams, inject)
    y, wide = _mixed(b, x, "hc_ffn")
    out = b.moe(y)
    if b.has("ffn_up_shexp"):
        shared = b.ffn(y, "_shexp")
        gate = b.rowwise(b.fresh(1, b.weight("ffn_gate_inp_shexp"), y))
        out = b.rowwise(out, b.rowwise(shared, gate))
    return _spread(b, out, x, b.mul_mat("hc_ffn_inject", view(wide)))


def _mixed(b: Builder, x: Node, name: str) -> tuple[Node, Node]:
    """One stream out of several, and these, normed."""
    wide = b.rowwise(b.rowwise(x), b.weight(f"{name}_norm"))
    low = b.rowwise(b.rowwise(b.mul_mat(f"{name}_down", view(wide))))
    gate = b.mul_mat(f"{name}_up", low)
    return b.fresh(b.hp.n_embd, view(wide), view(gate)), wide


def _spread(b: Builder, out: Source, streams: Source, inject: Source) -> Node:
    weights = b.chain(inject, _GATE_STEPS)
    return b.fresh(b.hp.hc_mult * b.hp.n_embd, out, streams, weights)


def _with_ngrams(b: Builder, x: Node, embeddings: Source) -> Node:
    """Add what an embedding of the last tokens says, after a convolution."""
    width = b.hp.hc_mult * b.hp.n_embd
    state = load_state(b, b.hp.ple_conv_state)
    value = b.fresh(width, view(b.mul_mat("ple_value", embeddings)))
    key = b.rowwise(b.rowwise(view(b.mul_mat("ple_key", embeddings))), b.weight("ple_norm_key"))
    query = b.rowwise(b.rowwise(view(x)), b.weight("ple_norm_query"))
    score = b.rowwise(b.fresh(b.hp.hc_mult, b.rowwise(key, query)))
    sign = b.rowwise(score)
    gate = b.rowwise(b.rowwise(sign, b.chain(score, _GATE_STEPS)))
    gated = b.rowwise(value, gate)
    normed = b.rowwise(b.rowwise(view(gated)), b.weight("ple_norm_conv"))
    columns = b.fresh_bytes(state.n_bytes + normed.n_bytes, state, view(normed))
    store_state(b, b.fresh_bytes(state.n_bytes, view(columns)), b.hp.ple_conv_state)
    total: Node | None = None
    for _ in range(b.shape("ple_conv1d")[0]):
        shifted = b.fresh(width, view(columns))
        kernel = b.fresh_bytes(width * F32, view(b.weight("ple_conv1d")))
        term = b.rowwise(shifted, view(kernel))
        total = term if total is None else b.rowwise(total, term)
    if total is None:
        raise LookupError("a convolution without a kernel")
    convolved = b.fresh(width, b.rowwise(total))
    return b.rowwise(x, b.rowwise(gated, view(convolved)))


def _attention(b: Builder, x: Source) -> Node:
    if not b.has("indexer.k_proj") or "indexer" not in b.inputs.caches:
        return gated_attention(b, x)
    if not pools_by_cell(b.inputs.build):
        return gated_attention(b, x, lambda: _older_mask(b, x))
    pools, width = pools_of(b), b.hp.indexer_head_size
    _store_keys(b, pools, x)
    q: Source = b.rope(b.norm(view(b.mul_mat("indexer.q_proj", x)), "indexer.q_norm"))
    n_bytes = width * pools.total * F32
    keys = read_rows(b, n_bytes, view(index_cache(b)), b.input("pools", pools.total * I32))
    weights = b.rowwise(b.graph.leaf(b.hp.indexer_n_head * b.rows * F32))
    scores = score_pools(b, pools, q, keys, weights)
    top = b.fresh(pools.n_top, scores)
    chosen = choose_cells(b, pools, view(top))
    b.graph.expand()

    def place(index: Node) -> Node:
        """Cells of pools that are not visible go to waste rows."""
        alive = b.chain(read_rows(b, top.n_bytes, view(scores), top), 2)
        alive = b.fresh(pools.size * pools.n_top, alive)
        tail = b.input("tail", (pools.size - 1) * b.rows * I32)
        open_tail = b.chain(b.fresh_bytes(tail.n_bytes, tail), 2)
        alive = b.fresh(pools.n_chosen, view(alive), open_tail)
        waste = b.rowwise(b.fresh(pools.n_chosen, b.rowwise(alive)))
        index = b.rowwise(index, waste)
        return b.rowwise(b.rowwise(index, alive), waste)

    return gated_attention(b, x, lambda: open_chosen(b, pools, chosen, place))


def _older_mask(b: Builder, x: Source) -> Node:
    """As older builds made it, of which only the size is known, from dry runs."""
    mask = b.inputs.caches["full"].mask
    floats = b.inputs.caches["full"].n_kv * b.rows * F32
    bias = b.input("block bias", floats // b.hp.indexer_kpool)
    return b.fresh_bytes(mask.n_bytes, b.fresh_bytes(_OLDER_MASKS * floats, x, bias), mask)


def _store_keys(b: Builder, pools: Pools, x: Source) -> None:
    """Keys and room for pooled ones; then the pools that the batch completes."""
    width = b.hp.indexer_head_size
    keys = b.mul_mat("indexer.k_proj", x)
    pair = b.fresh(2 * width, keys, b.rowwise(b.graph.leaf(width * b.rows * F32)))
    b.store(index_cache(b), view(pair), b.inputs.caches["indexer"].k_idxs)
    n_bytes = width * pools.completed * F32
    members = b.input("pool members", pools.size * pools.completed * I32)
    read = read_rows(b, pools.size * n_bytes, view(index_cache(b)), members)
    mean = b.fresh_bytes(n_bytes, view(read))
    for _ in range(pools.size - 1):
        mean = b.rowwise(mean, view(read))
    mean = b.norm(b.rowwise(mean), "indexer.k_norm")
    positions = b.input("pool pos", 4 * pools.completed * I32)
    pooled = b.graph.add(Op.ROPE, n_bytes, view(mean), positions, rows=b.rows)
    b.store(index_cache(b), view(pooled), b.input("pool cells", pools.completed * I64))
