"""Which operations do recurrent layers add?

Mirrors src/models/delta-net-base.cpp and `build_layer_attn_linear` of
src/models/qwen3next.cpp and qwen35moe.cpp, and `build_rs` of src/llama-graph.cpp (b11434).
"""

from __future__ import annotations

from offload.compute.blocks import Builder
from offload.compute.builds import gathers_states_once
from offload.compute.graph import Node, Op, Outside, Source, view
from offload.compute.inputs import F32


def load_state(b: Builder, n_per_seq: int) -> Source:
    """`build_rs`: gather the state of every sequence of the batch, and of no other.

    Older builds gather the others separately: in a reserved graph that is a tensor of no
    bytes, which keeps the free memory around it apart.
    """
    n_seqs = b.inputs.n_seqs
    n_bytes = n_per_seq * n_seqs * F32
    cache = view(Outside(n_bytes, b.cache_home))
    main, extra = b.inputs.state_copy
    add = b.graph.add
    add(Op.STORE, 0, cache, rows=n_seqs)
    state = add(Op.GET_ROWS, n_bytes, cache, main, rows=n_seqs)
    if gathers_states_once(b.inputs.build):
        add(Op.STORE, 0, view(state), cache, rows=n_seqs)
        b.graph.hoist(3)
    else:
        others = add(Op.GET_ROWS, 0, cache, extra, rows=n_seqs)
        add(Op.STORE, 0, others, cache, rows=n_seqs)
        b.graph.hoist(4)
    return view(state)


def store_state(b: Builder, state: Source, n_per_seq: int) -> None:
    """Copy the new state back into the cache."""
    b.store(Outside(n_per_seq * b.inputs.n_seqs * F32, b.cache_home), view(state))


def slide(b: Builder, state: Source, x: Source, width: int, d_conv: int) -> Node:
    """The kept columns in front of the new ones; the last are kept for the next batch."""
    n_bytes = width * (b.rows + (d_conv - 1) * b.inputs.n_seqs) * F32
    columns = b.fresh_bytes(n_bytes, view(state), view(x))
    store_state(b, columns, width * (d_conv - 1))
    return columns


def delta_net(b: Builder, x: Source, *, repeats_keys: bool) -> Source:
    """Gated delta net with a short convolution over Q, K and V."""
    hp, n_seqs = b.hp, b.inputs.n_seqs
    n_inner, n_state = hp.ssm_d_inner, hp.n_embd_s
    n_k_head, n_v_head, head_k = hp.ssm_n_group, hp.ssm_dt_rank, hp.ssm_d_state
    n_channels = n_inner + 2 * n_k_head * head_k
    conv_state = load_state(b, hp.n_embd_r)
    if b.has("attn_qkv"):
        mixed: Node = b.mul_mat("attn_qkv", x)
        z = None
    else:
        qkvz = b.mul_mat("ssm_in", x)
        q_k = b.fresh(
            2 * n_k_head * head_k,
            b.fresh(n_k_head * head_k, view(qkvz)),
            b.fresh(n_k_head * head_k, view(qkvz)),
        )
        mixed = b.fresh(n_channels, q_k, b.fresh(n_inner, view(qkvz)))
        z = qkvz
    conv_input = slide(b, conv_state, mixed, n_channels, hp.ssm_d_conv)
    state = load_state(b, n_state)
    conv = b.rowwise(b.fresh(n_channels, conv_input, b.weight("ssm_conv1d")))
    n_key = n_k_head * head_k * b.rows * F32
    operands = []
    for _ in range(2):
        part: Source = b.rowwise(b.rowwise(view(conv, n_key)))
        if n_k_head != n_v_head and repeats_keys:
            part = b.fresh(n_v_head * head_k, view(part))
        operands.append(view(part))
    if b.has("ssm_ba"):
        both = b.mul_mat("ssm_ba", x)
        alpha = b.fresh(n_v_head, view(both))
        decay = b.rowwise(b.rowwise(b.rowwise(alpha, b.weight("ssm_dt.bias"))))
        beta = b.rowwise(b.fresh(n_v_head, view(both)))
    else:
        alpha = b.mul_mat("ssm_alpha", x)
        decay = b.rowwise(b.rowwise(b.rowwise(view(alpha), b.weight("ssm_dt.bias"))))
        beta = b.rowwise(view(b.mul_mat("ssm_beta", x)))
    out = b.fresh_bytes(
        n_inner * b.rows * F32 + n_state * n_seqs * F32,
        *operands,
        view(conv),
        view(decay),
        view(beta),
        view(state),
    )
    store_state(b, out, n_state)
    normed = b.norm(view(out, n_inner * b.rows * F32), "ssm_norm")
    if z is None:
        gate = b.rowwise(view(b.mul_mat("attn_gate", x)))
    else:
        gate = b.rowwise(b.fresh(n_inner, view(z)))
    return view(b.mul_mat("ssm_out", view(b.rowwise(normed, gate))))


