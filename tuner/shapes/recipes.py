"""Which type does each tensor get in a file of this quantisation?

Mirrors `llama_tensor_get_type_impl`, `tensor_allows_quantization` and
`tensor_type_fallback` of src/llama-quant.cpp (b11434), without an importance
matrix; `llama-quantize --dry-run` judges it. Two recipes are not
llama-quantize's: MXFP4_BF16 is gpt-oss as first converted, Q3_K_MIX the case
study's 119B file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from offload.errors import UsageError
from offload.ggml import TYPES_BY_NAME, GGMLType
from tuner.shapes.shape import Shape
from tuner.shapes.tensors import TensorShape

# name -> (general.file_type, the type most tensors get)
# fmt: off
RECIPES: Final[dict[str, tuple[int, str]]] = {
    "F32": (0, "F32"), "F16": (1, "F16"), "BF16": (32, "BF16"),
    "Q4_0": (2, "Q4_0"), "Q4_1": (3, "Q4_1"), "Q8_0": (7, "Q8_0"),
    "Q5_0": (8, "Q5_0"), "Q5_1": (9, "Q5_1"),
    "Q2_K": (10, "Q2_K"), "Q2_K_S": (21, "Q2_K"),
    "Q3_K_S": (11, "Q3_K"), "Q3_K_M": (12, "Q3_K"), "Q3_K_L": (13, "Q3_K"),
    "Q4_K_S": (14, "Q4_K"), "Q4_K_M": (15, "Q4_K"),
    "Q5_K_S": (16, "Q5_K"), "Q5_K_M": (17, "Q5_K"), "Q6_K": (18, "Q6_K"),
    "IQ1_S": (24, "IQ1_S"), "IQ1_M": (31, "IQ1_M"),
    "IQ2_XXS": (19, "IQ2_XXS"), "IQ2_XS": (20, "IQ2_XS"),
    "IQ2_S": (28, "IQ2_XS"), "IQ2_M": (29, "IQ2_S"),
    "IQ3_XXS": (23, "IQ3_XXS"), "IQ3_XS": (22, "IQ3_S"),
    "IQ3_S": (26, "IQ3_S"), "IQ3_M": (27, "IQ3_S"),
    "IQ4_NL": (25, "IQ4_NL"), "IQ4_XS": (30, "IQ4_XS"),
    "TQ1_0": (36, "TQ1_0"), "TQ2_0": (37, "TQ2_0"),
    "MXFP4_MOE": (38, "MXFP4"),
    "MXFP4_BF16": (38, "BF16"), "Q3_K_MIX": (12, "Q3_K"),
}
_BELOW_IQ3 = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"})
_OUTPUT_Q5_K = _BELOW_IQ3 | {"IQ3_XXS"}
_EMBD = {
    "IQ1_S": "Q2_K", "IQ1_M": "Q2_K", "IQ2_XXS": "Q2_K", "IQ2_XS": "Q2_K",
    "IQ2_S": "IQ3_S", "IQ2_M": "IQ3_S", "IQ3_XXS": "IQ3_S", "TQ1_0": "Q4_K", "TQ2_0": "Q4_K",
}
_ATTN_OUTPUT = {
    "IQ1_S": "IQ2_XXS", "IQ1_M": "IQ2_XXS", "IQ2_S": "IQ3_S", "IQ2_M": "IQ3_S",
    "Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K",
}
_ATTN_OUTPUT_8_EXPERTS_Q5_K = _BELOW_IQ3 | {
    "Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M",
    "IQ3_S", "IQ3_M", "IQ4_XS",
}
_ATTN_QK = {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}
_FALLBACK = {
    "IQ1_S": "IQ4_NL", "IQ1_M": "IQ4_NL", "IQ2_XXS": "IQ4_NL", "IQ2_XS": "IQ4_NL",
    "IQ2_S": "IQ4_NL", "IQ3_XXS": "IQ4_NL", "IQ3_S": "IQ4_NL", "IQ4_XS": "IQ4_NL",
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0",
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}
# fmt: on
_NEVER: Final = ("_norm", "ffn_gate_inp.", "ssm_conv1d", "layer_output_scale")


def _is_quantizable(t: TensorShape) -> bool:
    return (
        len(t.shape) > 1
        and t.name.endswith(".weight")
        and not any(part in t.name for part in _NEVER)
    )


def _more_bits(i: int, n: int) -> bool:
    """The layers to which the _M mixes give more: the first and last eighth, and every third."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


