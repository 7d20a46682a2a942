"""GGUF bytes for tests, from the specification alone: shares nothing with the reader."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

CODES = {
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"),
    "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"),
    "f64": (12, "d"),
}  # fmt: skip
STRING, ARRAY = 8, 9
F32, F16, Q4_0, Q4_K = 0, 1, 2, 12


class Tensor(NamedTuple):
    """A tensor to declare; `n_bytes` is what its data takes, `offset` overrides its place."""

    name: str | bytes
    shape: Sequence[int] = (32,)
    type_id: int = F32
    n_bytes: int = 128
    offset: int | None = None


def string(text: str | bytes) -> bytes:
    """A length and the text's bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, type_name: str, value: Any) -> bytes:
    """One key with a scalar or (`string`) text value."""
    if type_name == "string":
        return string(name) + struct.pack("<I", STRING) + string(value)
    id_, code = CODES[type_name]
    return string(name) + struct.pack(f"<I{code}", id_, value)


def array(name: str | bytes, type_name: str, values: Sequence[Any]) -> bytes:
    """One key with an array value."""
    if type_name == "string":
        head = struct.pack("<IIQ", ARRAY, STRING, len(values))
        return string(name) + head + b"".join(map(string, values))
    id_, code = CODES[type_name]
    head = struct.pack("<IIQ", ARRAY, id_, len(values))
    return string(name) + head + struct.pack(f"<{len(values)}{code}", *values)


def header(
    keys: Iterable[bytes] = (),
    tensors: Iterable[Tensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    n_keys: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    """Everything before the tensor data, not padded."""
    keys, tensors = list(keys), list(tensors)
    parts = [
        b"GGUF",
        struct.pack(
            "<IQQ",
            version,
            len(tensors) if n_tensors is None else n_tensors,
            len(keys) if n_keys is None else n_keys,
        ),
        *keys,
    ]
    offset = 0
    for tensor in tensors:
        here = offset if tensor.offset is None else tensor.offset
        n_dims = len(tensor.shape)
        parts.append(string(tensor.name))
        parts.append(struct.pack(f"<I{n_dims}QIQ", n_dims, *tensor.shape, tensor.type_id, here))
        offset += padded(tensor.n_bytes, alignment)
    return b"".join(parts)


def padded(n_bytes: int, alignment: int = 32) -> int:
    """`n_bytes` rounded up."""
    return (n_bytes + alignment - 1) // alignment * alignment


def gguf(
    keys: Iterable[bytes] = (), tensors: Iterable[Tensor] = (), *, alignment: int = 32, **rest: Any
) -> bytes:
    """A whole file, its tensor data zeros."""
    tensors = list(tensors)
    head = header(keys, tensors, alignment=alignment, **rest)
    if not tensors:
        return head
    data_bytes = sum(padded(tensor.n_bytes, alignment) for tensor in tensors)
    return head.ljust(padded(len(head), alignment) + data_bytes, b"\0")


def small_model(**rest: Any) -> bytes:
    """A file with every kind of thing a header can hold."""
    keys = [
        key("general.architecture", "string", "llama"),
        *(key(f"test.{name}", name, 1) for name in CODES),
        array("test.floats", "f32", [0.5, 1.5]),
        array("test.flags", "bool", [True, False, True]),
        array("tokenizer.ggml.tokens", "string", ["<s>", "", "a long token", "é"]),
    ]
    tensors = [
        Tensor("token_embd.weight", (32, 4), F32, 512),
        Tensor("blk.0.ffn_up.weight", (64, 2), Q4_0, 72),
        Tensor("output_norm.weight", (3,), F16, 6),
    ]
    return gguf(keys, tensors, **rest)
