"""Whatever llama.cpp needs beyond an estimate, a confirmed plan holds or says that none does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.device import Device, check_devices, device_by_name
from offload.engine.confirm import ROUNDS_MAX, confirm_plan
from offload.memory import MemoryBytes
from offload.model import Model, make_model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.render.confirmation import confirmation_to_json, render_confirmation
from offload.render.request_json import request_of_plan
from offload.source import read_header
from offload.units import GIB, MIB
from offload.verification import Confirmation, DeviceCheck, Verification
from tuner.synth import write_shape


@cache
def model() -> Model:
    """A 120B whose header needs no file once it is read."""
    with TemporaryDirectory() as folder:
        return make_model(read_header(write_shape("gpt-oss-120b", Path(folder) / "m.gguf")))


def cards(*gib: int) -> tuple[Device, ...]:
    """CUDA cards of these sizes."""
    return check_devices([device_by_name(f"CUDA{d}", n * GIB) for d, n in enumerate(gib)])


def judge(beyond: tuple[int, ...], wrong: tuple[int, ...] = ()) -> Callable[[Plan], Verification]:
    """A llama.cpp that needs `beyond` bytes of compute more (or less) than planned per device."""

    def actual(planned: MemoryBytes, n_bytes: int) -> MemoryBytes:
        return replace(planned, compute_bytes=max(planned.compute_bytes + n_bytes, 0))

    def verify(plan: Plan) -> Verification:
        return Verification(
            devices=tuple(
                DeviceCheck(
                    name=device.name,
                    planned=planned,
                    actual=actual(planned, n_bytes),
                    free_bytes=device.memory_free_bytes,
                    margin_bytes=margin,
                )
                for device, planned, margin, n_bytes in zip(
                    plan.devices, plan.memory.devices, plan.margins_bytes, beyond, strict=True
                )
            ),
            host=DeviceCheck(
                name="CPU",
                planned=plan.memory.host,
                actual=plan.memory.host,
                free_bytes=plan.host_free_bytes,
            ),
            layers=(),
            wrong_owners=wrong,
            wrong_tensors=(),
        )

    return verify


def confirm(
    gib: tuple[int, ...], beyond_mib: tuple[int, ...], options: PlanOptions | None = None
) -> Confirmation:
    """The confirmation of the 120B on cards of `gib` under such a llama.cpp."""
    plan = make_plan(model(), cards(*gib), options or PlanOptions(), host_free_bytes=200 * GIB)
    beyond = tuple(n * MIB for n in beyond_mib)
    return confirm_plan(plan, request_of_plan(plan), judge(beyond))


@settings(max_examples=25)
@given(gib=st.tuples(*[st.integers(12, 40)] * 2), beyond=st.tuples(*[st.integers(-600, 3000)] * 2))
def test_plans_are_repaired(gib: tuple[int, ...], beyond: tuple[int, ...]) -> None:
    """However wrong the estimate was, within a few rounds every card keeps its margin."""
    confirmation = confirm(gib, beyond)
    assert confirmation.best.holds
    plan = confirmation.plan
    assert plan.compute_source == "dry-run" and plan.feasible
    assert [d.memory_free_bytes for d in plan.devices] == [n * GIB for n in gib]
    assert len(confirmation.rounds) <= ROUNDS_MAX
    first = confirmation.rounds[0]
    if first.holds:  # a plan that held is only given up for one with more on the cards
        assert confirmation.best.host_expert_bytes <= first.host_expert_bytes


def test_room_that_was_over_estimated_is_used() -> None:
    """What llama.cpp needs less than planned comes back to the cards, nearly all of it."""
    confirmation = confirm((24, 24), (-500, 0), PlanOptions(n_ubatch=4096, n_batch=4096))
    first, best = confirmation.rounds[0], confirmation.best
    check = first.verification.devices[0]
    freed = check.planned.compute_bytes - check.actual.compute_bytes
    assert freed == 500 * MIB
    unused = sum(first.plan.headroom_bytes(d) for d in range(2))
    came_back = first.host_expert_bytes - best.host_expert_bytes
    assert 0.8 * freed < came_back <= freed + unused


def test_what_no_plan_can_hold_is_said() -> None:
    """A card that is full before the first expert: by how much it is over is said."""
    confirmation = confirm((24, 24), (30 * 1024, 0))
    assert not confirmation.best.holds and not confirmation.plan.feasible
    assert "does not fit" in render_confirmation(confirmation)
    data = confirmation_to_json(confirmation)
    assert data["holds"] is data["repaired"] is False
    assert data["rounds"][-1]["devices"][0]["over_budget_bytes"] > 0


def test_other_places_are_no_confirmation() -> None:
    """A llama.cpp that puts a layer elsewhere is told of, whatever the bytes say."""
    plan = make_plan(model(), cards(80, 80), PlanOptions())
    confirmation = confirm_plan(plan, request_of_plan(plan), judge((0, 0), wrong=(3, 4)))
    assert not confirmation.best.holds
    assert "layers 3-4" in render_confirmation(confirmation)


@pytest.mark.parametrize("improve", [True, False])
def test_equal_numbers_need_one_round(improve: bool) -> None:
    """Nothing is asked twice where nothing differs."""
    plan = make_plan(model(), cards(24, 24), PlanOptions(), host_free_bytes=200 * GIB)
    confirmation = confirm_plan(plan, request_of_plan(plan), judge((0, 0)), improve=improve)
    assert len(confirmation.rounds) == 1 and confirmation.best.holds
