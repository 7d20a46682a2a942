"""A server ran out of memory: on which device, how much was there, and which plan may fit?

Nobody tells how much a device really holds, but a failed allocation bounds it: less
than what the device held already and what was asked for. llama.cpp's log has both,
and what was free when it started. The request is planned again within that bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from offload.device import Device
from offload.engine.log import AllocationFailure, LoadLog, parse_log
from offload.memory import MemoryBytes
from offload.plan import Plan, make_plan
from offload.render.request_json import Request
from offload.render.text import ranges
from offload.split import HOST
from offload.units import GIB, MIB, format_gib

_STEPS: Final = (16, 4, 2)
"""Of the bound, a sixteenth is given up at the first try, then a quarter, then half."""
_FREE: Final = re.compile(r"using device (\S+) .* - (\d+) MiB free")
_CURRENT_DEVICE: Final = re.compile(r"current device: (\d+), in function")
_CUDA_SHORT: Final = re.compile(r"error: out of memory", re.IGNORECASE)
_CACHE_SHORT: Final = re.compile(r"failed to allocate buffer for (?:kv|rs) cache")
_NUMBERED: Final = ("CUDA", "ROCm", "MUSA")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFailure:
    """Device `device` (HOST: the host) held `held_bytes` and was refused `wanted_bytes`.

    `free_bytes` is what llama.cpp said was free at its start, by device index. `suspects`
    are cards of which any may have been the one, with what each held.
    """

    device: int
    name: str
    held_bytes: int
    wanted_bytes: int
    compute_excess_bytes: int
    free_bytes: Mapping[int, int]
    line: str
    suspects: Mapping[int, int] = field(default_factory=dict)

    @property
    def bound_bytes(self) -> int:
        """The device's memory is less than this."""
        return self.held_bytes + self.wanted_bytes


def find_memory_failure(
    lines: Sequence[str], plan: Plan, *, while_serving: bool = False
) -> MemoryFailure | None:
    """The shortage these lines of a dead server tell of; None where it died of something else.

    `while_serving`: it was loaded whole before, as planned.
    """
    log = parse_log(lines)
    failures = _failures_of(lines, log)
    for failure in reversed(failures):
        device = _device_of(failure.buffer_type, plan)
        if device is not None:
            return _failure(device, failure, failures, log, plan, lines, while_serving)
    return None


def lost_cards(cards: Sequence[int], plan: Plan, lines: Iterable[str]) -> MemoryFailure:
    """The shortage of a card, one of `cards`, whose server broke off with all that was planned."""
    held = {d: plan.memory.devices[d].total_bytes for d in cards}
    return MemoryFailure(
        device=cards[0],
        name=" or ".join(plan.devices[d].name for d in cards),
        held_bytes=held[cards[0]],
        wanted_bytes=0,
        compute_excess_bytes=0,
        free_bytes=_free_bytes(lines, plan),
        line="",
        suspects=held,
    )


def replan(
    plan: Plan, request: Request, failure: MemoryFailure, i_try: int
) -> tuple[Plan, Request]:
    """The request's plan within what was learnt (it may not fit), and the request so corrected."""
    share = _STEPS[min(i_try, len(_STEPS)) - 1]
    bounds = {**failure.suspects, failure.device: failure.bound_bytes}
    bounds = {d: n - n // share - failure.compute_excess_bytes for d, n in bounds.items()}
    index = {device.name: d for d, device in enumerate(plan.devices)}

    def corrected(device: Device) -> Device:
        d = index.get(device.name)
        known = [n for found in (failure.free_bytes, bounds) for i, n in found.items() if i == d]
        return replace(device, memory_free_bytes=max(min([device.memory_free_bytes, *known]), 1))

    host_free = request.host_free_bytes
    if failure.device == HOST:
        bound = bounds[HOST]
        host_free = max(min(bound, bound if host_free is None else host_free), 1)
    learnt = replace(
        request,
        devices=tuple(corrected(device) for device in request.devices),
        host_free_bytes=host_free,
    )
    again = make_plan(
        plan.model, learnt.devices, learnt.options, host_free_bytes=host_free, speeds=plan.speeds
    )
    return again, learnt


def describe_failure(failure: MemoryFailure) -> str:
    """`CUDA1 was refused 612 MiB when it held 21.4 GiB`."""
    what = f"{failure.wanted_bytes // MIB} MiB more" if failure.wanted_bytes else "what it needed"
    name = "the host" if failure.device == HOST else failure.name
    return f"{name} was refused {what} when it held {_size(failure.held_bytes)}"


def _size(n_bytes: int) -> str:
    return format_gib(n_bytes) if n_bytes >= GIB else f"{n_bytes / MIB:.0f} MiB"


def describe_change(old: Plan, new: Plan) -> str:
    """What moved: layers and the layers with experts on the host, card by card."""
    changes = []
    for d, device in enumerate(new.devices):
        was = old.split.layers_of(d) if d < len(old.devices) else ()
        now = new.split.layers_of(d)
        if was != now:
            changes.append(
                f"{device.name} layers {ranges(was) or 'none'} -> {ranges(now) or 'none'}"
            )
        before = old.experts_on_host(d) if d < len(old.devices) else ()
        after = new.experts_on_host(d)
        if before != after:
            changes.append(
                f"{device.name} experts on the host of layers {ranges(before) or 'none'}"
                f" -> {ranges(after) or 'none'}"
            )
    moved = new.memory.host.model_bytes - old.memory.host.model_bytes
    if moved:
        changes.append(f"{moved / MIB:+.0f} MiB of weights on the host")
    return "; ".join(changes) or "nothing moved"


def _failures_of(lines: Sequence[str], log: LoadLog) -> list[AllocationFailure]:
    """As logged; a cache that failed without a name is the first card's that has none."""
    failures = list(log.failures)
    for line in lines:
        if _CACHE_SHORT.search(line) and not failures:
            missing = [b for b in log.bytes_of("model") if b not in log.bytes_of("KV")]
            failures += [
                AllocationFailure(buffer_type=b, n_bytes=None, line=line) for b in missing[:1]
            ]
    is_short = any(_CUDA_SHORT.search(line) for line in lines[-60:])
    for line in lines[-60:]:
        if is_short and (match := _CURRENT_DEVICE.search(line)):
            failures.append(
                AllocationFailure(buffer_type=f"device {match[1]}", n_bytes=None, line=line)
            )
    return failures


def _failure(
    device: int,
    failure: AllocationFailure,
    failures: Sequence[AllocationFailure],
    log: LoadLog,
    plan: Plan,
    lines: Sequence[str],
    while_serving: bool,
) -> MemoryFailure:
    planned = plan.memory.host if device == HOST else plan.memory.devices[device]
    held = planned.total_bytes if while_serving else _held(device, log, plan)
    wanted = failure.n_bytes
    if wanted is None:
        sizes = [
            f.n_bytes for f in failures if f.n_bytes and f.buffer_type in ("", failure.buffer_type)
        ]
        wanted = sizes[-1] if sizes else (0 if while_serving else _next_part(planned, held))
    in_compute = not while_serving and held >= planned.model_bytes + planned.context_bytes - MIB
    excess = max(wanted - planned.compute_bytes, 0) if in_compute else 0
    return MemoryFailure(
        device=device,
        name="CPU" if device == HOST else plan.devices[device].name,
        held_bytes=held,
        wanted_bytes=wanted,
        compute_excess_bytes=excess,
        free_bytes=_free_bytes(lines, plan),
        line=failure.line,
    )


def _next_part(planned: MemoryBytes, held_bytes: int) -> int:
    """What a loading allocates next: the weights, then the context, then compute."""
    total = 0
    for part in (planned.model_bytes, planned.context_bytes, planned.compute_bytes):
        total += part
        if part and held_bytes < total - MIB:
            return part
    return planned.compute_bytes


def _held(device: int, log: LoadLog, plan: Plan) -> int:
    """Bytes of the buffers the log shows on this device."""
    return sum(b.n_bytes for b in log.buffers if _device_of(b.buffer_type, plan) == device)


def _device_of(buffer_type: str, plan: Plan) -> int | None:
    """The plan's device of a buffer type as logged; None where it is none of them."""
    for d, device in enumerate(plan.devices):
        if buffer_type in (device.buffer_type, device.name):
            return d
        number = buffer_type.removeprefix("device ")
        if number != buffer_type and device.name in [f"{name}{number}" for name in _NUMBERED]:
            return d
    return HOST if buffer_type.startswith("CPU") or buffer_type.endswith("_Host") else None


def _free_bytes(lines: Iterable[str], plan: Plan) -> dict[int, int]:
    """What llama.cpp found free on each card when it started."""
    index = {device.name: d for d, device in enumerate(plan.devices)}
    found = (_FREE.search(line) for line in lines if "MiB free" in line)
    return {index[m[1]]: int(m[2]) * MIB for m in found if m and m[1] in index}
