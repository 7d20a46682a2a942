"""How do layers that keep more than one residual stream mix them?

Mirrors the hyper-connections of src/models/hy-v4.cpp (several streams side by side, each half
of a layer reads a sum of them and adds to all) and the attention residuals of
src/models/kimi-k3.cpp (every so many layers the stream is banked and begun anew, and every half
of a layer reads a mix of all that is banked), b11434.
"""

from __future__ import annotations

from typing import Final

from offload.compute.blocks import Builder
from offload.compute.facts import LAYERS_PER_BANK, n_banked
from offload.compute.graph import Node, Op, Source, view
from offload.compute.inputs import F32

_HC_STEPS: Final = 4
"""Operations from the mixes to the weights by which streams are summed."""


def copied(b: Builder, x: Source) -> Node:
    """`ggml_cast`, which copies even what has the type already."""
    return b.fresh_bytes(x.n_bytes, view(x))


def reduce_streams(b: Builder, x: Source, fn: str) -> tuple[Node, Node]:
    """One stream out of several, and the mixes by which a result goes back to each."""
    n_streams = b.hp.hc_mult
    wide = copied(b, x)
    mixes = b.fresh(b.shape(fn)[1], b.weight(fn), b.rowwise(view(x)))
    pre = b.chain(view(mixes, n_streams * b.rows * F32), _HC_STEPS)
    total: Node | None = None
    for _ in range(n_streams):
        term = _one_stream(b, view(wide), view(pre))
        total = term if total is None else b.rowwise(total, term)
    if total is None:
        raise LookupError("hyper-connections without streams")
    return copied(b, total), mixes


def spread_stream(b: Builder, y: Source, wide: Source, mixes: Node) -> Node:
    """Add one result to each of several streams; `wide` is a copy of these."""
    n_streams = b.hp.hc_mult
    y = copied(b, y)
    post = copied(b, b.chain(view(mixes, n_streams * b.rows * F32), _HC_STEPS + 1))
    out: Node | None = None
    for _ in range(n_streams):
        added = b.rowwise(y, view(post))
        term = _one_stream(b, view(wide), added)
        out = term if out is None else b.fresh_bytes(out.n_bytes + term.n_bytes, out, view(term))
    if out is None:
        raise LookupError("hyper-connections without streams")
    return copied(b, out)


def _one_stream(b: Builder, *operands: Source) -> Node:
    return b.graph.add(Op.ROWWISE, b.hp.n_embd * b.rows * F32, *operands, rows=b.rows)


def bank_stream(b: Builder, x: Source) -> bool:
    """Bank the stream in front of every so many layers; whether it has been."""
    if b.layer.il % LAYERS_PER_BANK or not b.has("attn_res_score"):
        return False
    n_bytes = b.hp.n_embd * b.rows * F32
    bank = b.inputs.shared[0] if b.inputs.shared else None
    # of layers that were not built the bank is made up
    banked: Source = view(x) if bank is None else b.fresh_bytes(
        n_bytes * (n_banked(b.layer.il) + 1), bank, view(x)
    )  # fmt: skip
    b.inputs.shared[:] = [banked]
    return True


def mix_banked(b: Builder, x: Source, score: str) -> Source:
    """A weighted sum of the banked streams and the current one."""
    if not b.inputs.shared or not b.has(score):
        return x
    bank = b.inputs.shared[0]
    weight = b.weight(score)
    n_bank = bank.n_bytes // (b.hp.n_embd * b.rows * F32)
    scores = b.fresh(n_bank, b.rowwise(b.rowwise(bank), weight))
    score_x = b.fresh(1, b.rowwise(b.rowwise(x), weight))
    probs = b.rowwise(b.fresh(n_bank + 1, view(scores), score_x))
    mixed = b.fresh(b.hp.n_embd, bank, b.fresh(n_bank, view(probs)))
    return b.rowwise(mixed, b.rowwise(x, b.fresh(1, view(probs))))
