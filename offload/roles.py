"""What is each tensor for, and which part of llama.cpp's layer split decides its place?

Mirrors `LLM_TENSOR_NAMES` and `LLM_TENSOR_INFOS` of src/llama-arch.cpp and the
flags that src/models/*.cpp pass to `create_tensor` (b11434): tensors of the
input stay on the host, those of the output go with the output layer, all
others follow the owner of their block. MTP blocks are skipped unless a draft
context asks for them; frequency tables are copied into every device that owns
a layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from offload.arch import Arch
from offload.ggml import GGMLType
from offload.gguf import TensorInfo
from offload.units import GIB

LAZY_MIN_BYTES: Final = 4 * GIB
"""`auto_min_size` of `lazy_read::add` (src/llama-model-loader.cpp): smaller ones are loaded."""


class Role(StrEnum):
    """What a tensor does in the graph."""

    EXPERT = "expert"
    SHARED_EXPERT = "shared_expert"
    ROUTER = "router"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    FFN = "ffn"
    NORM = "norm"
    INPUT = "input"
    OUTPUT = "output"
    OTHER = "other"


class Tensor(NamedTuple):
    """One tensor of the file.

    `shape[0]` is the fastest dimension. `il` is the block whose owner holds the tensor,
    None where the input or output layer does. `home` is `input`, `layer` or `output`.
    `loaded` is False for tensors llama.cpp skips. `duplicated` tensors are copied into
    every device that owns a layer using them. `lazy` tensors stay on disk and are read row
    by row; llama.cpp's memory breakdown counts them in full all the same.
    """

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    n_bytes: int
    role: Role
    il: int | None
    part: str
    home: str
    loaded: bool
    duplicated: bool
    lazy: bool


# names without block and part, as in LLM_TENSOR_NAMES
_STEMS: Final = {
    Role.INPUT: "token_embd position_embd token_types per_layer_token_embd"
    " masked_embd_centroids masked_embd_ordering",
    Role.OUTPUT: "output output_norm cls cls.output cls.norm enc.output_norm dec.output_norm"
    " output_res_score output_hc_fn output_hc_base output_hc_scale output_hc_norm output_hc_down"
    " output_hc_up altup_unembd_proj altup_proj dense_2 dense_3 nextn.post_projection fc d2t"
    " markov_w1 markov_w2 conf_proj selector_predecessor selector_successor selector_hidden",
    Role.EXPERT: "ffn_gate_exps ffn_up_exps ffn_down_exps ffn_gate_up_exps ffn_gate_chexps"
    " ffn_up_chexps ffn_down_chexps",
    Role.SHARED_EXPERT: "ffn_gate_shexp ffn_up_shexp ffn_down_shexp ffn_gate_inp_shexp",
    Role.ROUTER: "ffn_gate_inp exp_probs_b exp_probs_b_vl ffn_gate_tid2eid",
    Role.ATTENTION: "attn_q attn_k attn_v attn_qkv attn_output attn_gate attn_sinks attn_rot_embd"
    " attn_q_a attn_q_b attn_kv_a_mqa attn_kv_b attn_kv attn_k_b attn_v_b attn_output_a"
    " attn_output_b attn_compressor_kv attn_compressor_gate attn_compressor_ape attn_rel_b attn_o"
    " cross_attn_q cross_attn_k cross_attn_v cross_attn_o cross_attn_rel_b vis_attn_qkv"
    " vis_attn_output attn_conv_base attn_conv_proj indexer.proj indexer.attn_k indexer.attn_q_b"
    " indexer.q_proj indexer.k_proj indexer_compressor_kv indexer_compressor_gate"
    " indexer_compressor_ape",
    Role.FFN: "ffn_gate ffn_up ffn_down ffn.act ffn_latent_down ffn_latent_up ffn_routed_down"
    " ffn_routed_up ffn_conv_base ffn_conv_proj vis_gate vis_up vis_down",
    Role.RECURRENT: "ssm_a ssm_d ssm_in ssm_x ssm_dt ssm_out ssm_conv1d ssm_conv1d_q ssm_conv1d_k"
    " ssm_conv1d_v ssm_ba ssm_alpha ssm_beta ssm_f_a ssm_f_b ssm_g_a ssm_g_b ssm_g"
    " shortconv.conv shortconv.in_proj shortconv.out_proj",
    Role.OTHER: "rope_freqs rope_factors_long rope_factors_short hrm.z_l_init inp_gate proj conv1d"
    " per_layer_model_proj nextn.pre_projection nextn.eh_proj nextn.embed_tokens"
    " nextn.shared_head_head nextn.hc_head_down nextn.hc_head_up layer_output_scale"
    " attn_res_score ffn_res_score",
    Role.NORM: "time_mix_ln",
}
_ROLE_OF_STEM: Final = {stem: role for role, stems in _STEMS.items() for stem in stems.split()}

# families of names, and what a newer llama.cpp may add to them; the first that fits decides
_ROLE_OF_PREFIX: Final = (
    ("decision.", Role.OUTPUT),
    ("nextn.", Role.OTHER),
    ("ssm_", Role.RECURRENT),
    ("time_mix_", Role.RECURRENT),
    ("channel_mix_", Role.RECURRENT),
    ("attn_", Role.ATTENTION),
    ("cross_attn_", Role.ATTENTION),
    ("indexer", Role.ATTENTION),
    ("ffn_", Role.FFN),
)
_LEGACY_EXPERTS: Final = ("ffn_up.", "ffn_gate.", "ffn_down.")
"""One tensor for each expert, `ffn_up.<expert>`, as in files of early 2024."""

_OUTPUT_STEMS: Final = frozenset(_STEMS[Role.OUTPUT].split())
_INPUT_STEMS: Final = frozenset(_STEMS[Role.INPUT].split())
_DUPLICATED_STEMS: Final = frozenset(("rope_freqs", "rope_factors_long", "rope_factors_short"))
_UNUSED_STEMS: Final = frozenset(
    ("masked_embd_centroids", "masked_embd_ordering", "cross_attn_rel_b")
)
"""`GGML_OP_NONE` in LLM_TENSOR_INFOS: never loaded."""

_PARTS: Final = frozenset(("weight", "bias", "scale", "scales", "input_scale", "lora_a", "lora_b"))
_BLOCKS: Final = ("blk.", "dec.blk.", "enc.blk.", "posnet.", "convnext.")
_DIGITS_MAX: Final = 4


def role_of_stem(stem: str) -> Role:
    """Role of a tensor from its name without block (`blk.<il>.`) and part (`.weight`)."""
    role = _ROLE_OF_STEM.get(stem)
    if role is not None:
        return role
    if stem.startswith(_LEGACY_EXPERTS) and stem.rpartition(".")[2].isdecimal():
        return Role.EXPERT
    if "norm" in stem and not stem.startswith("decision."):
        return Role.NORM
    return next((role for prefix, role in _ROLE_OF_PREFIX if stem.startswith(prefix)), Role.OTHER)


class _Kind(NamedTuple):
    """What all tensors of one name have in common, whatever their block."""

    role: Role
    part: str
    home: str
    is_kept_in_nextn: bool
    is_used: bool
    is_duplicated: bool
    is_lazy: bool


def _split_part(name: str) -> tuple[str, str]:
    """`ffn_up_exps.weight` -> (`ffn_up_exps`, `weight`); names without a part are weights."""
    stem, dot, part = name.rpartition(".")
    return (stem, part) if dot and part in _PARTS else (name, "weight")


def _split_block(name: str) -> tuple[int | None, str]:
    """`blk.3.ffn_up.weight` -> (3, `ffn_up.weight`); None for names outside the blocks."""
    for prefix in _BLOCKS:
        if name.startswith(prefix):
            number, _, rest = name[len(prefix) :].partition(".")
            if rest and number.isdecimal() and number.isascii() and len(number) <= _DIGITS_MAX:
                return int(number), rest
    return None, name


def _make_kind(name: str, arch: Arch) -> _Kind:
    stem, part = _split_part(name)
    role, home = role_of_stem(stem), "layer"
    if stem == "token_embd_norm" and arch.token_norm_is_output:
        role, home = Role.OUTPUT, "output"
    elif stem in _INPUT_STEMS:
        home = "input"
    elif stem in _OUTPUT_STEMS or stem.startswith("decision."):
        home = "output"
    return _Kind(
        role=role,
        part=part,
        home=home,
        is_kept_in_nextn=arch.nextn_is_loaded or stem in arch.kept_in_nextn,
        is_used=stem not in _UNUSED_STEMS,
        is_duplicated=stem in _DUPLICATED_STEMS,
        is_lazy=arch.lazy_inputs and stem == "per_layer_token_embd",
    )


def _place(il: int | None, kind: _Kind, n_layer: int) -> tuple[str, int | None]:
    """Home and owning block of a tensor that stands in block `il` of the file."""
    if il is not None and il >= n_layer:
        return "output", None
    if kind.home != "layer" or kind.is_duplicated:
        return kind.home, None
    return "layer", il or 0


def assign_roles(
    infos: Iterable[TensorInfo], *, arch: Arch, n_layer: int, n_layer_nextn: int
) -> tuple[Tensor, ...]:
    """Every tensor of a header with its role and home.

    `n_layer` counts all blocks, `n_layer_nextn` the MTP blocks at their end. Tensors outside
    the blocks that llama.cpp creates as part of a block (`tn(…, 0)`) get block 0; blocks
    beyond the last layer (the parts of a head) go with the output. Routed experts are so
    called only in layers, where they can be moved.
    """
    trunk = n_layer - n_layer_nextn
    kinds: dict[str, _Kind] = {}
    tensors = []
    for info in infos:
        block, rest = _split_block(info.name)
        kind = kinds.get(rest)
        if kind is None:
            kind = kinds[rest] = _make_kind(rest, arch)
        home, il = _place(block, kind, n_layer)
        is_stray = kind.role is Role.EXPERT and (block is None or il is None)
        tensors.append(
            Tensor(
                name=info.name,
                type=info.type,
                shape=info.shape,
                n_bytes=info.n_bytes,
                role=Role.OTHER if is_stray else kind.role,
                il=il,
                part=kind.part,
                home=home,
                loaded=kind.is_used and (il is None or il < trunk or kind.is_kept_in_nextn),
                duplicated=kind.is_duplicated,
                lazy=kind.is_lazy and info.n_bytes > LAZY_MIN_BYTES,
            )
        )
    return tuple(tensors)
