"""Whatever bytes come, the header reader answers with a header or one GGUFError.

And what gguf-py writes it reads as gguf-py's own reader does.
"""

from __future__ import annotations

import math
import random
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.errors import GGUFError
from offload.gguf import GGUFHeader, SkippedArray, parse_header
from offload.source import merge_parts
from tests.gguf_bytes import F16, Tensor, array, header, key, small_model
from tests.gguf_bytes import gguf as gguf_file

SMALL = small_model()
DATA_START = parse_header(SMALL).data_offset_bytes
NUMBERS = sorted(
    {0, 1, 2**64 - 1}
    | {2**n + d for n in (5, 8, 16, 20, 24, 30, 31, 32, 40, 60, 62, 63) for d in (-1, 0, 1)}
)


def read_or_refuse(data: bytes) -> GGUFHeader | None:
    """The header, checked to be sound, or None; any other outcome fails the test."""
    try:
        read = parse_header(data, path="some.gguf")
    except GGUFError as error:
        assert str(error).isprintable()
        assert len(str(error)) < 1000
        return None
    repr(read).encode()
    end = read.data_offset_bytes
    for tensor in read.tensors:
        assert tensor.n_bytes > 0
        assert read.data_offset_bytes + tensor.offset_bytes >= end
        end = read.data_offset_bytes + tensor.offset_bytes + tensor.n_bytes
    assert end <= max(len(data), read.data_offset_bytes)
    return read


@pytest.mark.parametrize("version", [2, 3])
def test_cut_at_every_offset(version: int) -> None:
    """Cut anywhere, a file is refused, but for the padding behind its last tensor."""
    data = small_model(version=version)
    padding = len(data) - (parse_header(data).data_offset_bytes + 608 + 6)
    for n_bytes in range(len(data) - padding):
        with pytest.raises(GGUFError) as caught:
            parse_header(data[:n_bytes])
        assert str(caught.value).isprintable()
    for n_bytes in range(len(data) - padding, len(data)):
        assert parse_header(data[:n_bytes]).tensors == parse_header(data).tensors


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, DATA_START - 1), st.integers(1, 255)), min_size=1, max_size=8)
)
def test_flipped_bytes(flips: list[tuple[int, int]]) -> None:
    """Flipped bytes give another sound header or one error."""
    data = bytearray(SMALL)
    for offset, mask in flips:
        data[offset] ^= mask
    read_or_refuse(bytes(data))


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(4, DATA_START - 8),
            st.sampled_from(NUMBERS) | st.integers(0, 2**64 - 1),
            st.sampled_from([1, 2, 4, 8]),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_absurd_numbers_anywhere(fields: list[tuple[int, int, int]]) -> None:
    """Powers of two and their neighbours written over any field give a header or one error."""
    data = bytearray(SMALL)
    for offset, number, size in fields:
        data[offset : offset + size] = (number % 256**size).to_bytes(size, "little")
    read_or_refuse(bytes(data))


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([b"", b"GGUF", SMALL[:8], SMALL[:24]]))
def test_any_bytes(rest: bytes, start: bytes) -> None:
    """Random bytes, alone or behind a good beginning, give a header or one error."""
    read_or_refuse(start + rest)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(24, 150), st.integers(1, 255)), max_size=3)
)
def test_flipped_bytes_in_parts(flips: list[tuple[int, int, int]]) -> None:
    """Damaged split sets give a merged header or one error."""
    parts = []
    for no in range(3):
        keys = [
            key("split.no", "u16", no),
            key("split.count", "u16", 3),
            key("split.tensors.count", "i32", 3),
        ]
        parts.append(bytearray(gguf_file(keys, [Tensor(f"t{no}")])))
    for no, offset, mask in flips:
        parts[no][offset] ^= mask
    try:
        merged = merge_parts(
            [parse_header(bytes(part), path=f"{i}") for i, part in enumerate(parts)]
        )
    except GGUFError as error:
        assert str(error).isprintable()
    else:
        assert len(merged.tensors) == 3


