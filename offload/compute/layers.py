"""How does one layer turn the residual stream into the next, for each family?

Mirrors the layer loops of src/models/*.cpp (b11434). Families are told apart by the
tensors a layer has wherever these tell, and by the architecture where they do not.
"""

from __future__ import annotations

from typing import Final

from offload.arch import OUTPUTS_AFTER_LAYERS
from offload.compute.attention import (
    Style,
    attended,
    gated_attention,
    plain_attention,
)
from offload.compute.block_sparse import block_sparse_attention, is_block_sparse
from offload.compute.blocks import Builder
from offload.compute.deepseek4 import deepseek4_layer
from offload.compute.graph import Node, Source
from offload.compute.latent import (
    expanded_latent_attention,
    latent_attended,
    latent_attention,
    latent_output,
)
from offload.compute.mamba import mamba, mamba2, short_conv
from offload.compute.pooled import glm5_next_layer
from offload.compute.qwen4exp import qwen4exp_layer
from offload.compute.recurrent import delta_net, kimi_delta, lightning, unknown_mixer
from offload.compute.streams import (
    bank_stream,
    copied,
    mix_banked,
    reduce_streams,
    spread_stream,
)

_GATED: Final = frozenset("qwen3next qwen35 qwen35moe".split())
_EXPANDS_NORM: Final = frozenset("qwen3next qwen35 qwen35moe kimi-linear kimi-k3".split())
"""A layer's norm is asked for before its state is read."""
_NO_ROPE: Final = frozenset(("kimi-linear", "kimi-k3"))
_COMMON: Final = Style()
_STYLES: Final = {
    **dict.fromkeys("hunyuan-moe hunyuan-dense".split(), Style(norm_after_rope=True)),
    "llama4": Style(scales_full=True),
    "gemma4": Style(norms_values=True),
}


def add_layer(b: Builder, arch: str, x: Node, *, is_last: bool) -> Node:
    """Append one layer; returns the new residual stream."""
    crops = is_last and arch not in OUTPUTS_AFTER_LAYERS
    if arch == "arctic":
        return _arctic_layer(b, x, crops=crops)
    if arch == "qwen4exp":
        return qwen4exp_layer(b, x, is_last=is_last)
    if arch in _LAYERS:
        return _LAYERS[arch](b, arch, x)
    residual: Source = x
    cur: Source = b.norm(x, "attn_norm") if b.has("attn_norm") else x
    if arch == "minimax-01":
        residual = cur
    if arch in _EXPANDS_NORM:
        b.graph.expand()
    cur = _mix_tokens(b, arch, cur)
    if crops:
        cur, residual = b.take_outputs(cur), b.take_outputs(residual)
        b.rows = b.inputs.n_outputs
    if b.has("ffn_norm") or not b.has("attn_norm"):
        cur = _optional_norm(b, cur, "post_attention_norm", "attn_output_norm")
    ffn_inp = b.rowwise(cur, residual)
    if arch == "gemma4" and b.has("ffn_gate_inp"):
        return _gemma4_experts(b, ffn_inp)
    cur = ffn_inp
    if b.has("attn_norm"):
        cur = b.norm(ffn_inp, "ffn_norm", "post_attention_norm", "attn_output_norm")
    residual = cur if arch == "minimax-01" else ffn_inp
    cur = _optional_norm(b, _feed_forward(b, arch, cur), "post_ffw_norm", "layer_output_norm")
    return b.rowwise(cur, residual)


def _optional_norm(b: Builder, x: Source, *names: str) -> Source:
    return b.norm(x, *names) if any(b.has(name) for name in names) else x


def _arctic_layer(b: Builder, x: Node, *, crops: bool) -> Node:
    """A dense network after attention, and experts on what attention read, which come first."""
    out = attended(b, b.norm(x, "attn_norm"), _COMMON)
    inputs: Source = x
    n_before = len(b.graph.nodes)
    cur = b.linear("attn_output", out)
    if crops:
        cur, inputs = b.take_outputs(cur), b.take_outputs(x)
        b.rows = b.inputs.n_outputs
    ffn_inp = b.rowwise(cur, inputs)
    ffn = b.rowwise(b.ffn(b.norm(ffn_inp, "ffn_norm")), ffn_inp)
    n_dense = len(b.graph.nodes) - n_before
    experts = b.moe(b.norm(inputs, "ffn_norm_exps"))
    b.graph.defer(n_before, n_dense)
    return b.rowwise(experts, ffn)


def _parallel_layer(b: Builder, arch: str, x: Node) -> Node:
    """Attention and feed-forward side by side after one norm."""
    normed = b.norm(x, "attn_norm")
    out = attended(b, normed, _COMMON)
    cur = b.rowwise(_feed_forward(b, arch, normed), x)
    return b.rowwise(cur, b.linear("attn_output", out))


def _hyper_layer(b: Builder, arch: str, x: Node) -> Node:
    """Each half reads one stream made of several, and adds to all."""
    y, mixes = reduce_streams(b, x, "hc_attn_fn")
    y = b.norm(y, "attn_norm")
    out = latent_attended(b, y)
    wide = copied(b, x)
    x = spread_stream(b, latent_output(b, out, y), wide, mixes)
    has_experts = b.has("ffn_down_exps")
    if not has_experts:
        wide = copied(b, x)
    y, mixes = reduce_streams(b, x, "hc_ffn_fn")
    y = b.norm(y, "ffn_norm")
    if not has_experts:
        return spread_stream(b, b.ffn(y), wide, mixes)
    experts = b.moe(y)
    wide = copied(b, x)
    return spread_stream(b, b.rowwise(experts, b.ffn(y, "_shexp")), wide, mixes)


def _banked_layer(b: Builder, arch: str, x: Node) -> Node:
    """Both halves read a mix of the stream and of what was banked."""
    y = mix_banked(b, x, "attn_res_score")
    is_banked = bank_stream(b, x)
    y = b.norm(y, "attn_norm")
    b.graph.expand()
    y = _mix_tokens(b, arch, y)
    stream = y if is_banked else b.rowwise(x, y)
    y = b.norm(mix_banked(b, stream, "ffn_res_score"), "ffn_norm")
    return b.rowwise(stream, _feed_forward(b, arch, y))


_LAYERS: Final = {
    "cohere2moe": _parallel_layer,
    "deepseek4": deepseek4_layer,
    "glm5-next": glm5_next_layer,
    "hy_v4": _hyper_layer,
    "kimi-k3": _banked_layer,
}


def _mix_tokens(b: Builder, arch: str, x: Source) -> Source:
    if b.layer.is_recr:
        return _recur(b, arch, x)
    if b.has("attn_kv_a_mqa") and b.has("attn_k_b"):
        return latent_attention(b, x, has_rope=arch not in _NO_ROPE)
    if b.has("attn_kv_a_mqa") and b.has("attn_kv_b") and b.layer.caches:
        return expanded_latent_attention(b, x)
    if arch in _GATED:
        return gated_attention(b, x)
    if is_block_sparse(b):
        return block_sparse_attention(b, x)
    if b.has("attn_qkv") or b.has("attn_q"):
        return plain_attention(b, x, _STYLES.get(arch, _COMMON))
    return unknown_mixer(b, x)


def _recur(b: Builder, arch: str, x: Source) -> Source:
    if b.has("ssm_f_a"):
        return kimi_delta(b, x)
    if b.has("ssm_ba") or (b.has("ssm_alpha") and b.has("ssm_conv1d")):
        return delta_net(b, x, repeats_keys=arch == "qwen3next")
    if b.has("shortconv.conv"):
        return short_conv(b, x)
    if b.has("ssm_x"):
        return mamba(b, x)
    if b.has("ssm_in") and b.has("ssm_out"):
        return mamba2(b, x)
    if b.hp.n_embd_head_la and b.has("attn_qkv") and b.has("attn_gate"):
        return lightning(b, x)
    return unknown_mixer(b, x)


def _feed_forward(b: Builder, arch: str, x: Node) -> Node:
    if not b.has("ffn_down_exps") or arch == "refact":
        return b.ffn(x) if b.has("ffn_down") and b.has("ffn_up") else b.rowwise(x)
    out = b.moe(x, weigh_first=arch == "llama4")
    if arch == "grok" and b.has("ffn_up"):
        return b.rowwise(b.rowwise(b.ffn(x), out))
    if b.has("ffn_routed_norm"):
        out = b.norm(out, "ffn_routed_norm")
    for name in ("ffn_routed_up", "ffn_latent_up"):
        if b.has(name):
            out = b.linear(name, out)
    if b.has("ffn_up_shexp"):
        shared = b.ffn(x, "_shexp")
        if b.has("ffn_gate_inp_shexp"):
            gate = b.rowwise(b.fresh(1, b.weight("ffn_gate_inp_shexp"), x))
            shared = b.rowwise(shared, gate)
        out = b.rowwise(out, shared)
    return out


def _gemma4_experts(b: Builder, x: Node) -> Node:
    """A dense and an expert branch side by side, each with norms of its own."""
    scaled = b.rowwise(b.rowwise(x))
    if b.has("ffn_gate_inp.scale"):
        scaled = b.rowwise(scaled, b.weight("ffn_gate_inp.scale"))
    logits = b.fresh(b.shape("ffn_gate_inp")[1], b.weight("ffn_gate_inp"), scaled)
    experts = b.moe(x, logits=logits, norm="pre_ffw_norm_2")
    dense = b.ffn(b.norm(x, "ffn_norm"))
    dense = b.norm(dense, "post_ffw_norm_1")
    experts = b.norm(experts, "post_ffw_norm_2")
    cur = b.norm(b.rowwise(dense, experts), "post_ffw_norm")
    out = b.rowwise(cur, x)
    return b.rowwise(out, b.weight("layer_output_scale")) if b.has("layer_output_scale") else out
