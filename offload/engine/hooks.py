"""How is a loopback RPC device made to answer like the card it plays?

A `ggml_backend_device` (ggml/src/ggml-backend-impl.h, b11434) begins with its
table of functions, each device with a copy of its own. Two entries are replaced:
`get_memory`, so that a card has the size asked for, and `offload_op`, so that
batches of 32 and more are taken over from the host as CUDA, ROCm, Vulkan, SYCL
and Metal do (`ggml_backend_cuda_device_offload_op`), which RPC never does.
The table is recognised before it is touched and asked again afterwards; a build
with another layout is refused. tests/llama/test_vulkan.py lays the outcome beside a
real run on cards that do offload. Imported by children only.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from offload.engine.library import Library
from offload.errors import LlamaCppError

_N_FUNCTIONS: Final = 15
_GET_NAME, _GET_MEMORY, _OFFLOAD_OP = 0, 2, 11
_REQUIRED: Final = (0, 1, 2, 3, 4, 5, 6, 9, 10)
"""Entries ggml calls without asking whether they are there."""
_POINTER_BYTES: Final = ctypes.sizeof(ctypes.c_void_p)

_NE_OFFSET: Final = 16
_OP_OFFSET: Final = 80
"""In `ggml_tensor`: type, buffer, ne[4], nb[4], op."""

_OFFLOAD_MIN_BATCH: Final = 32
"""`GGML_OP_OFFLOAD_MIN_BATCH`'s default in every backend that reads it."""

_hooks: dict[int, Any] = {}
"""Our own functions by address, kept alive for as long as C code may call them."""


def play_memory(library: Library, device: int, free_bytes: int) -> None:
    """Let `device` report this much memory, free and in total."""
    size_p = ctypes.POINTER(ctypes.c_size_t)

    def answer(_device: int, free: Any, total: Any) -> None:
        free[0] = total[0] = free_bytes

    hook = ctypes.CFUNCTYPE(None, ctypes.c_void_p, size_p, size_p)(answer)
    _replace(library, device, _GET_MEMORY, hook)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    library.ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    if free.value != free_bytes:
        raise LlamaCppError("a device's memory cannot be played in this build of llama.cpp")


def play_op_offload(library: Library, device: int) -> None:
    """Let `device` take host operations over as a real card does."""
    ggml = library.ggml
    op_ids = _op_ids(library)
    column_ops = {op_ids["MUL_MAT"]}
    token_ops = {op_ids[name] for name in ("MUL_MAT_ID", "ROPE", "ROPE_BACK")}
    never = op_ids["GET_ROWS"]
    read_int, read_long = ctypes.c_int.from_address, ctypes.c_int64.from_address

    def answer(_device: int, tensor: int) -> bool:
        op = read_int(tensor + _OP_OFFSET).value
        if op == never:
            return False
        if op in token_ops:
            n_batch = read_long(tensor + _NE_OFFSET + 16).value
        elif op in column_ops:
            n_batch = read_long(tensor + _NE_OFFSET + 8).value
        else:
            n_batch = ggml.ggml_nrows(tensor)
        return bool(n_batch >= _OFFLOAD_MIN_BATCH)

    hook = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)(answer)
    _replace(library, device, _OFFLOAD_OP, hook)
    asked = [_ask(library, device, op_ids[op], ne) for op, ne in _QUESTIONS]
    if asked != [True, False, True, False, False]:
        raise LlamaCppError("op offload cannot be played in this build of llama.cpp")


_QUESTIONS: Final = (
    ("MUL_MAT_ID", (64, 4, 32, 1)),
    ("MUL_MAT_ID", (64, 99, 31, 1)),
    ("MUL_MAT", (64, 32, 1, 1)),
    ("MUL_MAT", (64, 31, 99, 1)),
    ("GET_ROWS", (64, 512, 1, 1)),
)


def _ask(library: Library, device: int, op: int, ne: tuple[int, ...]) -> bool:
    """Ask through ggml whether it would offload an operation, after checking our layout."""
    tensor = ctypes.create_string_buffer(1024)
    address = ctypes.addressof(tensor)
    for i, n in enumerate(ne):
        ctypes.c_int64.from_address(address + _NE_OFFSET + 8 * i).value = n
    ctypes.c_int.from_address(address + _OP_OFFSET).value = op
    rows_and_name = library.ggml.ggml_nrows(address), library.ggml.ggml_op_desc(address)
    if rows_and_name != (ne[1] * ne[2] * ne[3], library.ggml.ggml_op_name(op)):
        raise LlamaCppError("ggml_tensor has another layout in this build of llama.cpp")
    return bool(library.ggml.ggml_backend_dev_offload_op(device, address))


def _op_ids(library: Library) -> dict[str, int]:
    # ggml_op_name reads a table without checking bounds; all we need stand early in it
    return {library.ggml.ggml_op_name(op).decode(): op for op in range(64)}


def _replace(library: Library, device: int, index: int, hook: Any) -> None:
    table = (ctypes.c_void_p * (_N_FUNCTIONS + 1)).from_address(device)
    homes = {_home_of(table[i]) for i in _REQUIRED if table[i] not in _hooks}
    reg = library.ggml.ggml_backend_dev_backend_reg(device)
    if len(homes) != 1 or homes == {None} or table[_N_FUNCTIONS] != reg:
        raise LlamaCppError("ggml_backend_device has another layout in this build of llama.cpp")
    get_name = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(table[_GET_NAME] or 0)
    if get_name(device).decode() != library.device_name(device):
        raise LlamaCppError("ggml_backend_device has another layout in this build of llama.cpp")
    if index == _OFFLOAD_OP and table[index]:
        raise LlamaCppError(f"{library.device_name(device)} decides about op offload itself")
    address = ctypes.cast(hook, ctypes.c_void_p).value
    assert address is not None
    _hooks[address] = hook
    table[index] = address


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("dli_fname", ctypes.c_char_p),
        ("dli_fbase", ctypes.c_void_p),
        ("dli_sname", ctypes.c_char_p),
        ("dli_saddr", ctypes.c_void_p),
    )


def _home_of(address: int | None) -> int | None:
    """Base address of the shared object a function lives in, or None."""
    info = _DlInfo()
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(_DlInfo))
    if not address or not dladdr(address, ctypes.byref(info)):
        return None
    base: int | None = info.dli_fbase
    return base
