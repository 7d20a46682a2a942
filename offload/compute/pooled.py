"""Which operations does attention add whose indexer scores pools of consecutive tokens?

Mirrors `build_kpool_select` and `build_dsa_layer` of src/models/glm5-next.cpp (b11434), and
`llama_memory_hybrid_idx_context` (src/llama-memory-hybrid-idx.cpp) for the number of pools of
a reserved graph. Its masks are cells and chosen cells times tokens, several at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from offload.compute.blocks import Builder
from offload.compute.builds import pools_by_cell
from offload.compute.deepseek4 import reduce_mixed, spread_mixed, stream_mixes, stream_weights
from offload.compute.graph import Node, Op, Outside, Source, view
from offload.compute.inputs import F32, I32, I64
from offload.compute.latent import attend_latent
from offload.compute.recurrent import kimi_delta

_F16: Final = 2
_POOLS_PAD: Final = 64


class Pools(NamedTuple):
    """Sizes of the choice: pools in all, those completed by a batch, chosen ones and cells."""

    size: int
    total: int
    completed: int
    n_top: int
    n_chosen: int
    n_cells: int


def pools_of(b: Builder) -> Pools:
    """The worst case, which a reserved graph is made for."""
    size = b.hp.indexer_kpool
    n_cells = b.inputs.caches["indexer"].n_kv
    completed = n_cells // size * b.inputs.options.n_seq_max
    total = max(_POOLS_PAD, -(-(completed + 1) // _POOLS_PAD) * _POOLS_PAD)
    n_top = min(total, b.hp.indexer_top_k // size)
    return Pools(
        size=size,
        total=total,
        completed=max(completed, 1),
        n_top=n_top,
        n_chosen=size * n_top + size - 1,
        n_cells=n_cells,
    )


def glm5_next_layer(b: Builder, _arch: str, x: Node) -> Node:
    """Each half reads one of several streams, and is added to all of them."""
    mixes = stream_mixes(b, x, "hc_attn_fn")
    y = b.norm(reduce_mixed(b, x, mixes), "attn_norm")
    b.graph.expand()
    out = kimi_delta(b, y) if b.layer.is_recr else _latent(b, y)
    x = spread_mixed(b, out, x, *stream_weights(b, mixes))
    mixes = stream_mixes(b, x, "hc_ffn_fn")
    y = b.norm(reduce_mixed(b, x, mixes), "ffn_norm")
    out = b.rowwise(b.moe(y), b.ffn(y, "_shexp")) if b.has("ffn_down_exps") else b.ffn(y)
    return spread_mixed(b, out, x, *stream_weights(b, mixes))


def _latent(b: Builder, x: Source) -> Node:
    """Latent attention without rope, under the indexer's mask."""
    chosen: Node | None = None
    if b.has("indexer.attn_k"):
        _store_glm_keys(b, x)
    compressed = b.norm(b.mul_mat("attn_q_a", x), "attn_q_a_norm")
    if b.has("indexer.attn_k"):
        q = b.mul_mat("indexer.attn_q_b", compressed)
        chosen = _ordered_choice(b, *_scores(b, x, view(q)))
        b.graph.expand()
    q = b.mul_mat("attn_q_b", compressed)
    n_latent = b.shape("attn_k_b")[1]
    absorbed = b.fresh(n_latent * b.layer.n_head, b.weight("attn_k_b"), view(q))
    kv = b.norm(b.mul_mat("attn_kv_a_mqa", x), "attn_kv_a_norm")
    inputs = b.inputs.caches["mla"]
    cache = Outside(b.cache_bytes("mla")[0], b.cache_home)
    b.store(cache, view(kv), inputs.k_idxs)

    pools = pools_of(b)

    def place(index: Node) -> Node:
        """Cells that are not there go to waste rows."""
        waste = b.fresh_bytes(pools.n_chosen * F32, index)
        index = b.rowwise(index, waste)
        alive = b.rowwise(view(b.input("gather mask", pools.n_chosen * b.rows * F32)))
        return b.rowwise(b.rowwise(index, alive), waste)

    def mask() -> Source:
        if chosen is not None:
            b.inputs.shared[:] = [open_chosen(b, pools, chosen, place)]
        return b.inputs.shared[0]

    return b.linear("attn_output", attend_latent(b, absorbed, cache, mask, inputs, n_latent))


def index_cache(b: Builder) -> Outside:
    """The indexer's keys of every token, and pooled ones beside them."""
    return Outside(b.cache_bytes("indexer")[0], b.cache_home)


