"""How does a child serve its CPU as a GPU, on a loopback port nobody else can take?

`ggml_backend_rpc_start_server` (ggml/src/ggml-rpc/ggml-rpc.cpp, b11434) does the
serving; the protocol has no authentication, so it binds to 127.0.0.1 only.
Imported by children only.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
import time
from pathlib import Path

from offload.engine.library import Library
from offload.engine.ports import Port, is_listening
from offload.errors import LlamaCppError

_POLL_S = 0.001
_READY_TIMEOUT_S = 20.0


def start_card(library: Library, port: Port) -> threading.Thread:
    """Serve the CPU device at `port` from a thread; returns once it answers."""
    serve = library.rpc_function(
        "ggml_backend_rpc_start_server",
        None,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    )
    devices = (ctypes.c_void_p * 1)(library.cpu)
    thread = threading.Thread(
        target=serve, args=(port.endpoint.encode(), None, 1, 1, devices), daemon=True
    )
    thread.start()
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while not is_listening(port.number):
        if not thread.is_alive() or time.monotonic() > deadline_s:
            raise LlamaCppError(f"no RPC server could be started at {port.endpoint}")
        time.sleep(_POLL_S)
    return thread


def limit_memory(limit_bytes: int) -> None:
    """Let this process allocate that much more and no more, as a card of this size would.

    Buffers that are too large are then refused as on a real card, and scratch memory ends
    the process. Counts private writable memory (`RLIMIT_DATA`), on Linux only.
    """
    if sys.platform != "linux":
        raise LlamaCppError("the memory of a virtual card can be limited on Linux only")
    import resource

    used = re.search(r"^VmData:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if used is None:
        raise LlamaCppError("this Linux does not say how much memory a process uses")
    limit_bytes += int(used[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def add_card(library: Library, endpoint: str) -> list[int]:
    """The devices behind an RPC server, in its order; an unreachable one ends the process."""
    add = library.rpc_function("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    reg = add(endpoint.encode())
    if not reg:
        raise LlamaCppError(f"the RPC server at {endpoint} has no devices")
    ggml = library.ggml
    return [
        ggml.ggml_backend_reg_dev_get(reg, i) for i in range(ggml.ggml_backend_reg_dev_count(reg))
    ]
