"""What is each tensor for, and which part of llama.cpp's layer split decides its place?

Mirrors `LLM_TENSOR_NAMES` and `LLM_TENSOR_INFOS` of src/llama-arch.cpp and the
flags that src/models/*.cpp pass to `create_tensor` (b11434): tensors of the
input stay on the host, those of the output go with the output layer, all
others follow the owner of their block. MTP blocks are skipped unless a draft
context asks for them; frequency tables are copied into every device that owns
a layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from offload.ggml import GGMLType
from offload.gguf import TensorInfo


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of the file.

    `shape[0]` is the fastest dimension. `il` is None outside the blocks. `home`
    is `input`, `layer` or `output`. `loaded` is False for tensors llama.cpp
    skips. `duplicated` tensors are copied into every buffer type of a layer.
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


_BLOCK: Final = re.compile(r"blk\.(\d{1,4})\.(.+)", re.ASCII)

_INPUT_STEMS: Final = frozenset(
    ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
)
_OUTPUT_STEMS: Final = frozenset(
    ("output", "output_norm", "cls", "cls.output", "cls.norm", "enc.output_norm",
     "dec.output_norm", "output_res_score", "output_hc_fn", "output_hc_base", "output_hc_scale",
     "output_hc_norm", "output_hc_down", "output_hc_up", "altup_unembd_proj", "altup_proj",
     "dense_2", "dense_3", "nextn.post_projection", "fc", "d2t", "markov_w1", "markov_w2",
     "conf_proj", "selector_predecessor", "selector_successor", "selector_hidden")
)  # fmt: skip
_DUPLICATED_STEMS: Final = frozenset(("rope_freqs", "rope_factors_long", "rope_factors_short"))
_UNUSED_STEMS: Final = frozenset(("masked_embd_centroids", "masked_embd_ordering"))
"""`GGML_OP_NONE` in LLM_TENSOR_INFOS: never loaded."""

_OUTPUT_NORM_ARCHS: Final = frozenset(("lfm2", "lfm2moe"))
"""Whose `token_embd_norm` is the norm before the output (`LLM_TENSOR_OUTPUT_NORM_LFM2`)."""

_LOADED_IN_NEXTN: Final = {"glm-dsa": frozenset(("exp_probs_b",))}
"""Tensors of MTP blocks that are created without the skip flag, by architecture."""

_PARTS: Final = frozenset(("weight", "bias", "scale", "input_scale", "lora_a", "lora_b"))

# the first that matches decides; stems are names without block and part
_ROLE_OF_STEM: Final = (
    (re.compile(r"ffn_(?:up|down|gate|gate_up)_(?:ch)?exps"), Role.EXPERT),
    (re.compile(r"ffn_(?:up|down|gate)\.\d+"), Role.EXPERT),
    (re.compile(r"ffn_(?:up|down|gate|gate_up|gate_inp)_shexp"), Role.SHARED_EXPERT),
    (re.compile(r"ffn_gate_inp|exp_probs_b(?:_vl)?|ffn_gate_tid2eid"), Role.ROUTER),
    (re.compile(r".*_norm(?:_\w+)?|.*\.norm|(?:ple_)?norm_\w+|time_mix_ln"), Role.NORM),
    (re.compile(r"nextn\..*"), Role.OTHER),
    (re.compile(r"ssm_.*|time_mix_.*|channel_mix_.*|shortconv\..*"), Role.RECURRENT),
    (re.compile(r"(?:cross_)?attn_.*|indexer.*|vis_attn_.*"), Role.ATTENTION),
    (re.compile(r"ffn_.*|ffn\..*|vis_(?:up|down|gate)"), Role.FFN),
)


@lru_cache(maxsize=1024)
def role_of_stem(stem: str) -> Role:
    """Role of a block's tensor from its name without `blk.<il>.` and without the part."""
    for pattern, role in _ROLE_OF_STEM:
        if pattern.fullmatch(stem):
            return role
    return Role.OTHER


def _split_part(name: str) -> tuple[str, str]:
    """`ffn_up_exps.weight` -> (`ffn_up_exps`, `weight`); names without a part are weights."""
    stem, dot, part = name.rpartition(".")
    return (stem, part) if dot and part in _PARTS else (name, "weight")


def _outside_blocks(stem: str, arch: str) -> tuple[str, Role]:
    """Home and role of a tensor that belongs to no block."""
    if stem in _INPUT_STEMS or stem in _UNUSED_STEMS:
        return "input", Role.INPUT
    if stem.startswith("token_embd_norm") and arch in _OUTPUT_NORM_ARCHS:
        return "output", Role.OUTPUT
    if stem in _OUTPUT_STEMS or stem.startswith("decision."):
        return "output", Role.OUTPUT
    return "layer", role_of_stem(stem)


def assign_roles(
    infos: Iterable[TensorInfo], *, arch: str, n_layer: int, n_layer_skipped: int
) -> tuple[Tensor, ...]:
    """Every tensor of a header with its role and home.

    `n_layer` is the file's block count, `n_layer_skipped` how many of the last
    blocks llama.cpp leaves out (MTP). Tensors outside the blocks that
    llama.cpp creates as part of a block (`tn(…, 0)`) get block 0.
    """
    first_skipped = n_layer - n_layer_skipped
    kept_in_nextn = _LOADED_IN_NEXTN.get(arch, frozenset())
    tensors = []
    for info in infos:
        match = _BLOCK.fullmatch(info.name)
        if match is not None:
            il: int | None = int(match[1])
            stem, part = _split_part(match[2])
            home, role = "layer", role_of_stem(stem)
            loaded = int(match[1]) < first_skipped or stem in kept_in_nextn
            duplicated = stem in _DUPLICATED_STEMS
        else:
            stem, part = _split_part(info.name)
            home, role = _outside_blocks(stem, arch)
            duplicated = stem in _DUPLICATED_STEMS
            il = 0 if home == "layer" and not duplicated else None
            loaded = stem not in _UNUSED_STEMS
        tensors.append(
            Tensor(
                name=info.name,
                type=info.type,
                shape=info.shape,
                n_bytes=info.n_bytes,
                role=role,
                il=il,
                part=part,
                home=home,
                loaded=loaded,
                duplicated=duplicated,
            )
        )
    return tuple(tensors)
