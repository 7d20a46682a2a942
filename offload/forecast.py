"""How fast will this plan decode and prefill, and who says so?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from offload.clock import placement_work
from offload.cost import ROUTING_SKEW, Prediction, Work, predict
from offload.machine import Host
from offload.plan import Plan
from offload.speeds import MIXED, PROFILE, Measured, known_speeds

__all__ = [
    "MIXED",
    "N_PROMPT",
    "PROFILE",
    "Forecast",
    "Measured",
    "forecast_of",
    "make_forecast",
    "plan_work",
]

N_PROMPT: Final = 2048


class Forecast(NamedTuple):
    """Seconds for one token after `n_depth` others, and for a prompt of `n_prompt` at that depth.

    `source` is `prior`, `profile`, or `profile+prior` where parts had to be guessed.
    `borrowed` maps features that were never measured to those used instead.
    """

    n_depth: int
    n_prompt: int
    decode: Prediction
    prefill: Prediction
    source: str
    borrowed: Mapping[str, str]


def make_forecast(
    plan: Plan,
    host: Host,
    measured: Measured | None = None,
    *,
    n_depth: int = 0,
    routing_skew: float = ROUTING_SKEW,
) -> Forecast | None:
    """Predict `plan` on `host`; None where a phase has nothing to be predicted from."""
    decode, prefill = plan_work(plan, n_depth=n_depth, routing_skew=routing_skew)
    names = tuple(dict.fromkeys((*decode.amounts, *prefill.amounts)))
    known, source = known_speeds(names, plan.devices, host, measured)
    decoded, prefilled = predict(decode, known), predict(prefill, known)
    if decoded is None or prefilled is None:
        return None
    return Forecast(
        n_depth=n_depth,
        n_prompt=N_PROMPT,
        decode=decoded,
        prefill=prefilled,
        source=source,
        borrowed={**decoded.borrowed, **prefilled.borrowed},
    )


def forecast_of(plan: Plan) -> Forecast | None:
    """Predict a plan with the speeds it was priced with; None where there are none."""
    known = plan.speeds
    if known is None:
        return None
    return make_forecast(plan, known.host, known.measured, routing_skew=known.routing_skew)


def plan_work(
    plan: Plan,
    *,
    n_depth: int = 0,
    n_prompt: int = N_PROMPT,
    routing_skew: float = ROUTING_SKEW,
) -> tuple[Work, Work]:
    """The work of one token and of a prompt, with the plan's own placement and options."""
    return placement_work(
        plan.model,
        plan.placement,
        plan.devices,
        context=plan.context,
        op_offload=plan.options.op_offload,
        load_mode=plan.options.load_mode,
        n_prompt=n_prompt,
        prompt_depth=n_depth,
        token_depth=n_depth,
        routing_skew=routing_skew,
    )
