"""Which keys does a file carry, and of which type is each?

llama.cpp refuses a key of another type than it expects (`GKV::get_kv`,
src/llama-model-loader.cpp, b11434), and `offload.gguf` keeps values only. So whoever
writes a file like another one reads the types here. Strings in arrays (vocabularies)
are stepped over; the caller has had the header checked by `offload.source`.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from offload.errors import GGUFError
from offload.header_bytes import MAX_KEPT_BYTES, HeaderBytes
from tuner.synth.container import Typed, Value

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_COUNTS: Final = struct.Struct("<8xQQ")
_KEY_BYTES_MAX: Final = (1 << 16) - 1
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: ("u8", "B"), 1: ("i8", "b"), 2: ("u16", "H"), 3: ("i16", "h"), 4: ("u32", "I"),
    5: ("i32", "i"), 6: ("f32", "f"), 7: ("bool", "?"), 10: ("u64", "Q"), 11: ("i64", "q"),
    12: ("f64", "d"),
}  # fmt: skip


def read_typed_keys(path: str | os.PathLike[str]) -> dict[str, Value]:
    """Every key of one GGUF file as it can be written again, arrays of strings left out.

    Raises GGUFError where the file cannot be read.
    """
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file:

            def read_at(offset: int, n_bytes: int) -> bytes:
                file.seek(offset)
                return file.read(n_bytes)

            reader = HeaderBytes(read_at, os.fstat(file.fileno()).st_size, name)
            _, n_keys = reader.unpack(_COUNTS, "the number of tensors and keys")
            keys: dict[str, Value] = {}
            for i in range(n_keys):
                key = reader.take_string(f"metadata key {i}", _KEY_BYTES_MAX).decode()
                value = _read_value(reader)
                if value is not None:
                    keys[key] = value
            return keys
    except (OSError, UnicodeDecodeError) as error:
        raise GGUFError(f"cannot be read: {error}", path=name) from None


def _read_value(reader: HeaderBytes) -> Value | None:
    (type_id,) = reader.unpack(_U32, "a value's type")
    if type_id == _STRING:
        return reader.take_string("a string", MAX_KEPT_BYTES).decode("utf-8", "replace")
    if type_id != _ARRAY:
        kind, code = _SCALARS[type_id]
        return Typed(kind, reader.unpack(struct.Struct(f"<{code}"), kind)[0])
    (type_id,) = reader.unpack(_U32, "an array's type")
    (length,) = reader.unpack(_U64, "an array's length")
    if type_id == _STRING:
        reader.skip_strings(length, "an array of strings")
        return None
    kind, code = _SCALARS[type_id]
    layout = struct.Struct(f"<{length}{code}")
    reader.keep(layout.size)
    return Typed(kind, reader.unpack(layout, "an array"))
