"""What would llama.cpp allocate where, asked without loading a weight?

Two ways to ask. In a child with llama-cpp-python: `no_alloc` as `--fit` uses it
(`common_get_device_memory_data_impl`, common/fit.cpp, b11434), exact bytes, any
option. With a user's own `llama-fit-params -fitp on`: MiB rounded down, and two
options it cannot express (see `nearest_for_fit_params`). Either way the cards may
be played by loopback RPC devices; these have async copies and events, so
pipeline parallelism shows as on real cards, but they are padded like the CPU
(32 bytes) and take over host operations only with `op_offload_like_cuda`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

from offload.engine.binaries import find_binary
from offload.engine.fit_params import BINARY, ask_fit_params, nearest_for_fit_params
from offload.engine.load_options import LoadOptions
from offload.engine.process import run_job
from offload.engine.report import LoadReport, report_from_reply
from offload.engine.virtual_cards import virtual_cards
from offload.errors import LlamaCppError, UsageError

__all__ = ["BINARY", "IN_PROCESS", "dry_run", "nearest_for_fit_params"]

IN_PROCESS = "llama-cpp-python"


def dry_run(
    options: LoadOptions,
    *,
    n_cards: int = 0,
    endpoints: Sequence[str] = (),
    free_bytes: Sequence[int] = (),
    op_offload_like_cuda: bool = False,
    backend: str = "auto",
    fit_params: Path | None = None,
    library_folder: Path | None = None,
    timeout_s: float = 60.0,
) -> LoadReport:
    """Ask llama.cpp on `n_cards` virtual cards, or on the RPC servers at `endpoints`.

    `free_bytes` is what the cards report as free, which matters only without a
    tensor split. `op_offload_like_cuda` makes the cards take over host operations
    as real ones do, so that card 0 shows its staging copies; host experts then stay
    in plain buffers, as they would in pinned ones, unless `no_host`. `library_folder`
    holds the libllama to ask instead of llama-cpp-python's own; builds differ, most in
    what they stage. Raises
    LlamaCppError with llama.cpp's last words when it fails, UsageError for what
    the chosen backend cannot be asked.
    """
    backend = _chosen(backend, fit_params)
    if backend == BINARY:
        if op_offload_like_cuda:
            raise UsageError(f"op_offload_like_cuda needs {IN_PROCESS}")
        with ExitStack() as stack:
            if not endpoints and n_cards:
                cards = stack.enter_context(virtual_cards(n_cards, free_bytes=free_bytes))
                endpoints = [card.endpoint for card in cards]
            return ask_fit_params(options, endpoints, fit_params, timeout_s)
    if op_offload_like_cuda and not options.no_host:
        options = replace(options, use_extra_bufts=False)
    request = {
        "options": asdict(options),
        "n_cards": n_cards,
        "endpoints": list(endpoints),
        "free_bytes": list(free_bytes),
        "op_offload_like_cuda": op_offload_like_cuda,
    }
    reply, ended = run_job("dry-run", request, timeout_s=timeout_s, library_folder=library_folder)
    if reply["buffers"] is None:
        raise LlamaCppError(
            "this platform hides llama_get_memory_breakdown; give a llama-fit-params program"
        )
    return report_from_reply(reply, ended.log)


def _chosen(backend: str, fit_params: Path | None) -> str:
    if backend not in ("auto", IN_PROCESS, BINARY):
        raise UsageError(f"backend {backend!r}; one of auto, {IN_PROCESS}, {BINARY}")
    if backend != "auto":
        return backend
    if fit_params is None and find_spec("llama_cpp") is not None:
        return IN_PROCESS
    if find_binary(BINARY, fit_params) is not None:
        return BINARY
    raise LlamaCppError(
        f"neither {IN_PROCESS} nor {BINARY} is here;"
        " CMAKE_ARGS=-DGGML_RPC=ON pip install llama-cpp-python, or name the program"
    )