@dataclass(slots=True)
class _Mixer:
    """One pass over a model's tensors; counts as llama-quantize does while it goes."""

    ftype: str
    shape: Shape
    n_attn_v: int
    i_attn_v: int = 0
    i_down: int = 0

    @property
    def n_gqa(self) -> int:
        n_head_kv = 1 if self.shape.mla else self.shape.n_head_kv
        return self.shape.n_head // n_head_kv

    def attn_v(self, base: str) -> str:
        ftype, i, n, many = self.ftype, self.i_attn_v, self.n_attn_v, self.n_gqa >= 4
        self.i_attn_v += 1
        if ftype in _BELOW_IQ3:
            if many or self.shape.n_expert >= 4:
                return "Q4_K"
            return "IQ3_S" if ftype in ("IQ2_S", "IQ2_M") else "Q2_K"
        picked = {
            "Q2_K": "Q4_K" if many else "Q3_K",
            "Q2_K_S": "Q4_K" if many else base,
            "IQ3_XXS": "Q4_K" if many else "IQ3_S",
            "IQ3_XS": "Q4_K" if many else base,
            "IQ3_S": "Q4_K" if many else base,
            "IQ3_M": "Q4_K",
            "Q3_K_M": "Q5_K" if i < 2 else "Q4_K",
            "Q3_K_L": "Q5_K",
            "IQ4_NL": "Q5_K" if many else base,
            "IQ4_XS": "Q5_K" if many else base,
            "Q4_K_M": "Q6_K" if _more_bits(i, n) else base,
            "Q5_K_M": "Q6_K" if _more_bits(i, n) else base,
            "Q4_K_S": "Q5_K" if i < 4 else base,
        }.get(ftype, base)
        is_70b = self.shape.arch == "llama" and self.shape.n_layer == 80 and self.n_gqa > 1
        if is_70b and picked in ("Q3_K", "Q4_K"):
            picked = "Q5_K"
        return "Q8_0" if self.shape.n_expert == 8 else picked

    def down(self, base: str, t: TensorShape) -> str:
        ftype, n = self.ftype, self.shape.n_layer_all
        # without experts llama-quantize counts tensors, with them it reads the name
        i = t.il if self.shape.n_expert > 1 else self.i_down
        i_counted = self.i_down
        self.i_down += 1
        if ftype in _BELOW_IQ3:
            lead = "IQ3_S" if ftype in ("IQ2_S", "IQ2_M") else "Q2_K"
            return lead if i_counted < n // 8 else base
        early = i < n // 8
        m_eight = self.shape.n_expert == 8 and _more_bits(i, n)
        return {
            "Q2_K": "Q3_K",
            "Q2_K_S": "Q4_K" if early else base,
            "IQ3_XXS": "Q4_K" if early else "Q3_K",
            "Q3_K_M": "Q5_K" if i < n // 16 else "Q4_K",
            "IQ3_M": "Q4_K" if early or m_eight else base,
            "Q3_K_L": "Q5_K",
            "Q4_K_M": "Q6_K" if _more_bits(i, n) else base,
            "Q5_K_M": "Q6_K" if _more_bits(i, n) else base,
            "Q4_K_S": "Q5_K" if early else base,
            "IQ4_NL": "Q5_K" if early else base,
            "IQ4_XS": "Q5_K" if early else base,
        }.get(ftype, base)

    def attn_k(self, base: str) -> str:
        if self.shape.n_expert == 8:
            return "Q4_K" if self.ftype in _BELOW_IQ3 else "Q8_0"
        return _ATTN_QK.get(self.ftype, base)

    def attn_output(self, base: str) -> str:
        if self.shape.n_expert == 8:
            return "Q5_K" if self.ftype in _ATTN_OUTPUT_8_EXPERTS_Q5_K else base
        return _ATTN_OUTPUT.get(self.ftype, base)

    def output(self, base: str, t: TensorShape) -> str:
        if self.ftype == "MXFP4_MOE" or t.shape[0] % TYPES_BY_NAME[base].block_size:
            return "Q8_0"
        if self.ftype in _OUTPUT_Q5_K:
            return "Q5_K"
        return base if base == "Q8_0" else "Q6_K"

    def ffn_gate_up(self, base: str, t: TensorShape) -> str:
        n = self.shape.n_layer_all
        if self.ftype == "IQ3_XS" and n // 8 <= t.il < 7 * n // 8:
            return "IQ3_XXS"
        return base

    def pick(self, t: TensorShape, base: str) -> str:
        """The type before the row length is looked at."""
        name = t.name
        is_embd = name == "token_embd.weight"
        if name == "output.weight" or (is_embd and self.shape.output_is_tied):
            return self.output(base, t)
        if self.ftype == "MXFP4_MOE":
            return "MXFP4" if len(t.shape) > 2 and t.shape[2] > 1 else "Q8_0"
        if is_embd:
            return _EMBD.get(self.ftype, base)
        kind = name.rsplit(".", 2)[-2]
        if kind in ("attn_qkv", "attn_v"):
            return self.attn_v(base)
        if kind == "attn_k":
            return self.attn_k(base)
        if kind == "attn_q":
            return _ATTN_QK.get(self.ftype, base)
        if kind == "attn_output":
            return self.attn_output(base)
        if kind.startswith("ffn_down"):
            return self.down(base, t)
        if kind.startswith(("ffn_gate", "ffn_up")):
            return self.ffn_gate_up(base, t)
        return base


