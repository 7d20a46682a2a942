"""Which operations does one layer of DeepSeek V4 add?

Mirrors src/models/deepseek4.cpp (b11434). Residual streams are mixed by operations of their
own. Attention looks at the last tokens; in some layers also at keys compressed from every 4
tokens, of which an indexer chooses the best, in others at keys of every 128 tokens. How many
keys a reserved graph compresses is `dsv4_build_reserve_comp_plan`
(src/llama-kv-cache-dsv4.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offload.compute.attention import hadamard
from offload.compute.blocks import Builder
from offload.compute.graph import Node, Op, Outside, Source, view
from offload.compute.inputs import F32, I32, I64
from offload.context import Cache
from offload.ggml import row_bytes

_CSA_RATIO: Final = 4
_HCA_RATIO: Final = 128
_F16: Final = 2
_STEPS: Final = 4
"""Operations from the mixes to the weights of the streams."""


def deepseek4_layer(b: Builder, _arch: str, x: Node) -> Node:
    """Attention and experts, each reading a sum of the streams and added to all of them."""
    mixes = stream_mixes(b, x, "hc_attn_fn")
    y = reduce_mixed(b, x, mixes)
    y = _attention(b, b.norm(y, "attn_norm"))
    x = spread_mixed(b, y, x, *stream_weights(b, mixes))
    mixes = stream_mixes(b, x, "hc_ffn_fn")
    post = stream_weights(b, mixes)
    b.graph.expand()
    y = b.norm(reduce_mixed(b, x, mixes), "ffn_norm")
    y = b.rowwise(b.moe(y), b.ffn(y, "_shexp"))
    return spread_mixed(b, y, x, *post)


def stream_mixes(b: Builder, x: Source, fn: str) -> Node:
    """From which all weights of the streams are made."""
    return b.fresh(b.shape(fn)[1], b.weight(fn), b.rowwise(view(x)))


def reduce_mixed(b: Builder, x: Source, mixes: Node) -> Node:
    """`DSV4_HC_PRE`: one stream out of several."""
    weights = b.chain(view(mixes, b.hp.hc_mult * b.rows * F32), _STEPS)
    return b.fresh(b.hp.n_embd, x, weights)


def stream_weights(b: Builder, mixes: Node) -> tuple[Source, Node]:
    """How much of a result each stream gets, and of each other stream."""
    n = b.hp.hc_mult
    return b.chain(view(mixes, n * b.rows * F32), _STEPS), b.fresh(n * n, mixes)


def spread_mixed(b: Builder, y: Source, x: Source, post: Source, comb: Node) -> Node:
    """`DSV4_HC_POST`: the streams mixed with each other and with a result."""
    if not b.inputs.fuses_streams:
        return _spread_by_steps(b, y, x, post, comb)
    return b.fresh(b.hp.hc_mult * b.hp.n_embd, y, x, post, comb)


def _spread_by_steps(b: Builder, y: Source, x: Source, post: Source, comb: Node) -> Node:
    n_bytes = b.hp.n_embd * b.rows * F32
    out: Node | None = None
    for _ in range(b.hp.hc_mult):
        total = b.graph.add(Op.ROWWISE, n_bytes, y, view(post), rows=b.rows)
        for _ in range(b.hp.hc_mult):
            term = b.graph.add(Op.ROWWISE, n_bytes, view(x), view(comb), rows=b.rows)
            total = b.rowwise(total, term)
        out = total if out is None else b.fresh_bytes(out.n_bytes + n_bytes, out, view(total))
    if out is None:
        raise LookupError("hyper-connections without streams")
    return out


def _attention(b: Builder, x: Source) -> Node:
    ratio = b.hp.compress_ratios[b.layer.il]
    ring = b.layer.caches[0]
    if ratio == _CSA_RATIO:
        _compress(b, x, "attn_compressor", b.layer.caches[1], ratio, overlaps=True)
        _compress(b, x, "indexer_compressor", b.layer.caches[2], ratio, overlaps=True)
    elif ratio == _HCA_RATIO:
        _compress(b, x, "attn_compressor", b.layer.caches[1], ratio, overlaps=False)
    rot = b.inputs.caches["swa"].k_rot
    compressed = b.norm(b.mul_mat("attn_q_a", x), "attn_q_a_norm")
    q: Source = b.rope(b.rowwise(view(b.mul_mat("attn_q_b", compressed))))
    q = hadamard(b, q, rot)
    kv: Source = b.rope(view(b.norm(b.mul_mat("attn_kv", x), "attn_kv_a_norm")))
    kv = hadamard(b, kv, rot)
    raw = Outside(ring.tensor_bytes(b.inputs.options)[0], b.cache_home)
    b.store(raw, view(kv), b.inputs.caches["swa"].k_idxs)
    keys, make_mask, n_cells = _visible(b, x, compressed, raw, ratio)
    out = hadamard(b, _attend(b, q, keys, make_mask, n_cells), rot)
    out = b.rope(view(out))
    shape = b.shape("attn_output_a")
    rank, n_groups = shape[1], shape[2]
    grouped = b.fresh(rank * n_groups, b.weight("attn_output_a"), view(out))
    return b.linear("attn_output_b", b.fresh(rank * n_groups, view(grouped)))


def _visible(
    b: Builder, x: Source, compressed: Node, raw: Outside, ratio: int
) -> tuple[Source, Callable[[], Source], int]:
    """Keys of all that attention looks at, what makes their mask, and cells of one sequence."""
    ring = b.inputs.caches["swa"]
    if ratio not in (_CSA_RATIO, _HCA_RATIO):
        return raw, lambda: ring.mask, ring.n_kv
    cache = b.layer.caches[1]
    n_cells = _cells(b, cache)
    kept = Outside(cache.tensor_bytes(b.inputs.options)[0], b.cache_home)
    keys = b.fresh_bytes(raw.n_bytes + kept.n_bytes, view(raw), view(kept))

    def make_mask() -> Source:
        mask: Source = _mask(b, "csa" if ratio == _CSA_RATIO else "hca", n_cells)
        if ratio == _CSA_RATIO:
            mask = _chosen(b, x, compressed, mask)
        return b.fresh_bytes(ring.mask.n_bytes + mask.n_bytes, ring.mask, mask)

    return keys, make_mask, ring.n_kv + n_cells


def _cells(b: Builder, cache: Cache) -> int:
    """Cells of one sequence; caches of this model are never shared."""
    options = b.inputs.options
    width = getattr(cache, "n_embd_k", 0)
    total = cache.tensor_bytes(options)[0] // row_bytes(options.type_k, width)
    return total // options.n_seq_max


def _mask(b: Builder, name: str, n_cells: int) -> Outside:
    is_f16 = name == "lid" or b.inputs.flash_attn
    return b.input(f"{name} mask", n_cells * b.rows * (_F16 if is_f16 else F32))


def _chosen(b: Builder, x: Source, compressed: Node, mask: Source) -> Node:
    """The mask with all but the indexer's choice closed."""
    cache = b.layer.caches[2]
    n_cells = _cells(b, cache)
    n_top = min(b.hp.indexer_top_k, n_cells)
    size = _F16 if b.inputs.flash_attn else F32
    zeros = b.rowwise(b.graph.leaf(n_top * b.rows * size))
    q: Source = b.rope(view(b.mul_mat("indexer.attn_q_b", compressed)))
    q = b.fresh(b.width(q), b.input("lid rot", _rot_bytes(b.hp.indexer_head_size)), view(q))
    weights = b.rowwise(b.mul_mat("indexer.proj", x))
    keys = Outside(cache.tensor_bytes(b.inputs.options)[0], b.cache_home)
    scores = b.fresh(n_cells, view(q), view(keys), view(weights), _mask(b, "lid", n_cells))
    top = b.fresh(n_top, b.fresh(n_top, scores))
    closed = b.rowwise(mask)
    return b.rowwise(b.scatter(closed, zeros, view(top)), mask)


