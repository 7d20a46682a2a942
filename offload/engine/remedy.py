"""What should the user try, given how llama.cpp ended and what it said last?

Pure. "" where nothing better is known than llama.cpp's own words.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from typing import Final

from offload.engine.log import parse_out_of_memory

_LESS_MEMORY: Final = "plan with a larger --margin, a smaller -c or -ub, or another KV type"
_BY_WORDS: Final = (
    # ggml-rpc.cpp and its transport, b11434
    (
        r"Remote RPC server crashed|recv failed|send failed",
        "an RPC server was lost: it ran out of memory or was stopped; see what it said last,"
        " start it again, and if it was memory, " + _LESS_MEMORY,
    ),
    (
        r"Failed to connect|has no devices|Cannot resolve host",
        "start the RPC server, and check its address",
    ),
    (r"no RPC backend", ""),
    (r"RPC server version mismatch", "build the RPC server and this program from one llama.cpp"),
    # llama-model-loader.cpp, gguf.cpp
    (
        r"not within the file bounds|data is not within|failed to read|corrupted or incomplete"
        r"|unexpectedly reached end of file",
        "the file is incomplete: download or copy it again",
    ),
    (r"unknown model architecture|unknown.*pre-tokenizer", "a newer {program} may know it"),
    # tools/server/server-http.cpp
    (
        r"couldn't bind HTTP server socket",
        "another program took the port meanwhile: end it, or choose another with --port",
    ),
    (r"llama-cpp-python has no", "run on cards that are not here with --virtual, on RPC servers"
     " with --rpc, or install llama-cpp-python with the backend of these cards, such as"
     " CMAKE_ARGS=-DGGML_CUDA=ON"),
    (r"std::bad_alloc|Cannot allocate memory", "the host is short of memory: " + _LESS_MEMORY),
)  # fmt: skip


def remedy(exit_code: int | None, lines: Iterable[str], program: str = "llama-cpp-python") -> str:
    """What to try, in half a sentence, where it was `program` that ended."""
    lines = list(lines)
    if failures := [f for line in lines if (f := parse_out_of_memory(line))]:
        where = next((f.buffer_type for f in failures if f.buffer_type), "a device")
        return f"{where} has too little memory: {_LESS_MEMORY}"
    for pattern, advice in _BY_WORDS:
        if any(re.search(pattern, line) for line in lines):
            return advice.replace("{program}", program)
    if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return (
            "nothing in llama.cpp does that: the kernel may have killed it because the host ran"
            " out of memory (see dmesg); " + _LESS_MEMORY
        )
    if exit_code in (-signal.SIGILL, 128 + signal.SIGILL):
        return f"{program} was compiled for another processor: install it anew here"
    if exit_code in (-signal.SIGBUS, 128 + signal.SIGBUS):
        return "the model file shrank or its disk failed while it was mapped: check the file"
    return ""
