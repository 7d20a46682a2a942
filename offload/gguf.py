"""What does the header of a GGUF file say?

Mirrors `gguf_init_from_reader` of ggml/src/gguf.cpp (b11434): what it refuses is refused here,
and so are tensors without elements. Header only: metadata and tensor infos, never tensor data.
Vocabulary-sized arrays are stepped over, every read is bounded by the file's size and by the
caps below, and every failed read is one GGUFError that says what could not be read and where.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offload.foreign import describe_foreign
from offload.ggml import GGMLType, tensor_bytes, type_by_id
from offload.header_bytes import DAMAGED, HeaderBytes, ReadAt

if TYPE_CHECKING:
    from mmap import mmap

# Caps far above any real model (Kimi-K2: 1100 tensors, 50 keys, 8 MB of header), so that a
# damaged count ends in an error and not in minutes of work or gigabytes of memory.
MAX_TENSORS: Final = 1 << 16
MAX_KEYS: Final = 1 << 16
MAX_KEY_BYTES: Final = (1 << 16) - 1  # the GGUF specification's limit
MAX_NAME_BYTES: Final = 63  # GGML_MAX_NAME less its final zero
MAX_DIMS: Final = 4  # GGML_MAX_DIMS
MAX_KEPT_STRING_BYTES: Final = 1 << 20
MAX_KEPT_ELEMENTS: Final = 1 << 16

_ELEMENTS_MAX: Final = (1 << 63) - 1  # ggml counts elements in int64_t

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_COUNTS: Final = struct.Struct("<QQ")
_ARRAY_HEAD: Final = struct.Struct("<IQ")
_TENSOR_TAIL: Final = tuple(struct.Struct(f"<{n}QIQ") for n in range(MAX_DIMS + 1))
_KEY_BYTES_MIN: Final = 8 + 1 + 4 + 1
_TENSOR_BYTES_MIN: Final = 8 + 4 + 4 + 8

_U32_ID: Final = _U32.pack(4)
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    id_: (name, struct.Struct(f"<{code}"))
    for id_, name, code in (
        (0, "u8", "B"), (1, "i8", "b"), (2, "u16", "H"), (3, "i16", "h"), (4, "u32", "I"),
        (5, "i32", "i"), (6, "f32", "f"), (7, "bool", "?"), (10, "u64", "Q"), (11, "i64", "q"),
        (12, "f64", "d"),
    )
}  # fmt: skip


class TensorInfo(NamedTuple):
    """One tensor as the header declares it; `shape[0]` is the fastest dimension (ggml's ne).

    `offset_bytes` counts from the start of the data section of file number `i_file`.
    """

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    offset_bytes: int
    n_bytes: int
    i_file: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedArray:
    """An array (or, as `char`, a string of over 1 MiB) of which only the length was kept."""

    element_type: str
    length: int


Value: TypeAlias = "str | int | float | bool | tuple[int | float | bool, ...] | SkippedArray"


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFHeader:
    """The header of one GGUF file, or of a whole split set (then `path` is its first part).

    `data_offset_bytes` is where the (first) file's tensor data starts.
    """

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    data_offset_bytes: int
    file_bytes: int
    n_files: int
    path: str


def parse_header(
    buffer: bytes | bytearray | memoryview | mmap, *, file_bytes: int | None = None, path: str = ""
) -> GGUFHeader:
    """The header at the start of `buffer`, which holds the file or at least its header.

    `file_bytes` is the size of the whole file (default: of the buffer); `path` names it in
    errors. Raises GGUFError.
    """
    with memoryview(buffer).cast("B") as view:
        return parse_header_at(
            lambda offset, n_bytes: bytes(view[offset : offset + n_bytes]),
            file_bytes=len(view) if file_bytes is None else file_bytes,
            path=path,
        )


def parse_header_at(read_at: ReadAt, *, file_bytes: int, path: str = "") -> GGUFHeader:
    """The header of a file whose bytes `read_at(offset, n_bytes)` returns, read front to back.

    Asks for about a mebibyte at a time and for nothing behind `file_bytes`. Raises GGUFError.
    """
    reader = HeaderBytes(read_at, file_bytes, path)
    version = _read_version(reader)
    n_tensors, n_keys = reader.unpack(_COUNTS, "the number of tensors and keys")
    reader.check_count(n_tensors, "tensors", MAX_TENSORS, _TENSOR_BYTES_MIN)
    reader.check_count(n_keys, "metadata keys", MAX_KEYS, _KEY_BYTES_MIN)
    metadata = _read_metadata(reader, n_keys)
    alignment = _alignment(reader, metadata)
    tensors = tuple(_read_tensors(reader, n_tensors, alignment))
    data_offset = _pad(reader.offset, alignment) if tensors else reader.offset
    _check_extents(reader, tensors, data_offset, file_bytes)
    return GGUFHeader(
        version=version,
        metadata=metadata,
        tensors=tensors,
        data_offset_bytes=data_offset,
        file_bytes=file_bytes,
        n_files=1,
        path=path,
    )


def _read_version(reader: HeaderBytes) -> int:
    """Check magic and version; mirrors the first part of `gguf_init_from_reader`."""
    start = reader.peek(512)
    if not start.startswith(b"GGUF"):
        raise reader.error(f"not a GGUF file: {describe_foreign(start)}", 0)
    reader.take(4, "the magic")
    version: int
    (version,) = reader.unpack(_U32, "the version")
    if version & 0xFFFF == 0:
        raise reader.error(
            "the file is big-endian, made for another kind of machine; download the little-endian "
            "file or convert it with gguf-py's gguf_convert_endian.py",
            4,
        )
    if version < 2:
        raise reader.error(
            f"GGUF version {version} is no longer readable, by llama.cpp neither; "
            "download a newer file or convert the model again",
            4,
        )
    if version > 3:
        raise reader.error(
            f"GGUF version {version} is newer than this program, which reads 2 and 3; "
            "update offload, or download the file again if it should be older",
            4,
        )
    return version


def _read_metadata(reader: HeaderBytes, n_keys: int) -> dict[str, Value]:
    """All metadata, in file order."""
    metadata: dict[str, Value] = {}
    for i_key in range(n_keys):
        reader.key = ""
        raw = reader.take_string(f"metadata key {i_key}", MAX_KEY_BYTES)
        reader.keep(len(raw))
        key = reader.key = _decode(raw)
        if not key:
            raise reader.error(f"metadata key {i_key} is empty; {DAMAGED}")
        if key in metadata:
            raise reader.error(f"metadata key stands twice in the header; {DAMAGED}")
        if key == "general.alignment" and reader.peek(_U32.size) != _U32_ID:
            raise reader.error(f"the alignment is not a 32-bit number; {DAMAGED}")
        metadata[key] = _read_value(reader)
    return metadata


def _read_value(reader: HeaderBytes) -> Value:
    """The value of the key at hand."""
    (type_id,) = reader.unpack(_U32, "a value's type")
    if type_id == _STRING:
        (n_bytes,) = reader.unpack(_U64, "a string's length")
        if n_bytes > MAX_KEPT_STRING_BYTES:
            reader.skip(n_bytes, "a string")
            return SkippedArray(element_type="char", length=n_bytes)
        reader.keep(n_bytes)
        return _decode(reader.take(n_bytes, "a string"))
    if type_id == _ARRAY:
        return _read_array(reader)
    if type_id not in _SCALARS:
        raise reader.error(f"{type_id} is not a metadata type; {DAMAGED}")
    name, layout = _SCALARS[type_id]
    value: int | float | bool = reader.unpack(layout, name)[0]
    return value


def _read_array(reader: HeaderBytes) -> Value:
    """A numeric array as a tuple; strings and anything long as their number only."""
    type_id, length = reader.unpack(_ARRAY_HEAD, "an array's type and length")
    if type_id == _STRING:
        what = f"an array of {length} strings"
        reader.check_room(8 * length, what)
        reader.skip_strings(length, what)
        return SkippedArray(element_type="string", length=length)
    if type_id == _ARRAY:
        raise reader.error(f"an array of arrays, which GGUF does not have; {DAMAGED}")
    if type_id not in _SCALARS:
        raise reader.error(f"an array of metadata type {type_id}, which is none; {DAMAGED}")
    name, layout = _SCALARS[type_id]
    what = f"an array of {length} {name}"
    if length > MAX_KEPT_ELEMENTS:
        reader.skip(length * layout.size, what)
        return SkippedArray(element_type=name, length=length)
    reader.keep(length * layout.size)
    return reader.unpack(struct.Struct(f"<{length}{layout.format[1:]}"), what)


def _alignment(reader: HeaderBytes, metadata: Mapping[str, Value]) -> int:
    """`general.alignment`, a power of two; 32 (GGUF_DEFAULT_ALIGNMENT) where it is not set."""
    reader.key = "general.alignment"
    alignment = metadata.get(reader.key, 32)
    assert isinstance(alignment, int)  # _read_metadata has seen to it
    if alignment <= 0 or alignment & (alignment - 1):
        raise reader.error(f"the alignment {alignment} is not a power of 2; {DAMAGED}")
    return alignment


def _read_tensors(reader: HeaderBytes, n_tensors: int, alignment: int) -> Iterable[TensorInfo]:
    """Every tensor info, each checked as `gguf_init_from_reader` does."""
    names: set[str] = set()
    offset_expected = 0
    for i_tensor in range(n_tensors):
        reader.key = f"tensor {i_tensor}"
        name = reader.key = _decode(reader.take_string("a tensor's name", MAX_NAME_BYTES))
        if name in names:
            raise reader.error(f"tensor stands twice in the header; {DAMAGED}")
        names.add(name)
        (n_dims,) = reader.unpack(_U32, "a tensor's number of dimensions")
        if n_dims > MAX_DIMS:
            raise reader.error(f"tensor of {n_dims} dimensions, more than {MAX_DIMS}; {DAMAGED}")
        *dims, type_id, offset = reader.unpack(_TENSOR_TAIL[n_dims], "a tensor's shape and type")
        shape = tuple(dims) or (1,)  # ggml fills the dimensions that are not there with ones
        type_ = type_by_id(type_id)
        _check_tensor(reader, shape, type_)
        if offset != offset_expected:
            raise reader.error(
                f"tensor data at offset {offset}, expected at {offset_expected}; {DAMAGED}"
            )
        n_bytes = tensor_bytes(type_, shape)
        offset_expected += _pad(n_bytes, alignment)
        yield TensorInfo(name=name, type=type_, shape=shape, offset_bytes=offset, n_bytes=n_bytes)
    reader.key = ""


def _check_tensor(reader: HeaderBytes, shape: tuple[int, ...], type_: GGMLType) -> None:
    """Refuse types without a size and shapes that cannot be."""
    if not type_.is_known:
        raise reader.error(_refused_type(type_))
    n_elements = 1
    for n in shape:
        n_elements *= n
    if n_elements == 0:
        raise reader.error(f"tensor of shape {list(shape)} has no elements; {DAMAGED}")
    if n_elements > _ELEMENTS_MAX:
        raise reader.error(f"tensor of shape {list(shape)} is larger than any; {DAMAGED}")
    if shape[0] % type_.block_size:
        raise reader.error(
            f"rows of {shape[0]} elements are not whole blocks of {type_.name}, "
            f"which have {type_.block_size}; {DAMAGED}"
        )


def _refused_type(type_: GGMLType) -> str:
    """Why a tensor type without a size is refused, and what helps."""
    if type_.name.startswith("unknown"):
        return (
            f"tensor type {type_.id} is not one of ggml's as of llama.cpp b11434; update offload "
            "if the model is newer, else download the file again: it is damaged"
        )
    base = type_.name[: -len("_4_4")] if type_.name.count("_") > 2 else "Q4_0"
    return (
        f"tensor type {type_.name} ({type_.id}) was removed from ggml; "
        f"download or quantise the model as {base}"
    )


def _check_extents(
    reader: HeaderBytes, tensors: tuple[TensorInfo, ...], data_offset: int, file_bytes: int
) -> None:
    """Refuse a file that ends before its tensors do, as `llama_tensor_weight` does."""
    if not tensors:
        return
    needed = data_offset + tensors[-1].offset_bytes + tensors[-1].n_bytes
    if needed <= file_bytes:
        return
    for tensor in tensors:
        end = data_offset + tensor.offset_bytes + tensor.n_bytes
        if end > file_bytes:
            reader.key = tensor.name
            raise reader.error(
                f"tensor data ends at byte {end}, the file at {file_bytes}: {needed - file_bytes} "
                f"of {needed} bytes are missing; the download is incomplete, resume it",
                file_bytes,
            )


def _decode(raw: bytes) -> str:
    r"""Text that can always be encoded; bytes that are not UTF-8 show as `\xff`."""
    return raw.decode("utf-8", "backslashreplace")


def _pad(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment
