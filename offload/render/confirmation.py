"""Planned beside actual: llama.cpp's word on a plan as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from offload.memory import MemoryBytes
from offload.plan import Plan
from offload.render.text import printable, ranges, render_columns
from offload.units import MIB
from offload.verification import KINDS, Confirmation, DeviceCheck, Round, Verification

SCHEMA_VERSION: Final = 1
_NAMES_MAX: Final = 5
_HEADS: Final = {"model_bytes": "weights", "context_bytes": "context", "compute_bytes": "compute"}


def render_confirmation(confirmation: Confirmation) -> str:
    """A table per round, what changed between them, and the verdict."""
    lines: list[str] = []
    for i, one in enumerate(confirmation.rounds):
        if i:
            lines += ["", *(f"changed: {text}" for text in changes(confirmation.rounds[0], one))]
        lines += [*_table(one.verification), *_differences(one.verification)]
    lines += ["", _verdict(confirmation) + _who(confirmation.best.verification)]
    return "\n".join(lines)


def _who(verification: Verification) -> str:
    build = "" if verification.build is None else f" b{verification.build}"
    return f" (asked: {verification.source}{build})"


def _table(verification: Verification) -> list[str]:
    rows = [("MiB", "", *_HEADS.values(), "total", "free", "margin left")]
    for check in (*verification.devices, verification.host):
        free = "" if check.free_bytes is None else f"{check.free_bytes / MIB:.0f}"
        left = (
            f"{_left(check) / MIB:+.0f}"
            if check.free_bytes is not None and check is not verification.host
            else ""
        )
        name = "host" if check is verification.host else check.name
        rows.append((name, "planned", *_cells(check.planned), "", ""))
        rows.append(("", "llama.cpp", *_cells(check.actual), free, left))
    return render_columns(rows, "<<>>>>>>")


def _left(check: DeviceCheck) -> int:
    return (check.free_bytes or 0) - check.actual.total_bytes - check.margin_bytes


def _cells(memory: MemoryBytes) -> tuple[str, ...]:
    numbers = (*(getattr(memory, kind) for kind in KINDS), memory.total_bytes)
    return tuple(f"{n / MIB:.1f}" for n in numbers)


def _differences(verification: Verification) -> Iterator[str]:
    if verification.wrong_owners:
        yield f"llama.cpp gives layers {ranges(verification.wrong_owners)} to other devices"
    if verification.wrong_tensors:
        named = ", ".join(printable(name) for name in verification.wrong_tensors[:_NAMES_MAX])
        more = len(verification.wrong_tensors) - _NAMES_MAX
        yield f"llama.cpp puts other tensors elsewhere: {named}" + (
            f" and {more} more" if more > 0 else ""
        )
    for check in (*verification.devices, verification.host):
        if check.over_budget_bytes:
            what = "is over its memory" if not check.fits else "eats into its margin"
            yield f"{check.name} {what} by {check.over_budget_bytes} bytes"
    yield from verification.notes


def _verdict(confirmation: Confirmation) -> str:
    best = confirmation.best
    if not best.verification.places_equal:
        return "DOES NOT HOLD: llama.cpp places it otherwise"
    if not best.holds:
        return "DOES NOT HOLD: it does not fit"
    again = "" if best is confirmation.rounds[0] else " after planning again with these numbers"
    return f"holds{again}: every layer and tensor is where it was planned, every margin is kept"


def changes(first: Round, best: Round) -> Iterator[str]:
    """What is different between two plans of the same cards, in words."""
    before, after = first.plan, best.plan
    for d, (device, old) in enumerate(zip(after.devices, before.devices, strict=False)):
        if device.name != old.name:
            continue
        if before.split.layers_of(d) != after.split.layers_of(d):
            yield f"{device.name} layers {_ranges(before, d)} to {_ranges(after, d)}"
        if before.experts_on_host(d) != after.experts_on_host(d):
            yield (
                f"{device.name} experts on the host: layers"
                f" {ranges(before.experts_on_host(d)) or 'none'}"
                f" to {ranges(after.experts_on_host(d)) or 'none'}"
            )
    moved = best.host_expert_bytes - first.host_expert_bytes
    if moved:
        way = "left" if moved > 0 else "came back to"
        yield f"{abs(moved) / MIB:.0f} MiB of experts {way} the cards"


def _ranges(plan: Plan, device: int) -> str:
    return ranges(plan.split.layers_of(device)) or "none"


def confirmation_to_json(confirmation: Confirmation) -> dict[str, Any]:
    """`holds` for the plan as given, `rounds` with planned and actual bytes, `changes` in words."""
    return {
        "schema_version": SCHEMA_VERSION,
        "holds": confirmation.rounds[0].holds,
        "repaired": confirmation.best.holds and confirmation.best is not confirmation.rounds[0],
        "changes": list(changes(confirmation.rounds[0], confirmation.best)),
        "rounds": [_round_to_json(one) for one in confirmation.rounds],
    }


def _round_to_json(one: Round) -> dict[str, Any]:
    verification = one.verification
    return {
        "holds": one.holds,
        "source": verification.source,
        "llama_build": verification.build,
        "is_exact": verification.is_exact,
        "wrong_owners": list(verification.wrong_owners),
        "wrong_tensors": list(verification.wrong_tensors),
        "devices": [_check_to_json(check) for check in verification.devices],
        "host": _check_to_json(verification.host),
        "notes": list(verification.notes),
    }


def _check_to_json(check: DeviceCheck) -> dict[str, Any]:
    return {
        "name": check.name,
        "memory_free_bytes": check.free_bytes,
        "margin_bytes": check.margin_bytes,
        "over_budget_bytes": check.over_budget_bytes,
        "planned": {kind: getattr(check.planned, kind) for kind in KINDS},
        "actual": {kind: getattr(check.actual, kind) for kind in KINDS},
    }