def test_memory_stays_bounded() -> None:
    """A thousand damaged files, none of which may take more than a few megabytes to refuse."""
    pick = random.Random(5)
    tokens = array("tokenizer.ggml.tokens", "string", ["token"] * 200)
    data = gguf_file(
        [tokens, array("a", "f64", [1.0] * 200), key("s", "string", "x" * 200)],
        [Tensor(f"t{i}", (3,), F16, 6) for i in range(20)],
    )
    tracemalloc.start()
    for _ in range(1000):
        damaged = bytearray(data)
        for _ in range(pick.randint(1, 3)):
            number = pick.choice(NUMBERS)
            size = pick.choice((4, 8))
            offset = pick.randrange(8, len(data) - 700)
            damaged[offset : offset + size] = (number % 256**size).to_bytes(size, "little")
        read_or_refuse(bytes(damaged))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_largest_header_to_refuse() -> None:
    """Thousands of arrays, each short enough to keep, are refused before they fill memory."""
    keys = [array(f"{i}", "u16", range(4096)) for i in range(2000)]
    data = header(keys)
    tracemalloc.start()
    with pytest.raises(GGUFError, match="more than 8 MiB"):
        parse_header(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 << 20


# gguf-py as the other reader. Q8_1 has a wrong size there (see test_ggml.py).
TYPES = [type_ for type_ in GGMLQuantizationType if type_.name != "Q8_1"]
NATIVE = {"F32": "f4", "F16": "f2", "F64": "f8", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}
SCALARS: dict[GGUFValueType, st.SearchStrategy[Any]] = {
    GGUFValueType.UINT8: st.integers(0, 2**8 - 1),
    GGUFValueType.INT8: st.integers(-(2**7), 2**7 - 1),
    GGUFValueType.UINT16: st.integers(0, 2**16 - 1),
    GGUFValueType.INT16: st.integers(-(2**15), 2**15 - 1),
    GGUFValueType.UINT32: st.integers(0, 2**32 - 1),
    GGUFValueType.INT32: st.integers(-(2**31), 2**31 - 1),
    GGUFValueType.UINT64: st.integers(0, 2**64 - 1),
    GGUFValueType.INT64: st.integers(-(2**63), 2**63 - 1),
    GGUFValueType.FLOAT32: st.floats(width=32),
    GGUFValueType.FLOAT64: st.floats(),
    GGUFValueType.BOOL: st.booleans(),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[GGUFValueType, GGUFValueType | None, Any]:
    """A metadata type, an array's element type, and a value."""
    if draw(st.booleans()):
        type_ = draw(st.sampled_from(list(SCALARS)))
        if draw(st.booleans()):
            values = st.lists(SCALARS[type_], min_size=1, max_size=30)
            return GGUFValueType.ARRAY, type_, draw(values)
        return type_, None, draw(SCALARS[type_])
    if draw(st.booleans()):
        texts = st.lists(TEXT, min_size=1, max_size=30)
        return GGUFValueType.ARRAY, GGUFValueType.STRING, draw(texts)
    return GGUFValueType.STRING, None, draw(TEXT)


@st.composite
def tensor_specs(draw: st.DrawFn) -> tuple[GGMLQuantizationType, tuple[int, ...]]:
    """A type and numpy's byte or element shape for it."""
    type_ = draw(st.sampled_from(TYPES))
    unit = 1 if type_.name in NATIVE else GGML_QUANT_SIZES[type_][1]
    rows = draw(st.lists(st.integers(1, 4), max_size=3))
    return type_, (*rows, unit * draw(st.integers(1, 3)))


@settings(max_examples=250, deadline=None)
@given(
    metadata=st.dictionaries(TEXT.map("x.{}".format), typed_values(), max_size=8),
    tensors=st.dictionaries(
        st.text("abc.019_", min_size=1, max_size=30), tensor_specs(), max_size=6
    ),
    alignment=st.sampled_from([None, 8, 32, 256]),
)
def test_reads_what_gguf_py_reads(
    metadata: dict[str, tuple[GGUFValueType, GGUFValueType | None, Any]],
    tensors: dict[str, tuple[GGMLQuantizationType, tuple[int, ...]]],
    alignment: int | None,
) -> None:
    """Every key and every field of every tensor equals what `gguf.GGUFReader` finds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if alignment is not None:
            writer.add_custom_alignment(alignment)
        for name, (type_, element_type, value) in metadata.items():
            writer.add_key_value(name, value, type_, element_type)
        for name, (tensor_type, shape) in tensors.items():
            dtype = NATIVE.get(tensor_type.name, "u1")
            writer.add_tensor(name, np.zeros(shape, dtype), raw_dtype=tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        data = path.read_bytes()
        ours, theirs = parse_header(data), gguf.GGUFReader(path)
        assert_same(ours, theirs)
        del theirs  # it maps the file


def assert_same(ours: GGUFHeader, theirs: gguf.GGUFReader) -> None:
    """Our header is what gguf-py read, key by key and tensor by tensor."""
    fields = {name: f for name, f in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        mine, other = ours.metadata[name], field.contents()
        if isinstance(mine, SkippedArray):
            assert field.types in (
                [GGUFValueType.ARRAY, GGUFValueType.STRING],
                [GGUFValueType.ARRAY],
            )
            assert (mine.element_type, mine.length) == ("string", len(other))
        elif isinstance(mine, tuple):
            assert all(map(_equal, mine, other)) and len(mine) == len(other)
        else:
            assert _equal(mine, other)
    assert ours.version == theirs.fields["GGUF.version"].contents()
    assert len(ours.tensors) == len(theirs.tensors)
    if theirs.tensors:
        assert ours.data_offset_bytes == theirs.data_offset
    for tensor, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert tensor.name == other.name
        assert (tensor.type.id, tensor.type.name) == (other.tensor_type, other.tensor_type.name)
        assert list(tensor.shape) == other.shape.tolist()
        assert tensor.n_bytes == other.n_bytes
        assert ours.data_offset_bytes + tensor.offset_bytes == other.data_offset


def _equal(mine: object, other: object) -> bool:
    if isinstance(mine, float) and isinstance(other, float) and math.isnan(mine):
        return math.isnan(other)
    return type(mine) is type(other) and mine == other
