"""Which tensors, of which shape, does a model of these figures have?

Mirrors `load_arch_tensors` of src/models/*.cpp (b11434) for the architectures
of the catalogue: names and `ne` order as in a converted file, sorted as
llama-quantize writes them. Types are chosen by recipes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tuner.shapes.shape import Shape


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor before its type is known; `shape[0]` is the fastest dimension."""

    name: str
    shape: tuple[int, ...]

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        n = 1
        for ne in self.shape:
            n *= ne
        return n

    @property
    def il(self) -> int:
        """The layer in the name, -1 where there is none."""
        return int(self.name.split(".")[1]) if self.name.startswith("blk.") else -1


Part = Iterator[tuple[str, tuple[int, ...]]]


def _weights(**shapes: tuple[int, ...]) -> Part:
    for name, shape in shapes.items():
        yield f"{name}.weight", shape


def _gqa(s: Shape, il: int, *, gated: bool = False) -> Part:
    n_head_kv, n_head_size = s.n_head_kv, s.n_embd_head
    if s.swa is not None and not s.is_swa(il):
        n_head_kv = s.swa.n_head_kv_full or n_head_kv
        n_head_size = s.swa.n_embd_head_full or n_head_size
    n_q, n_kv = s.n_head * n_head_size, n_head_kv * n_head_size
    n_q_gate = n_q * 2 if gated else n_q  # Qwen3-Next packs a gate beside each query
    yield from _weights(attn_q=(s.n_embd, n_q_gate), attn_k=(s.n_embd, n_kv))
    # Gemma 4's full layers use the keys as values
    if not (s.arch == "gemma4" and not s.is_swa(il)):
        yield "attn_v.weight", (s.n_embd, n_kv)
    yield "attn_output.weight", (n_q, s.n_embd)
    if s.qkv_bias:
        yield "attn_q.bias", (n_q,)
        yield "attn_k.bias", (n_kv,)
        yield "attn_v.bias", (n_kv,)
    if s.qk_norm and s.arch in ("minimax-m2", "olmoe"):  # normalised over all heads at once
        yield from _weights(attn_q_norm=(n_q,), attn_k_norm=(n_kv,))
    elif s.qk_norm:
        yield from _weights(attn_q_norm=(n_head_size,), attn_k_norm=(n_head_size,))


def _mla(s: Shape) -> Part:
    mla = s.mla
    assert mla is not None
    n_q = s.n_head * mla.n_key
    if mla.n_lora_q:
        yield from _weights(
            attn_q_a=(s.n_embd, mla.n_lora_q),
            attn_q_a_norm=(mla.n_lora_q,),
            attn_q_b=(mla.n_lora_q, n_q),
        )
    else:
        yield "attn_q.weight", (s.n_embd, n_q)
    yield from _weights(
        attn_kv_a_mqa=(s.n_embd, mla.n_lora_kv + mla.n_rope),
        attn_kv_a_norm=(mla.n_lora_kv,),
        attn_k_b=(mla.n_nope, mla.n_lora_kv, s.n_head),
        attn_v_b=(mla.n_lora_kv, mla.n_value, s.n_head),
        attn_output=(s.n_head * mla.n_value, s.n_embd),
    )
    if s.indexer is not None:
        ix = s.indexer
        yield "indexer.k_norm.weight", (ix.n_embd_head,)
        yield "indexer.k_norm.bias", (ix.n_embd_head,)
        yield "indexer.proj.weight", (s.n_embd, ix.n_head)
        yield "indexer.attn_k.weight", (s.n_embd, ix.n_embd_head)
        yield "indexer.attn_q_b.weight", (mla.n_lora_q, ix.n_head * ix.n_embd_head)


def _delta_net(s: Shape) -> Part:
    d = s.delta
    assert d is not None
    n_qkv = 2 * d.n_key + d.n_value
    yield from _weights(
        attn_qkv=(s.n_embd, n_qkv),
        attn_gate=(s.n_embd, d.n_value),
        ssm_conv1d=(d.d_conv, n_qkv),
        ssm_norm=(d.d_state,),
        ssm_out=(d.n_value, s.n_embd),
    )
    yield "ssm_dt.bias", (d.dt_rank,)
    yield "ssm_a", (d.dt_rank,)
    if s.arch == "qwen3next":
        yield "ssm_ba.weight", (s.n_embd, 2 * d.dt_rank)
    else:
        yield from _weights(ssm_alpha=(s.n_embd, d.dt_rank), ssm_beta=(s.n_embd, d.dt_rank))


def _ffn(n_embd: int, n_ff: int, suffix: str = "", *n_expert: int) -> Part:
    yield f"ffn_gate{suffix}.weight", (n_embd, n_ff, *n_expert)
    yield f"ffn_up{suffix}.weight", (n_embd, n_ff, *n_expert)
    yield f"ffn_down{suffix}.weight", (n_ff, n_embd, *n_expert)


def _moe(s: Shape) -> Part:
    yield "ffn_gate_inp.weight", (s.n_embd, s.n_expert)
    yield from _ffn(s.n_embd, s.n_ff_exp, "_exps", s.n_expert)
    n_ff_shexp = s.n_ff_shexp or s.n_ff_exp * s.n_expert_shared
    if n_ff_shexp:
        yield from _ffn(s.n_embd, n_ff_shexp, "_shexp")


def _probs_bias(s: Shape) -> Part:
    yield "exp_probs_b.bias", (s.n_expert,)


def _plain_layer(s: Shape, il: int) -> Part:
    """Llama's block: attention, then a dense or expert FFN; also DeepSeek's with its MLA."""
    yield from _weights(attn_norm=(s.n_embd,), ffn_norm=(s.n_embd,))
    yield from _mla(s) if s.mla is not None else _gqa(s, il)
    if s.is_moe(il):
        yield from _moe(s)
        if s.extra.get("expert_gating_func") == 2 or s.arch == "ernie4_5-moe":
            yield from _probs_bias(s)  # sigmoid routers come with a selection bias
    else:
        yield from _ffn(s.n_embd, s.n_ff)


def _glm4moe_layer(s: Shape, il: int) -> Part:
    yield from _weights(attn_norm=(s.n_embd,), post_attention_norm=(s.n_embd,))
    yield from _gqa(s, il)
    if s.is_moe(il):
        yield from _moe(s)
        yield from _probs_bias(s)
    else:
        yield from _ffn(s.n_embd, s.n_ff)


def _qwen2moe_layer(s: Shape, il: int) -> Part:
    yield from _plain_layer(s, il)
    yield "ffn_gate_inp_shexp.weight", (s.n_embd,)


def _gpt_oss_layer(s: Shape, il: int) -> Part:
    yield from _weights(attn_norm=(s.n_embd,), post_attention_norm=(s.n_embd,))
    yield from _gqa(s, il)
    yield "attn_output.bias", (s.n_embd,)
    yield "attn_sinks.weight", (s.n_head,)
    yield from _moe(s)
    yield "ffn_gate_inp.bias", (s.n_expert,)
    yield "ffn_gate_exps.bias", (s.n_ff_exp, s.n_expert)
    yield "ffn_up_exps.bias", (s.n_ff_exp, s.n_expert)
    yield "ffn_down_exps.bias", (s.n_embd, s.n_expert)


def _qwen3next_layer(s: Shape, il: int) -> Part:
    yield from _weights(attn_norm=(s.n_embd,), post_attention_norm=(s.n_embd,))
    yield from _delta_net(s) if s.is_recurrent(il) else _gqa(s, il, gated=True)
    yield from _moe(s)
    yield "ffn_gate_inp_shexp.weight", (s.n_embd,)


