"""Which placements do people use for this model here, and what would each of them hold?

The same request planned once per strategy and once per single card, all priced by the
same referee; what llama.cpp's `--fit` chose joins them as a plan with nothing left to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from offload.clock import clock_of_plan
from offload.cost import Prediction
from offload.device import Device, rpc_servers
from offload.model import Model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.rules import parse_overrides
from offload.speeds import Speeds


class Contender(NamedTuple):
    """One placement, what it is called, and its turn where speeds are known."""

    name: str
    plan: Plan
    turn: Prediction | None = None


class Timing(NamedTuple):
    """What a contender was timed at: tokens per second of each run, nothing before them.

    `n_prompt` and `n_gen` are the lengths that were timed; `error` is why it ended, if it did.
    """

    decode_t_s: tuple[float, ...]
    prefill_t_s: tuple[float, ...]
    n_prompt: int
    n_gen: int
    error: str | None = None


class FitAnswer(NamedTuple):
    """What `--fit` would set: `-ngl`, `-ts` and `-ot`, each as it prints them."""

    n_gpu_layers: int
    tensor_split: tuple[float, ...]
    overrides: str


def make_contenders(
    model: Model,
    devices: Sequence[Device],
    options: PlanOptions,
    *,
    host_free_bytes: int | None = None,
    speeds: Speeds | None = None,
    own: Plan | None = None,
) -> Iterator[Contender]:
    """Our spread first, then each strategy, then each card alone where there are several.

    `own` is what this same request was planned as, where that has been done before.
    """
    has_experts = bool(model.expert_layers)
    strategies = tuple(Strategy) if has_experts and devices else (options.strategy,)
    for strategy in strategies:
        if strategy is Strategy.EVEN and speeds is None:
            continue  # which is what `own` then is
        plan = own if strategy is options.strategy else None
        if plan is None:
            plan = make_plan(
                model,
                devices,
                replace(options, strategy=strategy),
                host_free_bytes=host_free_bytes,
                speeds=speeds,
            )
        yield _timed(str(strategy), plan, speeds)
    if len(devices) < 2 or options.tensor_split is not None or options.split_mode != "layer":
        return
    for i, device in enumerate(devices):
        margins = options.margin_bytes
        alone = replace(
            options,
            margin_bytes=(margins[i],) if len(margins) > 1 else margins,
            device_names=(device.name,),
            rpc=options.rpc or ",".join(rpc_servers(devices)) or None,
        )
        plan = make_plan(model, (device,), alone, host_free_bytes=host_free_bytes, speeds=speeds)
        yield _timed(f"{device.name} alone", plan, speeds)


def _timed(name: str, plan: Plan, speeds: Speeds | None) -> Contender:
    if speeds is None:
        return Contender(name, plan)
    return Contender(name, plan, clock_of_plan(plan, speeds).price(plan.placement))


def fit_contender(
    model: Model,
    devices: Sequence[Device],
    options: PlanOptions,
    answer: FitAnswer,
    *,
    host_free_bytes: int | None = None,
    speeds: Speeds | None = None,
) -> Contender:
    """`--fit`'s choice priced by our referee."""
    fixed = replace(
        options,
        strategy=Strategy.NONE,
        n_gpu_layers=answer.n_gpu_layers,
        tensor_split=answer.tensor_split or None,
        override_rules=parse_overrides(answer.overrides) if answer.overrides else (),
    )
    plan = make_plan(model, devices, fixed, host_free_bytes=host_free_bytes)
    return _timed("--fit", plan, speeds)
