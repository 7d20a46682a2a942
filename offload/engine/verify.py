"""Does llama.cpp agree with the plan, device by device and tensor by tensor?

The plan's cards are played by loopback RPC devices in the same order; the dry
run gets exactly the plan's settings. Where planned cards take over host
operations (CUDA and its like), the virtual ones are told to do so too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offload.emit import make_launch
from offload.engine.dry_run import dry_run
from offload.engine.load_options import LoadOptions
from offload.engine.report import LoadReport
from offload.memory import MemoryBytes
from offload.plan import Plan, user_override_rules
from offload.split import HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCheck:
    """One device (or the host): what was planned beside what llama.cpp says."""

    name: str
    planned: MemoryBytes
    actual: MemoryBytes
    free_bytes: int | None
    """Free memory, the margin included; None where it was not known."""

    margin_bytes: int = 0

    @property
    def fits(self) -> bool:
        """True when llama.cpp's own total is within what is free."""
        return self.free_bytes is None or self.actual.total_bytes <= self.free_bytes

    @property
    def over_budget_bytes(self) -> int:
        """Bytes by which llama.cpp's own total eats into the margin; 0 where it does not."""
        if self.free_bytes is None:
            return 0
        return max(self.actual.total_bytes - self.free_bytes + self.margin_bytes, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The comparison; `wrong_owners` are layers and `wrong_tensors` names that differ."""

    devices: tuple[DeviceCheck, ...]
    host: DeviceCheck
    wrong_owners: tuple[int, ...]
    wrong_tensors: tuple[str, ...]
    report: LoadReport

    @property
    def places_equal(self) -> bool:
        """Every layer and every tensor is where the plan put it."""
        return not self.wrong_owners and not self.wrong_tensors

    @property
    def fits(self) -> bool:
        """llama.cpp's own numbers are within what every card and the host have free."""
        return all(check.fits for check in (*self.devices, self.host))


def load_options(plan: Plan) -> LoadOptions:
    """The plan as settings of a dry or real run, its cards renamed to RPC0, RPC1 and on."""
    launch = make_launch(plan)
    virtual = {device.buffer_type: f"RPC{d}" for d, device in enumerate(plan.devices)}
    virtual |= {device.name: f"RPC{d}" for d, device in enumerate(plan.devices)}
    rules = user_override_rules(plan.options) + plan.rules
    return LoadOptions(
        path=launch.model_path,
        n_gpu_layers=launch.n_gpu_layers,
        tensor_split=launch.tensor_split,
        overrides=tuple((r.pattern, virtual.get(r.buffer_type, r.buffer_type)) for r in rules),
        n_ctx=plan.context.n_ctx,
        n_batch=plan.context.n_batch,
        n_ubatch=plan.context.n_ubatch,
        n_seq_max=plan.context.n_parallel,
        kv_unified=plan.context.kv_unified,
        type_k=launch.type_k,
        type_v=launch.type_v,
        flash_attn=launch.flash_attn,
        swa_full=launch.swa_full,
        offload_kqv=launch.offload_kqv,
        op_offload=launch.op_offload,
        no_host=launch.no_host,
    )


def verify_plan(
    plan: Plan, *, endpoints: Sequence[str] = (), library_folder: Path | None = None
) -> Verification:
    """Ask llama.cpp about `plan` on virtual cards (or the RPC servers at `endpoints`).

    `library_folder` holds the libllama of another build than llama-cpp-python's own.
    Raises LlamaCppError when llama.cpp is not there or fails.
    """
    like_cuda = any(device.backend.offloads_ops for device in plan.devices)
    report = dry_run(
        load_options(plan),
        n_cards=0 if endpoints else len(plan.devices),
        endpoints=endpoints,
        op_offload_like_cuda=like_cuda,
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
        wrong_owners=tuple(wrong_owners),
        wrong_tensors=_wrong_tensors(plan, report),
        report=report,
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
    return tuple(sorted(name for name, _ in actual.items() ^ planned.items()))
