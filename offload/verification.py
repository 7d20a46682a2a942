"""What was planned beside what llama.cpp says: where do they differ, and does it matter?

Pure values: a check per device, a verification per plan asked about, and a confirmation
for the rounds it took until a plan held. `offload/engine/` makes them by asking.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from offload.memory import Breakdown, MemoryBytes
from offload.plan import Plan, with_memory
from offload.split import HOST
from offload.units import MIB

KINDS: Final = ("model_bytes", "context_bytes", "compute_bytes")


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

    def differs(self, kind: str, *, is_exact: bool) -> bool:
        """True where planned and actual `kind` are not equal, or not to the MiB printed."""
        planned, actual = getattr(self.planned, kind), getattr(self.actual, kind)
        return bool(abs(planned - actual) >= (1 if is_exact else 2 * MIB))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The comparison; `wrong_owners` are layers and `wrong_tensors` names that differ.

    `layers[il]` is llama.cpp's name of the device of layer il, the output layer last.
    `is_exact` is False where llama.cpp printed whole MiB only, `source` and `build` say who
    was asked, `notes` what could not be asked.
    """

    devices: tuple[DeviceCheck, ...]
    host: DeviceCheck
    layers: tuple[str, ...]
    wrong_owners: tuple[int, ...]
    wrong_tensors: tuple[str, ...]
    is_exact: bool = True
    source: str = ""
    build: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def places_equal(self) -> bool:
        """Every layer and every tensor is where the plan put it."""
        return not self.wrong_owners and not self.wrong_tensors

    @property
    def fits(self) -> bool:
        """llama.cpp's own numbers are within what every card and the host have free."""
        return all(check.fits for check in (*self.devices, self.host))

    def differing(self) -> tuple[tuple[DeviceCheck, str], ...]:
        """Device and kind of memory wherever planned and actual differ."""
        return tuple(
            (check, kind)
            for check in (*self.devices, self.host)
            for kind in KINDS
            if check.differs(kind, is_exact=self.is_exact)
        )


def _taken_over(check: DeviceCheck) -> MemoryBytes:
    kept = {
        kind: getattr(check.planned, kind)
        for kind in ("model_bytes", "context_bytes")
        if abs(getattr(check.planned, kind) - getattr(check.actual, kind)) < MIB
    }
    return replace(check.actual, **kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One plan and what llama.cpp said about it."""

    plan: Plan
    verification: Verification

    @property
    def measured(self) -> Plan:
        """The plan with llama.cpp's own numbers in place of ours.

        Less than a MiB of weights or context is what virtual cards pad otherwise than the
        planned ones: there ours stand.
        """
        checks = (*self.verification.devices, self.verification.host)
        *devices, host = (_taken_over(check) for check in checks)
        memory = Breakdown(devices=tuple(devices), host=host)
        return with_memory(self.plan, memory, "dry-run")

    @property
    def holds(self) -> bool:
        """Everything is where it was planned, and every card keeps its margin."""
        return self.verification.places_equal and self.measured.feasible

    @property
    def host_expert_bytes(self) -> int:
        """Routed-expert bytes that are not on any card: what a better plan has less of."""
        hosted, owners = self.plan.placement.host_tensors, self.plan.split.owners
        return sum(
            tensor.n_bytes
            for tensor in self.plan.model.expert_tensors
            if tensor.name in hosted or (tensor.il is not None and owners[tensor.il] == HOST)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The rounds in order; the best of them is what to use."""

    rounds: tuple[Round, ...]

    @property
    def best(self) -> Round:
        """The round that holds and leaves the fewest expert bytes on the host, else the last."""
        holding = [one for one in self.rounds if one.holds]
        return min(holding, key=lambda one: one.host_expert_bytes) if holding else self.rounds[-1]

    @property
    def plan(self) -> Plan:
        """The best plan, with llama.cpp's own numbers."""
        return self.best.measured
