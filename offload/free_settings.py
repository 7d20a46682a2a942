"""Which -ub, context, cache types, order of cards and switches, where the user leaves them open?

Each setting is tried with the placement that is fastest with it; the first card is the one
that host experts are copied to, so that a slow link there costs every card's layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from offload.advice import Advice
from offload.clock import clock_of_plan
from offload.device import Device
from offload.errors import UsageError
from offload.ggml import TYPES_BY_NAME
from offload.model import Model
from offload.options import DEFAULT_N_CTX_MAX, PlanOptions
from offload.plan import Plan, make_plan, resolve_context
from offload.speeds import Speeds
from offload.turn import Turn

UBATCHES: Final = (128, 256, 512, 1024, 2048, 4096)
"""Physical batches to choose from."""

SHARE: Final = 0.01
"""A setting has to make the turn shorter by this share to be taken."""

STEP: Final = 1024
"""Tokens between the contexts to choose from."""

Asked: TypeAlias = tuple[Sequence[Device], PlanOptions]
Planner: TypeAlias = Callable[[Asked], Plan]
Pricer: TypeAlias = Callable[[Plan], float]


def best_settings(
    model: Model,
    devices: Sequence[Device],
    options: PlanOptions,
    *,
    speeds: Speeds,
    host_free_bytes: int | None = None,
    ubatches: Sequence[int] = UBATCHES,
    may_reorder: bool = False,
    may_switch: bool = False,
    context: str | None = None,
    free_k: bool = False,
    free_v: bool = False,
) -> Plan:
    """The plan with the shortest turn of those tried, one kind of setting after the other.

    `context` `auto` takes the longest context that makes no turn 1 % longer, `max` the longest
    that fits; `free_k` and `free_v` leave the types of the cache open: f16, or q8_0 where
    that makes the turn shorter. What was chosen, and why, stands in the plan's advice.

    `ubatches` are the physical batches to try (none: the options' own); with `may_reorder`
    each card is tried as the first one, with `may_switch` `--no-op-offload` and `--no-host`.
    """

    def planned(asked: Asked, *, with_advice: bool = False) -> Plan:
        return make_plan(
            model,
            asked[0],
            asked[1],
            host_free_bytes=host_free_bytes,
            with_advice=with_advice,
            speeds=speeds,
        )

    def seconds(plan: Plan) -> float:
        return clock_of_plan(plan, speeds).seconds(plan.placement)

    best: Asked = (devices, options)
    notes: list[Advice] = []
    if free_k or free_v:
        best, said = _with_cache_types(best, planned, seconds, free_k=free_k, free_v=free_v)
        notes += said
    if context is not None:
        # a longer context is no deeper conversation: all are priced at one depth
        speeds = _at_one_depth(model, best[1], speeds)
        best, said = _with_context(
            model, best, planned, seconds, speeds.turn, may_slow=context == "max"
        )
        notes += said
    first = planned(best)
    best_s = seconds(first) if first.feasible else float("inf")
    for kind in (_orders if may_reorder else None, _switches if may_switch else None):
        for tried in () if kind is None else tuple(kind(*best)):
            plan = planned(tried)
            if plan.feasible and seconds(plan) < best_s * (1 - SHARE):
                best, best_s = tried, seconds(plan)
    by_size = []
    for n_ubatch in ubatches:
        asked = replace(best[1], n_ubatch=n_ubatch, n_batch=max(best[1].n_batch, n_ubatch))
        plan = planned((best[0], asked))
        if plan.feasible:
            by_size.append((seconds(plan), asked))
    best_s = float("inf")
    chosen = best[1]
    for turn_s, asked in by_size:
        if turn_s < best_s * (1 - SHARE):
            best_s, chosen = turn_s, asked
    made = planned((best[0], chosen), with_advice=True)
    return replace(made, advice=(*made.advice, *notes)) if notes else made


def _with_cache_types(
    given: Asked, planned: Planner, seconds: Pricer, *, free_k: bool, free_v: bool
) -> tuple[Asked, list[Advice]]:
    """q8_0 for what is left open, where it makes the turn shorter by more than f16."""
    devices, options = given
    q8_0 = TYPES_BY_NAME["Q8_0"]
    plan = planned(given)
    f16_s = best_s = seconds(plan) if plan.feasible else math.inf
    chosen = options
    for k, v in ((True, True), (True, False), (False, True)):
        if (k and not free_k) or (v and not free_v):
            continue
        try:
            tried = replace(
                options,
                type_k=q8_0 if k else options.type_k,
                type_v=q8_0 if v else options.type_v,
            )
            plan = planned((devices, tried))
        except UsageError:
            continue  # llama.cpp refuses them for this model or these settings
        if plan.feasible and seconds(plan) < best_s * (1 - SHARE):
            best_s, chosen = seconds(plan), tried
    if chosen is options:
        why = "q8_0 would make no turn 1 % shorter, or cannot be used here"
    elif f16_s == math.inf:
        why = "f16 does not fit"
    else:
        why = f"a turn takes {best_s:.3g} s, and {f16_s:.3g} s with f16"
    types = f"{chosen.type_k.name.lower()}/{chosen.type_v.name.lower()}"
    return (devices, chosen), [Advice(code="cache-types-chosen", text=f"{types} KV: {why}")]


def _at_one_depth(model: Model, options: PlanOptions, speeds: Speeds) -> Speeds:
    depth = speeds.turn.depth_in(resolve_context(model, options).n_ctx)
    return speeds._replace(turn=speeds.turn._replace(n_depth=depth))


def _with_context(
    model: Model, given: Asked, planned: Planner, seconds: Pricer, turn: Turn, *, may_slow: bool
) -> tuple[Asked, list[Advice]]:
    """The longest context, in steps of 1024 tokens, that fits or costs nothing; by bisection."""
    devices, options = given
    longest = model.n_ctx_train or DEFAULT_N_CTX_MAX
    n_steps = -(-longest // STEP)
    needed = (turn.n_depth or 0) + turn.n_prompt + turn.n_generate
    shortest = min(max(1, -(-needed // STEP)), n_steps)

    def at(step: int) -> Asked:
        return devices, replace(options, n_ctx=min(step * STEP, longest))

    base = planned(at(shortest))
    base_s = seconds(base) if base.feasible else math.inf
    low, high, beyond_s = shortest, n_steps + 1, math.inf
    while base.feasible and high - low > 1:
        # the longest first: where it is free there is nothing to look for
        step = n_steps if high > n_steps else (low + high) // 2
        plan = planned(at(step))
        turn_s = seconds(plan) if plan.feasible else math.inf
        if plan.feasible and (may_slow or turn_s <= base_s * (1 + SHARE)):
            low = step
        else:
            high, beyond_s = step, turn_s
    n_ctx = at(low)[1].n_ctx
    if not base.feasible:
        why = "even this does not fit"
    elif high > n_steps:
        why = "as long as the model was trained for"
    elif beyond_s == math.inf:
        why = f"the longest that fits; {at(high)[1].n_ctx} does not"
    else:
        why = (
            f"a turn takes {beyond_s:.3g} s at {at(high)[1].n_ctx} and {base_s:.3g} s at"
            f" {at(shortest)[1].n_ctx}, which is over 1 % longer"
        )
    return at(low), [Advice(code="context-chosen", text=f"-c {n_ctx}: {why}")]


def _orders(
    devices: Sequence[Device], options: PlanOptions
) -> Iterator[tuple[Sequence[Device], PlanOptions]]:
    """Each other card first, the rest as they are; `-dev` says so."""
    if options.tensor_split is not None or options.split_mode != "layer":
        return
    margins = options.margin_bytes
    for d in range(1, len(devices)):
        order = (d, *(i for i in range(len(devices)) if i != d))
        moved = tuple(devices[i] for i in order)
        yield (
            moved,
            replace(
                options,
                device_names=tuple(device.name for device in moved),
                margin_bytes=tuple(margins[i] for i in order) if len(margins) > 1 else margins,
            ),
        )


def _switches(
    devices: Sequence[Device], options: PlanOptions
) -> Iterator[tuple[Sequence[Device], PlanOptions]]:
    """Host experts computed where they lie, as they are or repacked for the processor."""
    if options.op_offload:
        yield devices, replace(options, op_offload=False)
    if not options.no_host:
        yield devices, replace(options, no_host=True)
