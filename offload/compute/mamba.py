"""Which operations do state-space layers and short convolutions add?

Mirrors src/models/mamba-base.cpp and the short convolution of src/models/lfm2.cpp (b11434).
"""

from __future__ import annotations

from offload.compute.blocks import Builder
from offload.compute.builds import gathers_states_once
from offload.compute.graph import Node, Op, Outside, Source, view
from offload.compute.inputs import F32
from offload.compute.recurrent import load_state, slide, store_state


def mamba(b: Builder, x: Source) -> Source:
    """Mamba 1: every channel is a head, and the step sizes are projected twice."""
    hp = b.hp
    n_inner, n_state, n_dt = hp.ssm_d_inner, hp.ssm_d_state, hp.ssm_dt_rank
    state = load_state(b, hp.n_embd_r)
    both = b.mul_mat("ssm_in", view(x))
    columns = slide(b, state, both, n_inner, hp.ssm_d_conv)
    conv = _convolved(b, columns, n_inner)
    shared = b.mul_mat("ssm_x", conv)
    if b.has("ssm_dt_norm"):
        step: Source = b.norm(view(shared, n_dt * b.rows * F32), "ssm_dt_norm")
    else:
        step = b.fresh(n_dt, view(shared))
    step = b.linear("ssm_dt", step)
    parts: list[Source] = [view(shared), view(shared)]
    if b.has("ssm_dt_norm"):
        n_bytes = n_state * b.rows * F32
        parts = [b.norm(view(shared, n_bytes), name) for name in ("ssm_b_norm", "ssm_c_norm")]
    scanned = _scan(b, view(conv), step, *parts)
    out = b.rowwise(view(scanned, conv.n_bytes), b.rowwise(conv, *b.first("ssm_d")))
    gate = b.fresh(n_inner, view(both))
    return view(b.mul_mat("ssm_out", b.fresh(n_inner, gate, out)))


def mamba2(b: Builder, x: Source) -> Source:
    """Mamba 2: heads of several channels, grouped inputs, one projection for everything."""
    hp = b.hp
    n_inner, n_head = hp.ssm_d_inner, hp.ssm_dt_rank
    n_channels = n_inner + 2 * hp.ssm_n_group * hp.ssm_d_state
    state = load_state(b, hp.n_embd_r)
    everything = b.mul_mat("ssm_in", x)
    columns = slide(b, state, everything, n_channels, hp.ssm_d_conv)
    conv = _convolved(b, columns, n_channels)
    step = b.rowwise(b.fresh(n_head, view(everything)), *b.first("ssm_dt.bias"))
    scanned = _scan(b, view(conv), step, view(conv), view(conv))
    n_bytes = n_inner * b.rows * F32
    skipped = b.rowwise(view(conv, n_bytes), *b.first("ssm_d"))
    out = b.rowwise(view(scanned, n_bytes), skipped)
    gated: Source = b.fresh(n_inner, b.fresh(n_inner, view(everything)), out)
    if b.has("ssm_norm"):
        gated = b.norm(view(gated), "ssm_norm")
    return b.mul_mat("ssm_out", view(gated))


def short_conv(b: Builder, x: Source) -> Source:
    """LFM2's gated short convolution."""
    n_embd = b.hp.n_embd
    state = load_state(b, b.hp.n_embd_r)
    three = b.mul_mat("shortconv.in_proj", view(x))
    n_bytes = n_embd * b.rows * F32
    gated = b.rowwise(view(three, n_bytes), view(three, n_bytes))
    columns = slide(b, state, gated, n_embd, b.hp.n_shortconv_l_cache)
    conv = b.fresh(n_embd, columns, *b.first("shortconv.conv"))
    return view(b.mul_mat("shortconv.out_proj", b.rowwise(view(three, n_bytes), conv)))


def _convolved(b: Builder, columns: Node, width: int) -> Node:
    conv = b.fresh(width, columns, *b.first("ssm_conv1d"))
    return b.rowwise(b.rowwise(conv, *b.first("ssm_conv1d.bias")))


def _scan(b: Builder, x: Source, step: Source, *inputs: Source) -> Node:
    """`ggml_ssm_scan` on the states in the cache: outputs and new states in one tensor."""
    hp, n_seqs = b.hp, b.inputs.n_seqs
    n_state = hp.n_embd_s * n_seqs * F32
    cache = Outside(n_state, b.cache_home)
    b.store(cache)
    main, _ = b.inputs.state_copy
    n_bytes = hp.ssm_d_inner * b.rows * F32 + n_state
    out = b.fresh_bytes(n_bytes, view(cache), x, step, *b.first("ssm_a"), *inputs, main)
    n_others = n_state - n_state // n_seqs if gathers_states_once(b.inputs.build) else 0
    others = b.graph.add(Op.GET_ROWS, n_others, view(cache), view(main), rows=n_seqs)
    b.store(cache, view(others))
    store_state(b, out, hp.n_embd_s)
    return out