def kimi_delta(b: Builder, x: Source) -> Node:
    """Kimi Delta Attention: three convolutions, and a decay for each channel."""
    hp, n_seqs = b.hp, b.inputs.n_seqs
    n_inner = b.shape("attn_output")[0]
    d_conv = hp.ssm_d_conv or 4
    state = load_state(b, hp.n_embd_r)
    fused = b.mul_mat("attn_qkv", x) if b.has("attn_qkv") else None
    columns = []
    for name in "qkv":
        column = b.fresh(n_inner, view(fused)) if fused else b.mul_mat(f"attn_{name}", x)
        columns.append(slide(b, state, column, n_inner, d_conv))
    memory = load_state(b, hp.n_embd_s)
    convolved: list[Source] = []
    for name, column in zip("qkv", columns, strict=True):
        kernel = b.first(f"ssm_conv1d_{name}", f"ssm_{name}_conv1d", f"ssm_{name}_conv")
        part: Source = b.rowwise(view(b.fresh(n_inner, column, *kernel)))
        if name != "v":
            part = b.rowwise(b.rowwise(view(part)))
        convolved.append(part)
    q, k = (view(part) for part in convolved[:2])
    decay: Source = b.linear("ssm_f_a", x)
    if b.has("ssm_f_b"):
        decay = b.mul_mat("ssm_f_b", decay)
    decay = b.rowwise(b.rowwise(decay, *b.first("ssm_dt.bias")))
    decay = b.rowwise(view(decay), *b.first("ssm_a"))
    beta = b.rowwise(view(b.mul_mat("ssm_beta", x)))
    n_bytes = n_inner * b.rows * F32 + hp.n_embd_s * n_seqs * F32
    operands = (q, k, view(convolved[2]), view(decay), view(beta), view(memory))
    out = b.fresh_bytes(n_bytes, *operands)
    store_state(b, out, hp.n_embd_s)
    out = b.fresh(n_inner, view(out))
    normed = b.norm(view(out), "ssm_norm", "ssm_o_norm")
    gate: Source = b.mul_mat("ssm_g_a" if b.has("ssm_g_a") else "ssm_g", x)
    if b.has("ssm_g_b"):
        gate = b.mul_mat("ssm_g_b", gate)
    gated = b.rowwise(normed, b.rowwise(view(gate)))
    return b.linear("attn_output", b.fresh(n_inner, view(gated)))


def lightning(b: Builder, x: Source) -> Source:
    """MiniMax-01's linear attention: one block for each sequence's tokens of the batch."""
    hp, n_seqs = b.hp, b.inputs.n_seqs
    n_inner = hp.n_embd_head_la * b.layer.n_head
    n_part = n_inner * b.rows * F32
    n_square = (b.rows // n_seqs) ** 2 * b.layer.n_head * n_seqs * F32
    if not b.inputs.shared:
        sizes = (b.layer.n_head * b.rows * F32,) * 2 + (n_square,)
        b.inputs.shared.extend(b.graph.input(n_bytes) for n_bytes in sizes)
    q_decay, k_decay, square_decay = b.inputs.shared
    load_state(b, hp.n_embd_r)
    state = load_state(b, hp.n_embd_s)
    decay = b.rowwise(b.rowwise(q_decay))
    qkv = b.rowwise(b.mul_mat("attn_qkv", x))
    old = b.fresh(n_inner, view(state), view(b.rowwise(view(qkv, n_part), decay)))
    v = b.fresh_bytes(n_part, view(qkv))
    scores = b.fresh_bytes(n_square, view(qkv), view(qkv))
    scores = b.rowwise(scores, b.rowwise(b.rowwise(square_decay)))
    out = b.rowwise(old, b.fresh(n_inner, v, scores))
    b.graph.expand()
    kept = b.rowwise(view(state))
    keys = b.rowwise(view(qkv, n_part), b.rowwise(b.rowwise(k_decay)))
    keys = b.fresh(n_inner, view(keys))
    store_state(b, b.rowwise(kept, b.fresh_bytes(state.n_bytes, keys, v)), hp.n_embd_s)
    normed = b.norm(view(b.fresh(n_inner, view(out))), "attn_norm_2")
    gate = b.rowwise(b.mul_mat("attn_gate", x))
    return view(b.linear("attn_output", b.rowwise(gate, normed)))


def unknown_mixer(b: Builder, x: Source) -> Source:
    """A token mixer nobody described here: all its projections of the input alive together."""
    hp = b.hp
    parts: list[Source] = []
    for name, weight in b.layer.weights.items():
        is_projection = len(weight.shape) == 2 and weight.shape[0] == hp.n_embd
        if is_projection and not name.startswith("ffn_"):
            parts.append(b.mul_mat(name, x))
    if b.layer.is_recr:
        parts.append(load_state(b, hp.n_embd_r))
        parts.append(load_state(b, hp.n_embd_s))
    width = sum(part.n_bytes for part in parts) // F32 // b.rows
    mixed = b.fresh(width, *(view(part) for part in parts)) if parts else b.rowwise(x)
    return b.fresh(hp.n_embd, view(mixed))
