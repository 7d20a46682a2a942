"""How many bytes does a tensor of this type and shape take?

Mirrors `type_traits` and `ggml_row_size` of ggml/src/ggml.c (b11434). Types
that ggml has removed stay in the table without a size, so that old files are
refused by name instead of being misread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class GGMLType(NamedTuple):
    """One tensor type: `block_size` elements are stored in `block_bytes` bytes."""

    id: int
    name: str
    block_size: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        """True where `ggml_is_quantized` is: blocks of more than one element."""
        return self.block_size > 1

    @property
    def is_known(self) -> bool:
        """False for removed types and for ids newer than this table."""
        return self.block_bytes > 0


# fmt: off
_TABLE: Final = (
    (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (24, "I8", 1, 1), (25, "I16", 1, 2),
    (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8), (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18), (42, "Q2_0", 64, 18),
    # removed from ggml: named, never sized
    (4, "Q4_2", 0, 0), (5, "Q4_3", 0, 0), (31, "Q4_0_4_4", 0, 0), (32, "Q4_0_4_8", 0, 0),
    (33, "Q4_0_8_8", 0, 0), (36, "IQ4_NL_4_4", 0, 0), (37, "IQ4_NL_4_8", 0, 0),
    (38, "IQ4_NL_8_8", 0, 0),
)
# fmt: on

TYPES: Final = {
    id_: GGMLType(id=id_, name=name, block_size=size, block_bytes=n_bytes)
    for id_, name, size, n_bytes in _TABLE
}
TYPES_BY_NAME: Final = {t.name: t for t in TYPES.values()}


def type_by_id(id_: int) -> GGMLType:
    """The type with this id; an unknown id gets a type named `unknown(<id>)` without a size."""
    known = TYPES.get(id_)
    return known or GGMLType(id=id_, name=f"unknown({id_})", block_size=0, block_bytes=0)


def row_bytes(type_: GGMLType, n_elements: int) -> int:
    """Bytes of one row; mirrors `ggml_row_size`, which needs whole blocks."""
    return n_elements // type_.block_size * type_.block_bytes


def tensor_bytes(type_: GGMLType, shape: Sequence[int]) -> int:
    """Bytes of a contiguous tensor with `shape[0]` the fastest dimension, as in GGUF."""
    n_bytes = row_bytes(type_, shape[0] if shape else 1)
    for n in shape[1:]:
        n_bytes *= n
    return n_bytes
