"""Does llama.cpp need what it needed when this plan was recorded?"""

from __future__ import annotations

from typing import Final

from offload.units import MIB
from offload.verification import Verification
from tuner.check.facts import MemoryFacts, facts_of_verification
from tuner.check.outcome import Finding
from tuner.check.plan_diff import KINDS, memory_finding
from tuner.check.tolerance import Tolerance

_ROUNDED_BYTES: Final = 2 * MIB
"""What whole MiB, printed of several parts, can be off."""


def measured_bytes(said: Verification) -> dict[str, float]:
    """What all devices and the host need together, for the history."""
    checks = (*said.devices, said.host)
    return {"memory_bytes": sum(check.actual.total_bytes for check in checks)}


def memory_findings(
    was: MemoryFacts, said: Verification, tolerance: Tolerance
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Findings for what needs more or lies elsewhere; notes for what needs less."""
    now = facts_of_verification(said)
    slack = 0 if was.is_exact and now.is_exact else _ROUNDED_BYTES
    found = []
    if said.wrong_owners or said.wrong_tensors:
        text = (
            f"llama.cpp places {len(said.wrong_owners)} layers and {len(said.wrong_tensors)}"
            " tensors otherwise than planned; offload verify shows which"
        )
        found.append(Finding(code="placed-otherwise", text=text))
    for device, memory in now.devices.items():
        before = was.devices.get(device)
        if before is None:
            found.append(Finding(code="devices-changed", text=f"{device} was not recorded"))
            continue
        for kind in KINDS:
            one = memory_finding(
                device,
                kind,
                getattr(before, f"{kind}_bytes"),
                getattr(memory, f"{kind}_bytes"),
                tolerance,
                slack_bytes=slack,
            )
            if one is not None:
                found.append(one)
    less = [one for one in found if one.code == "memory-less"]
    notes = tuple(one.text for one in less)
    return tuple(one for one in found if one not in less), (*notes, *_builds(was, now))


def _builds(was: MemoryFacts, now: MemoryFacts) -> tuple[str, ...]:
    if (was.source, was.build) == (now.source, now.build):
        return ()
    before, after = (f"b{b}" if b else "a build that does not say" for b in (was.build, now.build))
    return (f"llama.cpp: {after} ({now.source}) now, {before} ({was.source}) before",)