def _store_glm_keys(b: Builder, x: Source) -> None:
    """Keys, gates and room for pooled keys; then the pools that the batch completes."""
    pools, width = pools_of(b), b.hp.indexer_head_size
    keys = b.mul_mat("indexer.attn_k", x)
    keys = b.fresh(width, keys)  # a norm with a mean
    for part in ("indexer.k_norm", "indexer.k_norm.bias"):
        keys = b.rowwise(keys, *b.first(part))
    gates = b.mul_mat("indexer_compressor_gate", x)
    pair = b.fresh(2 * width, keys, gates)
    nothing = b.rowwise(b.graph.leaf(width * b.rows * F32))
    rows = b.fresh(3 * width, pair, nothing)
    b.store(index_cache(b), view(rows), b.inputs.caches["indexer"].k_idxs)
    n_bytes = width * pools.size * pools.completed * F32
    members = b.input("pool members", pools.size * pools.completed * I32)
    read = read_rows(b, 2 * n_bytes, view(index_cache(b)), members)
    logits = b.fresh_bytes(n_bytes, view(read), *b.first("indexer_compressor_ape"))
    logits = b.fresh_bytes(n_bytes, view(logits))
    shares = b.rowwise(view(logits))
    values = b.fresh_bytes(n_bytes, view(read))
    weighted = b.graph.add(Op.ROWWISE, n_bytes, view(shares), values, rows=b.rows)
    pooled = b.fresh_bytes(n_bytes // pools.size, weighted)
    b.store(index_cache(b), view(pooled), b.input("pool cells", pools.completed * I64))


def read_rows(b: Builder, n_bytes: int, source: Source, index: Source) -> Node:
    """`ggml_get_rows`."""
    return b.graph.add(Op.GET_ROWS, n_bytes, source, index, rows=b.rows)


def _scores(b: Builder, x: Source, q: Source) -> tuple[Pools, Node]:
    """Every pool's score for every token."""
    pools = pools_of(b)
    n_bytes = b.hp.indexer_head_size * pools.total * F32
    keys = read_rows(b, n_bytes, view(index_cache(b)), b.input("pools", pools.total * I32))
    weights = b.rowwise(b.mul_mat("indexer.proj", x))
    return pools, score_pools(b, pools, q, keys, weights)


def score_pools(b: Builder, pools: Pools, q: Source, keys: Node, weights: Source) -> Node:
    """`ggml_lightning_indexer` on pooled keys."""
    mask = b.input("pool mask", pools.total * b.rows * _F16)
    return b.fresh(pools.total, q, view(keys), weights, mask)


def _ordered_choice(b: Builder, pools: Pools, scores: Node) -> Node:
    """Cells of the best pools by falling score, and those of the unfinished one."""
    top = b.fresh(pools.n_top, scores)
    as_floats = b.fresh(pools.n_top, top)
    best = read_rows(b, top.n_bytes, view(scores), top)
    order = b.fresh(pools.n_top, view(best))
    ordered = read_rows(b, top.n_bytes, view(as_floats), order)
    ordered = b.fresh(pools.n_top, b.fresh(pools.n_top, view(ordered)))
    return choose_cells(b, pools, view(ordered))


def choose_cells(b: Builder, pools: Pools, top: Source) -> Node:
    """Cells of the chosen pools, and the tail of a pool not yet complete."""
    members = b.input("pool cells of all", pools.size * pools.total * I32)
    cells = read_rows(b, pools.size * pools.n_top * b.rows * I32, members, top)
    tail = b.input("tail", (pools.size - 1) * b.rows * I32)
    return b.fresh(pools.n_chosen, view(cells), tail)


def open_chosen(b: Builder, pools: Pools, chosen: Source, place: Callable[[Node], Node]) -> Node:
    """The mask with all but the chosen cells closed; `place` maps chosen cells to rows."""
    size = _F16 if b.inputs.flash_attn else F32
    older = () if pools_by_cell(b.inputs.build) else (_older_scratch(b, pools, chosen),)
    zeros = b.fresh_bytes(
        pools.n_chosen * b.rows * size, b.rowwise(b.graph.leaf(pools.n_chosen * size))
    )
    index = b.fresh(pools.n_chosen, view(chosen))
    index = b.fresh(pools.n_chosen, place(index))
    n_all = pools.n_cells + pools.n_chosen
    closed = b.fresh_bytes(n_all * b.rows * size, b.rowwise(b.graph.leaf(n_all * size)))
    opened = b.scatter(closed, view(zeros), view(index))
    mask = b.inputs.caches["mla" if "mla" in b.inputs.caches else "full"].mask
    n_bytes = pools.n_cells * b.rows * size
    return b.graph.add(Op.ROWWISE, n_bytes, opened, view(mask), *older, rows=b.rows)


def _older_scratch(b: Builder, pools: Pools, chosen: Source) -> Node:
    """What older builds needed more, of which only the size is known, from dry runs."""
    return b.fresh_bytes((b.inputs.n_seqs + 1) * pools.n_cells * b.rows * F32, chosen)
