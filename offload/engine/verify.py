"""Does llama.cpp agree with the plan, device by device and tensor by tensor?

The plan's cards are played by loopback RPC devices in the same order; the dry
run gets exactly the plan's settings. Where planned cards take over host
operations (CUDA and its like), the virtual ones are told to do so too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from offload.emit import make_launch
from offload.engine.binaries import find_binary, library_folder
from offload.engine.dry_run import BINARY, IN_PROCESS, dry_run, nearest_for_fit_params
from offload.engine.library_build import library_build
from offload.engine.load_options import LoadOptions
from offload.engine.report import LoadReport
from offload.engine.targets import options_of, played_names
from offload.errors import LlamaCppError
from offload.memory import MemoryBytes
from offload.plan import Plan
from offload.split import HOST
from offload.verification import DeviceCheck, Verification

_FIT_PARAMS_NOTE: Final = (
    f"{BINARY} prints whole MiB, leaves repacked weights out of the host's, counts the outputs of"
    " a whole batch, and cannot show what cards stage of host experts; install llama-cpp-python"
    " for exact numbers"
)


def load_options(plan: Plan) -> LoadOptions:
    """The plan as settings of a dry run, its cards renamed to RPC0, RPC1 and on."""
    # without weights there is nothing to map
    return replace(options_of(make_launch(plan), played_names(plan), 1), load_mode="none")


def verify_plan(
    plan: Plan,
    *,
    endpoints: Sequence[str] = (),
    library_folder: Path | None = None,
    fit_params: Path | None = None,
) -> Verification:
    """Ask llama.cpp about `plan` on virtual cards (or the RPC servers at `endpoints`).

    `library_folder` holds the libllama of another build than llama-cpp-python's own;
    `fit_params` is a llama-fit-params to ask instead, which is less exact.
    Raises LlamaCppError when llama.cpp is not there or fails.
    """
    like_cuda = any(device.backend.offloads_ops for device in plan.devices)
    by_program = fit_params is not None
    options = load_options(plan)
    report = dry_run(
        nearest_for_fit_params(options) if by_program else options,
        n_cards=0 if endpoints else len(plan.devices),
        endpoints=endpoints,
        op_offload_like_cuda=like_cuda and not by_program,
        backend=BINARY if by_program else IN_PROCESS,
        fit_params=fit_params,
        library_folder=library_folder,
    )
    return check_report(plan, report)


def check_report(plan: Plan, report: LoadReport) -> Verification:
    """Lay llama.cpp's report beside the plan."""
    names = {device.name: d for d, device in enumerate(report.devices)}
    actual_owners = [names.get(name, HOST) for name in report.layers]
    wrong_owners = [
        il
        for il, (planned, actual) in enumerate(zip(plan.split.owners, actual_owners, strict=True))
        if planned != actual
    ]
    host = MemoryBytes(
        model_bytes=report.host.model_bytes + sum(e.model_bytes for e in report.extra),
        context_bytes=report.host.context_bytes,
        compute_bytes=report.host.compute_bytes,
    )
    return Verification(
        devices=tuple(
            DeviceCheck(
                name=device.name,
                planned=planned,
                actual=actual,
                free_bytes=device.memory_free_bytes,
                margin_bytes=margin,
            )
            for device, margin, planned, actual in zip(
                plan.devices,
                plan.margins_bytes,
                plan.memory.devices,
                _numbers(report),
                strict=True,
            )
        ),
        host=DeviceCheck(
            name="CPU", planned=plan.memory.host, actual=host, free_bytes=plan.host_free_bytes
        ),
        layers=report.layers,
        wrong_owners=tuple(wrong_owners),
        wrong_tensors=_wrong_tensors(plan, report),
        is_exact=report.is_exact,
        source=IN_PROCESS if report.is_exact else BINARY,
        notes=() if report.is_exact else (_FIT_PARAMS_NOTE,),
    )


def _numbers(report: LoadReport) -> tuple[MemoryBytes, ...]:
    return tuple(
        MemoryBytes(
            model_bytes=device.model_bytes,
            context_bytes=device.context_bytes,
            compute_bytes=device.compute_bytes,
        )
        for device in report.devices
    )


def _wrong_tensors(plan: Plan, report: LoadReport) -> tuple[str, ...]:
    """Tensors llama.cpp's rules send elsewhere than the plan's, both ways."""
    buffers = {device.buffer_type: d for d, device in enumerate(report.devices)}
    actual = {name: buffers.get(buft, HOST) for name, buft in report.overridden.items()}
    loaded = {tensor.name for tensor in plan.model.tensors if tensor.loaded}
    planned = {name: d for name, d in plan.placement.placed.items() if name in loaded}
    return tuple(sorted({name for name, _ in actual.items() ^ planned.items()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Which llama.cpp is asked: llama-cpp-python's, the one in a folder, or llama-fit-params."""

    library_folder: Path | None = None
    fit_params: Path | None = None
    build: int | None = None
    """As in `b11434`, where it is known."""

    def __call__(self, plan: Plan) -> Verification:
        """Ask about `plan` on virtual cards."""
        found = verify_plan(plan, library_folder=self.library_folder, fit_params=self.fit_params)
        return replace(found, build=self.build)


def find_judge(program: Path | None = None) -> Judge:
    """The llama.cpp that `program` (a llama-server or its folder) belongs to, else the one here.

    The name `llama-cpp-python` stands for the one embedded in that. In process where that
    is possible, since only that is exact. Without `program` the llama-server on PATH counts,
    since it is what will run. Raises LlamaCppError where there is nothing to ask.
    """
    in_process = find_spec("llama_cpp") is not None
    if program is not None and str(program) == IN_PROCESS:
        if not in_process:
            raise LlamaCppError(
                f"{IN_PROCESS} is not installed here; CMAKE_ARGS=-DGGML_RPC=ON pip"
                f" install {IN_PROCESS}"
            )
        return Judge(build=library_build(None))
    server = find_binary("llama-server", program)
    folder = library_folder(server) if server is not None else None
    if in_process and (program is None or folder is not None):
        return Judge(library_folder=folder, build=library_build(folder))
    fit_params = find_binary(BINARY, program)
    if fit_params is not None:
        return Judge(fit_params=fit_params, build=library_build(fit_params.parent))
    where = "here" if program is None else f"beside {program}"
    raise LlamaCppError(
        f"there is neither {IN_PROCESS} nor {BINARY} {where} to ask;"
        " CMAKE_ARGS=-DGGML_RPC=ON pip install llama-cpp-python, or give --llama-server PATH"
    )
