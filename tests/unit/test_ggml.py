"""Sizes of ggml's tensor types, against gguf-py's table and ggml's own rules."""

from __future__ import annotations

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.ggml import TYPES, TYPES_BY_NAME, GGMLType, row_bytes, tensor_bytes, type_by_id

KNOWN = [type_ for type_ in TYPES.values() if type_.is_known]


@pytest.mark.parametrize("type_", list(GGMLQuantizationType), ids=lambda t: t.name)
def test_agrees_with_gguf_py(type_: GGMLQuantizationType) -> None:
    """Id, name, block size and block bytes are gguf-py's, but for Q8_1.

    gguf-py counts 40 bytes for Q8_1; ggml's block_q8_1 is two halves and 32 bytes: 36. No model
    file holds that type, it is how activations are quantised.
    """
    block_size, block_bytes = GGML_QUANT_SIZES[type_]
    if type_.name == "Q8_1":
        block_bytes = 36
    assert TYPES[type_] == GGMLType(
        id=type_, name=type_.name, block_size=block_size, block_bytes=block_bytes
    )


def test_ids_without_gap() -> None:
    """Every id below ggml's GGML_TYPE_COUNT of 43 has a name, once."""
    assert sorted(TYPES) == list(range(43))
    assert len(TYPES_BY_NAME) == 43


def test_unknown_ids() -> None:
    """An id newer than the table is named by its number and has no size."""
    type_ = type_by_id(99)
    assert (type_.name, type_.is_known, type_.is_quantized) == ("unknown(99)", False, False)
    assert type_by_id(12) is TYPES_BY_NAME["Q4_K"]


def test_quantised_types() -> None:
    """Quantised types are those of more than one element a block."""
    plain = {type_.name for type_ in KNOWN if not type_.is_quantized}
    assert plain == {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}


@settings(deadline=None)
@given(st.sampled_from(KNOWN), st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_tensor_bytes(type_: GGMLType, blocks: list[int]) -> None:
    """A tensor is as many blocks as its rows hold, times its rows."""
    shape = (blocks[0] * type_.block_size, *blocks[1:])
    n_rows = 1
    for n in shape[1:]:
        n_rows *= n
    assert tensor_bytes(type_, shape) == blocks[0] * type_.block_bytes * n_rows
    assert tensor_bytes(type_, shape) == row_bytes(type_, shape[0]) * n_rows


def test_tensor_of_no_dimensions() -> None:
    """A tensor without dimensions is one element, as ggml fills them with ones."""
    assert tensor_bytes(TYPES_BY_NAME["F32"], ()) == 4
