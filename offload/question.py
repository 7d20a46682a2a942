"""What if one thing were different: plan it again, and how do both turns compare?

`planned` is the only way from a question to its answer here, so that an explanation, a price
of one more GiB and a machine that nobody has are what `offload plan` would say of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from offload.clock import Clock, clock_of_plan
from offload.cost import Prediction, Work
from offload.cost.difference import Difference, Side, difference
from offload.device import Device
from offload.forecast import Forecast, make_forecast
from offload.model import Model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.speeds import Speeds
from offload.split import HOST
from offload.turn import Turn


class Question(NamedTuple):
    """Everything a plan follows from."""

    model: Model
    devices: tuple[Device, ...]
    options: PlanOptions
    host_free_bytes: int | None
    speeds: Speeds


class Answered(NamedTuple):
    """A question, the plan it leads to, and the clock that priced the plan's turn.

    `turn` is None where nothing is known of a machine's speed.
    """

    question: Question
    plan: Plan
    clock: Clock
    work: Work
    turn: Prediction | None

    @property
    def forecast(self) -> Forecast | None:
        """Decode and prefill, as `offload plan` says them."""
        speeds = self.question.speeds
        return make_forecast(
            self.plan, speeds.host, speeds.measured, routing_skew=speeds.routing_skew
        )

    def with_depth(self, n_depth: int) -> Answered:
        """The same plan, its turn at another depth of context."""
        turn = self.question.speeds.turn._replace(n_depth=n_depth)
        return answered(self.question, self.plan, turn)


def planned(question: Question) -> Answered:
    """Plan what is asked, as `offload plan` does, and price a turn of it."""
    plan = make_plan(
        question.model,
        question.devices,
        question.options,
        host_free_bytes=question.host_free_bytes,
        with_advice=False,
        speeds=question.speeds,
    )
    return answered(question, plan)


def question_of(plan: Plan, speeds: Speeds) -> Question:
    """What `plan` was the answer to, its turn at the depth that the plan's context means."""
    depth = speeds.turn.depth_in(plan.context.n_ctx)
    return Question(
        model=plan.model,
        devices=plan.offered_devices,
        options=plan.options,
        host_free_bytes=plan.host_free_bytes,
        speeds=speeds._replace(turn=speeds.turn._replace(n_depth=depth)),
    )


def answered(question: Question, plan: Plan, turn: Turn | None = None) -> Answered:
    """A plan there already is, priced as the answer to `question`."""
    speeds = question.speeds if turn is None else question.speeds._replace(turn=turn)
    clock = clock_of_plan(plan, speeds)
    return Answered(
        question=question._replace(speeds=speeds),
        plan=plan,
        clock=clock,
        work=clock.work(plan.placement),
        turn=clock.price(plan.placement),
    )


def between(before: Answered, after: Answered) -> Difference | None:
    """How much longer the second turn is; None where one of them has no price."""
    if before.turn is None or after.turn is None:
        return None
    return difference(
        Side(before.work, before.clock.coefficients),
        Side(after.work, after.clock.coefficients),
        _strangers(before.question.devices, after.question.devices),
    )


def _strangers(before: Sequence[Device], after: Sequence[Device]) -> frozenset[str]:
    """Cards that are not the same piece of hardware, whatever they are called.

    More memory or a wider slot leave a card what it is.
    """
    kinds = {_kind(device) for device in before}
    return frozenset(device.name for device in after if _kind(device) not in kinds)


def _kind(device: Device) -> Device:
    return replace(
        device,
        memory_free_bytes=0,
        memory_total_bytes=None,
        link_bytes_per_s=None,
        margin_bytes=None,
        drives_display=None,
    )


def same_places(a: Plan, b: Plan) -> bool:
    """Whether every layer and every tensor is on the same device in both.

    A card that owns nothing is no difference to one that is not there.
    """
    return _places(a) == _places(b)


def _places(plan: Plan) -> tuple[object, ...]:
    names = {HOST: "", **{d: device.name for d, device in enumerate(plan.devices)}}
    owners = [names[owner] for owner in plan.split.owners]
    return owners, {name: names[d] for name, d in plan.placement.placed.items()}