def _rot_bytes(head: int) -> int:
    n_rot = 64
    while head % (2 * n_rot) == 0:
        n_rot *= 2
    return n_rot * n_rot * F32


def _attend(
    b: Builder, q: Source, keys: Source, make_mask: Callable[[], Source], n_cells: int
) -> Node:
    """`build_attn_mha`, where the keys are the values too."""
    layer = b.layer
    n_out = layer.head_k * layer.n_head
    sinks = (b.weight("attn_sinks"),) if b.has("attn_sinks") else ()
    if b.inputs.flash_attn:
        k = v = keys
        if b.inputs.options.type_k.name == "F32":
            k, v = (b.fresh_bytes(keys.n_bytes // 2, view(keys)) for _ in range(2))
        out = b.attend(n_out, q, k, v, make_mask(), *sinks)
    else:
        values = b.fresh_bytes(keys.n_bytes, view(keys))
        kq = b.fresh(n_cells * layer.n_head, view(keys), view(q))
        kq = b.rowwise(kq, make_mask(), *sinks)
        out = b.fresh(n_out, view(b.fresh(n_out, values, kq)))
    b.graph.expand()
    return out


def _compress(
    b: Builder, x: Source, name: str, cache: Cache, ratio: int, *, overlaps: bool
) -> None:
    """New compressed keys from the batch and what earlier ones left unfinished."""
    kind = "lid" if name.startswith("indexer") else "csa" if overlaps else "hca"
    n_blocks = b.rows // ratio + b.inputs.n_seqs
    width = b.shape(f"{name}_norm")[0]
    values, state = _states(b, x, name, kind, ratio, n_blocks)
    scores, state_scores = _states(b, x, name, kind, ratio, n_blocks, are_scores=True)
    scores = b.rowwise(scores)
    n_bytes = width * n_blocks * F32
    weighted = b.rowwise(values, scores)
    keys: Source = b.fresh_bytes(n_bytes, view(b.fresh_bytes(n_bytes, weighted)))
    keys = b.rope(b.norm(view(keys), f"{name}_norm"))
    positions = b.input(f"{kind} pos", n_blocks * I32)
    if kind == "lid" or b.inputs.caches["swa"].k_rot is not None:
        rot = b.input(f"{kind} rot", _rot_bytes(width))
        keys = b.fresh_bytes(n_bytes, rot, view(keys), positions)
    home = Outside(cache.tensor_bytes(b.inputs.options)[0], b.cache_home)
    b.store(home, view(keys), b.input(f"{kind} write", n_blocks * I64))
    n_rows = min(b.rows, _state_rows(b, ratio, overlaps=overlaps))
    kept = b.input(f"{kind} persist", n_rows * I32)
    for source in (state, state_scores):
        rows = b.graph.add(
            Op.GET_ROWS, source.n_bytes // b.rows * n_rows, source, kept, rows=n_rows
        )
        b.store(Outside(0, b.cache_home), view(rows), b.input(f"{kind} to", n_rows * I32))


def _state_rows(b: Builder, ratio: int, *, overlaps: bool) -> int:
    return (2 if overlaps else 1) * ratio * b.inputs.options.n_seq_max


def _states(
    b: Builder,
    x: Source,
    name: str,
    kind: str,
    ratio: int,
    n_blocks: int,
    *,
    are_scores: bool = False,
) -> tuple[Node, Node]:
    """Values or scores of every block, tokens fastest; and those of the batch alone."""
    overlaps = kind != "hca"
    state = b.mul_mat(f"{name}_gate" if are_scores else f"{name}_kv", x)
    row = state.n_bytes // b.rows
    if are_scores:
        at = b.input(f"{kind} token pos", b.rows * I32)
        ape = b.graph.add(Op.GET_ROWS, state.n_bytes, b.weight(f"{name}_ape"), at, rows=b.rows)
        state = b.rowwise(state, ape)
    n_kept = _state_rows(b, ratio, overlaps=overlaps) * row
    source = b.fresh_bytes(n_kept + state.n_bytes, view(Outside(n_kept, b.cache_home)), state)
    if overlaps:
        nothing = b.graph.add(Op.ROWWISE, row, view(source, row), rows=1)
        source = b.fresh_bytes(source.n_bytes + row, source, view(nothing))
    n_read = (2 if overlaps else 1) * ratio * n_blocks
    index = b.input(f"{kind} read", n_read * I32)
    read = b.graph.add(Op.GET_ROWS, n_read * row, source, index, rows=n_read)
    if not overlaps:
        return b.fresh_bytes(read.n_bytes, view(read)), state
    halves = [b.fresh_bytes(read.n_bytes // 4, view(read)) for _ in range(2)]
    both = b.fresh_bytes(read.n_bytes // 2, *(view(half) for half in halves))
    return b.fresh_bytes(both.n_bytes, view(both)), state
