"""How is a GGUF file written, with data or as a hole of the right size?

The layout is that of ggml/src/gguf.cpp (version 3, little-endian, alignment
32) and of llama-gguf-split for sets of parts. It shares nothing with the
reader in `offload.gguf`, so that each tests the other. A file appears under
its name only when it is complete.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from offload.errors import UsageError
from offload.ggml import GGMLType, tensor_bytes

ALIGNMENT_BYTES: Final = 32
_PARTS_MAX: Final = 65535  # split.count is a u16

# gguf_type: id and struct format of each scalar
_SCALARS: Final = {
    "u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"),
    "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q"), "i64": (11, "<q"),
    "f64": (12, "<d"),
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class Typed:
    """A number or an array of numbers whose GGUF type is not the default one."""

    type: str
    value: int | float | Sequence[int] | Sequence[float]


Value = str | int | float | bool | Typed | Sequence[str] | Sequence[int] | Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTensor:
    """A tensor to write; `shape[0]` is the fastest dimension."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of its data, without padding."""
        return tensor_bytes(self.type, self.shape)


Fill = Callable[[FileTensor], Iterable[bytes | memoryview]]


def _pad(n_bytes: int) -> int:
    return -n_bytes % ALIGNMENT_BYTES


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _default_type(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "i64" if value < 0 else "u32" if value < 1 << 32 else "u64"
    if isinstance(value, float):
        return "f32"
    raise TypeError(f"no GGUF type for {value!r}")


def _encode_value(value: Value) -> bytes:
    kind = value.type if isinstance(value, Typed) else ""
    plain = value.value if isinstance(value, Typed) else value
    if isinstance(plain, str):
        return struct.pack("<I", _STRING) + _string(plain)
    if not isinstance(plain, Sequence):
        id_, form = _SCALARS[kind or _default_type(plain)]
        return struct.pack("<I", id_) + struct.pack(form, plain)
    head = struct.pack("<I", _ARRAY)
    if plain and isinstance(plain[0], str):
        body = b"".join(_string(str(text)) for text in plain)
        return head + struct.pack("<IQ", _STRING, len(plain)) + body
    id_, form = _SCALARS[kind or _default_type(plain[0] if plain else 0)]
    numbers = struct.pack(f"<{len(plain)}{form[1]}", *plain)
    return head + struct.pack("<IQ", id_, len(plain)) + numbers


def encode_header(metadata: Mapping[str, Value], tensors: Sequence[FileTensor]) -> bytes:
    """Everything before the data section, padded to the alignment."""
    out = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out += _string(key)
        out += _encode_value(value)
    offset_bytes = 0
    for t in tensors:
        n_dims = len(t.shape)
        out += _string(t.name)
        out += struct.pack(f"<I{n_dims}QIQ", n_dims, *t.shape, t.type.id, offset_bytes)
        offset_bytes += t.n_bytes + _pad(t.n_bytes)
    return bytes(out) + bytes(_pad(len(out)))


def _write_part(
    file: BinaryIO, metadata: Mapping[str, Value], tensors: Sequence[FileTensor], fill: Fill | None
) -> None:
    header = encode_header(metadata, tensors)
    file.write(header)
    if fill is None:
        data_bytes = sum(t.n_bytes + _pad(t.n_bytes) for t in tensors)
        file.truncate(len(header) + data_bytes)
        return
    for t in tensors:
        written = 0
        for chunk in fill(t):
            file.write(chunk)
            written += len(chunk)
        if written != t.n_bytes:
            raise ValueError(f"{t.name}: filled {written} of {t.n_bytes} bytes")
        file.write(bytes(_pad(written)))


def _divide(tensors: Sequence[FileTensor], n_parts: int) -> list[Sequence[FileTensor]]:
    """Contiguous parts of about the same bytes, at least one tensor in each."""
    total = sum(t.n_bytes for t in tensors)
    parts: list[Sequence[FileTensor]] = []
    first = taken = 0
    for i, t in enumerate(tensors):
        taken += t.n_bytes
        n_left = n_parts - len(parts) - 1
        is_full = taken * n_parts >= total * (len(parts) + 1)
        if n_left and (is_full or len(tensors) - i - 1 == n_left):
            parts.append(tensors[first : i + 1])
            first = i + 1
    parts.append(tensors[first:])
    return parts


def part_paths(path: Path, n_parts: int) -> tuple[Path, ...]:
    """The names of a set's parts, as llama.cpp's `llama_split_path` forms them."""
    if n_parts == 1:
        return (path,)
    stem = path.name.removesuffix(".gguf")
    return tuple(
        path.with_name(f"{stem}-{i:05d}-of-{n_parts:05d}.gguf") for i in range(1, n_parts + 1)
    )


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Sequence[FileTensor],
    *,
    fill: Fill | None = None,
    n_parts: int = 1,
) -> Path:
    """Write a file, or a set of parts, whole or not at all; returns the (first) file's path.

    Without `fill` the data section is a hole: the size is right, the disk
    holds the header only. Raises UsageError when there are more parts than
    tensors or the folder is missing.
    """
    if not 1 <= n_parts <= min(_PARTS_MAX, len(tensors)):
        raise UsageError(f"{len(tensors)} tensors cannot be split into {n_parts} parts")
    if not path.parent.is_dir():
        raise UsageError(f"no folder {path.parent}")
    targets = part_paths(path, n_parts)
    if path.is_dir() or any(t.is_dir() for t in targets):
        raise UsageError(f"{path} is a folder; name a file")
    drafts = [t.with_name(f".{t.name}.{os.getpid()}.tmp") for t in targets]
    try:
        for i, part in enumerate(_divide(tensors, n_parts)):
            keys: dict[str, Value] = dict(metadata) if i == 0 else {}
            if n_parts > 1:
                keys["split.no"] = Typed("u16", i)
                keys["split.count"] = Typed("u16", n_parts)
                keys["split.tensors.count"] = Typed("i32", len(tensors))
            with drafts[i].open("wb") as file:
                _write_part(file, keys, part, fill)
        for draft, target in zip(drafts, targets, strict=True):
            draft.replace(target)
    finally:  # also on Ctrl-C: nothing half-written stays
        for draft in drafts:
            draft.unlink(missing_ok=True)
    return targets[0]