def _gemma4_layer(s: Shape, il: int) -> Part:
    yield from _weights(
        attn_norm=(s.n_embd,), post_attention_norm=(s.n_embd,), ffn_norm=(s.n_embd,),
        post_ffw_norm=(s.n_embd,), layer_output_scale=(1,),
    )  # fmt: skip
    yield from _gqa(s, il)
    yield from _ffn(s.n_embd, s.n_ff)
    if s.is_moe(il):
        yield from _weights(
            ffn_gate_inp=(s.n_embd, s.n_expert),
            pre_ffw_norm_2=(s.n_embd,), post_ffw_norm_1=(s.n_embd,), post_ffw_norm_2=(s.n_embd,),
            ffn_gate_up_exps=(s.n_embd, 2 * s.n_ff_exp, s.n_expert),
            ffn_down_exps=(s.n_ff_exp, s.n_embd, s.n_expert),
        )  # fmt: skip
        yield "ffn_gate_inp.scale", (s.n_embd,)
        yield "ffn_down_exps.scale", (s.n_expert,)


def _gemma3_layer(s: Shape, il: int) -> Part:
    yield from _weights(
        attn_norm=(s.n_embd,), post_attention_norm=(s.n_embd,),
        ffn_norm=(s.n_embd,), post_ffw_norm=(s.n_embd,),
    )  # fmt: skip
    yield from _gqa(s, il)
    yield from _ffn(s.n_embd, s.n_ff)


_LAYERS: Final[dict[str, Callable[[Shape, int], Part]]] = {
    "llama": _plain_layer, "llama4": _plain_layer, "qwen3": _plain_layer,
    "qwen3moe": _plain_layer, "minimax-m2": _plain_layer, "hunyuan-moe": _plain_layer,
    "ernie4_5-moe": _plain_layer, "deepseek2": _plain_layer, "mistral4": _plain_layer,
    "glm-dsa": _plain_layer, "glm4moe": _glm4moe_layer, "gpt-oss": _gpt_oss_layer,
    "qwen3next": _qwen3next_layer, "qwen35moe": _qwen3next_layer,
    "olmoe": _plain_layer, "granitemoe": _plain_layer, "qwen2moe": _qwen2moe_layer,
    "gemma4": _gemma4_layer, "gemma3": _gemma3_layer,
}  # fmt: skip
ARCHS: Final = tuple(_LAYERS)


def _nextn(s: Shape) -> Part:
    yield "nextn.eh_proj.weight", (2 * s.n_embd, s.n_embd)
    yield "nextn.enorm.weight", (s.n_embd,)
    yield "nextn.hnorm.weight", (s.n_embd,)
    yield "nextn.shared_head_norm.weight", (s.n_embd,)
    if s.nextn_has_head:
        yield "nextn.embed_tokens.weight", (s.n_embd, s.n_vocab)
        yield "nextn.shared_head_head.weight", (s.n_embd, s.n_vocab)


def make_tensors(s: Shape) -> tuple[TensorShape, ...]:
    """All tensors of the file, in the order llama-quantize writes: model-wide ones, then layers."""
    found = [
        TensorShape("token_embd.weight", (s.n_embd, s.n_vocab)),
        TensorShape("output_norm.weight", (s.n_embd,)),
    ]
    if not s.output_is_tied:
        found.append(TensorShape("output.weight", (s.n_embd, s.n_vocab)))
    if s.arch == "gemma4":
        assert s.swa is not None
        n_head_size = s.swa.n_embd_head_full or s.n_embd_head
        found.append(TensorShape("rope_freqs.weight", (n_head_size // 2,)))
    for il in range(s.n_layer_all):
        layer = dict(_LAYERS[s.arch](s, il))
        if il >= s.n_layer:
            layer.update(_nextn(s))
        found += [TensorShape(f"blk.{il}.{name}", shape) for name, shape in layer.items()]
    return tuple(sorted(found, key=lambda t: (t.il, t.name)))