def _case_study(t: TensorShape) -> str:
    """Q3_K gate/up, Q4_K down, and a common mix for the rest: 34.0 MiB of it per layer."""
    kind = t.name.rsplit(".", 2)[-2]
    if kind in ("ffn_gate_exps", "ffn_up_exps"):
        return "Q3_K"
    if kind in ("attn_kv_a_mqa", "attn_k_b", "attn_v_b"):
        return "Q8_0"  # small, and the rows are too short for K-quants
    return "Q6_K" if kind in ("attn_q_a", "attn_q_b", "output") else "Q4_K"


def _fit_rows(t: TensorShape, name: str) -> str:
    """A type whose blocks divide the rows, as `tensor_type_fallback` finds it."""
    if t.shape[0] % TYPES_BY_NAME[name].block_size == 0:
        return name
    name = _FALLBACK.get(name, name)
    return "F16" if t.shape[0] % TYPES_BY_NAME[name].block_size else name


def check_recipe(name: str) -> str:
    """The recipe's own spelling of `name`; raises UsageError naming all recipes."""
    found = name.upper()
    if found not in RECIPES:
        raise UsageError(f"no quantisation {name!r}; one of {', '.join(RECIPES)}")
    return found


def choose_types(shape: Shape, tensors: Sequence[TensorShape], recipe: str) -> tuple[GGMLType, ...]:
    """The type of every tensor, in the order given (llama-quantize's counters depend on it)."""
    recipe = check_recipe(recipe)
    base = RECIPES[recipe][1]
    n_attn_v = sum(t.name.endswith(("attn_v.weight", "attn_qkv.weight")) for t in tensors)
    mixer = _Mixer(ftype=recipe, shape=shape, n_attn_v=n_attn_v)
    found = []
    for t in tensors:
        if not _is_quantizable(t):
            name = "F32"
        elif recipe == "Q3_K_MIX":
            name = _fit_rows(t, _case_study(t))
        elif recipe == "MXFP4_BF16":
            name = "MXFP4" if "_exps." in t.name else base
        elif base in ("F32", "F16", "BF16"):
            name = base
        else:
            name = _fit_rows(t, mixer.pick(t, base))
        found.append(TYPES_BY_NAME[name])
    return tuple(found)
