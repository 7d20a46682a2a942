"""How is a plan made to hold where llama.cpp's own numbers differ from it?

The plan is asked about with a dry run. What llama.cpp needs beyond the plan (or less)
is taken off (or added to) the room of each card, and the same request is planned
again, until llama.cpp agrees that every card keeps its margin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from offload.device import Device
from offload.plan import Plan, make_plan, with_memory
from offload.render.request_json import Request
from offload.verification import Confirmation, DeviceCheck, Round, Verification

ROUNDS_MAX: Final = 4


def confirm_plan(
    plan: Plan,
    request: Request,
    verify: Callable[[Plan], Verification],
    *,
    improve: bool = True,
) -> Confirmation:
    """Ask `verify` about `plan`; plan `request` again with what it said until it holds.

    With `improve` a plan that holds is also planned again where llama.cpp needs less
    than was estimated, so that more experts stay on the cards. At most `ROUNDS_MAX`
    dry runs. Raises what `verify` raises: LlamaCppError when llama.cpp fails.
    """
    rounds = [Round(plan=plan, verification=verify(plan))]
    while len(rounds) < ROUNDS_MAX and (improve or not rounds[-1].holds):
        again = plan_again(rounds[-1], request)
        if any(_same_places(again, one.plan) for one in rounds):
            break
        rounds.append(Round(plan=again, verification=verify(again)))
    return Confirmation(rounds=tuple(rounds))


def plan_again(last: Round, request: Request) -> Plan:
    """The request's plan on devices whose room is corrected by what llama.cpp needs there.

    The correction is for the solver alone: the plan says again what the cards really have.
    """
    used = {check.name: check for check in last.verification.devices}
    corrected = tuple(_corrected(device, used.get(device.name)) for device in request.devices)
    host_free = request.host_free_bytes
    if host_free is not None:
        host_free = max(host_free - _beyond(last.verification.host), 1)
    model = last.plan.model
    again = make_plan(
        model, corrected, request.options, host_free_bytes=host_free, speeds=last.plan.speeds
    )
    true = {device.name: device for device in request.devices}
    again = replace(
        again,
        offered_devices=request.devices,
        devices=tuple(true[device.name] for device in again.devices),
        host_free_bytes=request.host_free_bytes,
    )
    return with_memory(again, again.memory, again.compute_source)


def _corrected(device: Device, check: DeviceCheck | None) -> Device:
    if check is None:
        return device
    return replace(device, memory_free_bytes=max(device.memory_free_bytes - _beyond(check), 1))


def _beyond(check: DeviceCheck) -> int:
    return check.actual.total_bytes - check.planned.total_bytes


def _same_places(one: Plan, other: Plan) -> bool:
    return one.split == other.split and dict(one.placement.placed) == dict(other.placement.placed)
