"""Which -ub, order of cards and switches make the turn shortest, where the user leaves them open?

Each setting is tried with the placement that is fastest with it; the first card is the one
that host experts are copied to, so that a slow link there costs every card's layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from offload.clock import clock_of_plan
from offload.device import Device
from offload.model import Model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.speeds import Speeds

UBATCHES: Final = (128, 256, 512, 1024, 2048, 4096)
"""Physical batches to choose from."""

SHARE: Final = 0.01
"""A setting has to make the turn shorter by this share to be taken."""


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
) -> Plan:
    """The plan with the shortest turn of those tried, one kind of setting after the other.

    `ubatches` are the physical batches to try (none: the options' own); with `may_reorder`
    each card is tried as the first one, with `may_switch` `--no-op-offload` and `--no-host`.
    """

    def planned(asked: tuple[Sequence[Device], PlanOptions], *, with_advice: bool = False) -> Plan:
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

    best: tuple[Sequence[Device], PlanOptions] = (devices, options)
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
    return planned((best[0], chosen), with_advice=True)


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
