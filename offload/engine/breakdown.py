"""What does this llama.cpp context hold, to the byte, and in which buffers?

`llama_get_memory_breakdown` and `llama_internal_get_tensor_map` (src/llama-ext.h,
src/llama-model.h, b11434) are exported but return C++ values: a `std::map` by
value, a reference to a `std::vector`. Both are read here without a compiler:
the map through the hidden result pointer of the System V ABI and libstdc++'s own
tree walk, the vector through its three pointers. Everything read is checked
against what the C API says; what does not hold up is refused, not guessed.
Imported by children only.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable
from typing import Any, Final

from offload.engine.library import Library, is_x86_64_linux
from offload.errors import LlamaCppError

_BREAKDOWN: Final = "_Z26llama_get_memory_breakdownPK13llama_context"
_NEXT_NODE: Final = "_ZSt18_Rb_tree_incrementPKSt18_Rb_tree_node_base"
_TENSOR_MAP: Final = "_Z29llama_internal_get_tensor_mapB5cxx11PK11llama_model"
_HEADER: Final = struct.Struct("=8x5Q")
"""std::map: comparator, then the header node (colour, parent, first, last) and the count."""
_NODE_BYTES: Final = 32
"""`_Rb_tree_node_base`: colour, parent, left, right; the key follows."""
_NODE_VALUE: Final = struct.Struct("=4Q")
"""Buffer type, then model, context and compute bytes."""
_TENSOR_ENTRY: Final = struct.Struct("=2Q16xQ")
"""std::pair<std::string, ggml_tensor *>: text, length, in-place buffer, tensor."""
_ALIGNMENT_BYTES: Final = 64
"""At least `TENSOR_ALIGNMENT` (ggml/src/ggml-impl.h, b11434)."""
_TENSOR_BUFFER_OFFSET: Final = 8
"""`ggml_tensor::buffer` follows `type`."""


def read_breakdown(
    library: Library, context: int, devices: Iterable[int]
) -> list[dict[str, Any]] | None:
    """One entry per buffer type: name, device, is_host, model, context and compute bytes.

    None where this platform or build does not allow the call. Raises LlamaCppError
    if what comes back names a buffer type that neither the CPU nor `devices` have.
    """
    function, step = library.symbol(_BREAKDOWN), library.symbol(_NEXT_NODE)
    if function is None or step is None or not is_x86_64_linux():
        return None
    function.restype, function.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p)
    step.restype, step.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    known = _known_buffer_types(library, devices)
    # never destroyed: its nodes belong to a child process that is about to end
    result = ctypes.create_string_buffer(256)
    address = ctypes.addressof(result)
    if function(address, context) != address:
        raise LlamaCppError("llama_get_memory_breakdown does not return its result by address")
    _, _, node, _, n_nodes = _HEADER.unpack_from(result)
    end = address + 8
    entries: list[dict[str, Any]] = []
    while node != end and len(entries) <= n_nodes:
        buffer_type, *n_bytes = _NODE_VALUE.unpack(_read(node + _NODE_BYTES, _NODE_VALUE.size))
        if buffer_type not in known:
            raise LlamaCppError("llama_get_memory_breakdown names an unknown buffer type")
        entries.append(_entry(library, buffer_type, n_bytes))
        node = step(node)
    if len(entries) != n_nodes:
        raise LlamaCppError("llama_get_memory_breakdown returns a map of another layout")
    return entries


def read_tensors(library: Library, model: int) -> list[list[Any]]:
    """[name, buffer type, bytes] of every tensor llama.cpp created; empty where it hides them."""
    function = library.symbol(_TENSOR_MAP)
    if function is None:
        return []
    function.restype, function.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    first, last, _ = struct.unpack("=3Q", _read(function(model), 24))
    n_bytes = last - first
    if not 0 < n_bytes < 1 << 26 or n_bytes % _TENSOR_ENTRY.size:
        return []
    ggml = library.ggml
    names: dict[int, str] = {}
    tensors = []
    for text, length, tensor in _TENSOR_ENTRY.iter_unpack(_read(first, n_bytes)):
        name = _read(text, length) if length < 256 else b""
        if name != ggml.ggml_get_name(tensor):
            return []
        buffer = int.from_bytes(_read(tensor + _TENSOR_BUFFER_OFFSET, 8), "little")
        if not buffer:
            continue
        if buffer not in names:
            names[buffer] = library.buffer_type_name(ggml.ggml_backend_buffer_get_type(buffer))
        tensors.append([name.decode(), names[buffer], ggml.ggml_nbytes(tensor)])
    return tensors


def _entry(library: Library, buffer_type: int, n_bytes: list[int]) -> dict[str, Any]:
    device = library.ggml.ggml_backend_buft_get_device(buffer_type)
    return {
        "buffer_type": library.buffer_type_name(buffer_type),
        "device": library.device_name(device) if device else "",
        "is_host": bool(library.ggml.ggml_backend_buft_is_host(buffer_type)),
        "model_bytes": n_bytes[0],
        "context_bytes": n_bytes[1],
        "compute_bytes": n_bytes[2],
    }


def _known_buffer_types(library: Library, devices: Iterable[int]) -> set[int]:
    ggml = library.ggml
    everything = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    known = {ggml.ggml_backend_cpu_buffer_type(), _mapped_buffer_type(library)}
    for device in (*everything, *devices):
        known.add(ggml.ggml_backend_dev_buffer_type(device))
        known.add(ggml.ggml_backend_dev_host_buffer_type(device))
        known |= _extra_buffer_types(library, device)
    return known - {None}


def _mapped_buffer_type(library: Library) -> int:
    """The type of host weights that are mapped from the file; only its buffers lead to it."""
    ggml = library.ggml
    memory = ctypes.create_string_buffer(2 * _ALIGNMENT_BYTES)
    address = -(-ctypes.addressof(memory) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    buffer = ggml.ggml_backend_cpu_buffer_from_ptr(address, _ALIGNMENT_BYTES)
    buffer_type = int(ggml.ggml_backend_buffer_get_type(buffer))
    ggml.ggml_backend_buffer_free(buffer)
    return buffer_type


def _extra_buffer_types(library: Library, device: int) -> set[int]:
    """Repacked layouts and the like; `ggml_backend_dev_get_extra_bufts` of ggml-backend.h."""
    reg = library.ggml.ggml_backend_dev_backend_reg(device)
    address = library.ggml.ggml_backend_reg_get_proc_address(
        reg, b"ggml_backend_dev_get_extra_bufts"
    )
    if not address:
        return set()
    prototype = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
    listed = prototype(address)(device)
    found: set[int] = set()
    while listed and (buffer_type := listed[len(found)]):
        found.add(buffer_type)
    return found


def _read(address: int, n_bytes: int) -> bytes:
    return ctypes.string_at(address, n_bytes)
