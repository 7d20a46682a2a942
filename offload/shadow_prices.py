"""What would one thing more, or less, change: a GiB, a link, a batch, a cache, a card?

Every price is the difference of two plans: the one there is, and the one that the same
planner makes when that one thing is different.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from offload.cost import Coefficients
from offload.cost.difference import Difference
from offload.device import Device
from offload.errors import UsageError
from offload.ggml import TYPES_BY_NAME
from offload.options import PlanOptions
from offload.priors import link_bytes_per_s
from offload.question import Answered, Question, between, planned, same_places
from offload.speeds import Measured
from offload.split import HOST
from offload.units import GIB

_N_UBATCH: Final = 2048
_N_UBATCH_MAX: Final = 8192
_N_CTX_MIN: Final = 1024


class Change(NamedTuple):
    """One thing that is different: a stable code, words, and the question it leads to."""

    code: str
    text: str
    question: Question


class ShadowPrice(NamedTuple):
    """A change planned again. `difference` is None where a plan does not fit or has no price.

    `before` is the plan there is, at the depth of context that both can have.
    `refused` says why there is no other plan at all.
    """

    change: Change
    before: Answered
    after: Answered | None
    difference: Difference | None
    refused: str = ""

    @property
    def same_places(self) -> bool:
        """Whether every layer and every tensor stays where it is."""
        return self.after is not None and same_places(self.before.plan, self.after.plan)


def shadow_prices(base: Answered) -> Iterator[ShadowPrice]:
    """The price of each change that can be made to this plan."""
    for change in changes_of(base):
        try:
            after = planned(change.question)
        except UsageError as error:
            yield ShadowPrice(change, base, None, None, str(error))
            continue
        before, depth = base, after.clock.prompt_depth
        if depth != base.clock.prompt_depth:
            before = base.with_depth(depth)
        both_fit = before.plan.feasible and after.plan.feasible
        yield ShadowPrice(change, before, after, between(before, after) if both_fit else None)


def changes_of(base: Answered) -> Iterator[Change]:
    """One more GiB on each card, links, batch, cache, context, and each kind of card less."""
    question = base.question
    for d, device in enumerate(question.devices):
        more = replace(device, memory_free_bytes=device.memory_free_bytes + GIB)
        if device.memory_total_bytes is not None:
            more = replace(more, memory_total_bytes=device.memory_total_bytes + GIB)
        yield Change(
            f"memory:{device.name}",
            f"1 GiB more on {device.name}",
            question._replace(devices=_put(question.devices, d, more)),
        )
    yield from _link_changes(base)
    yield from _option_changes(base)
    yield from _card_changes(question)


def _put(devices: Sequence[Device], d: int, device: Device) -> tuple[Device, ...]:
    return (*devices[:d], device, *devices[d + 1 :])


def _link_changes(base: Answered) -> Iterator[Change]:
    """The link that host experts are streamed over, where any are."""
    question, plan = base.question, base.plan
    if HOST not in plan.placement.placed.values() and HOST not in plan.split.owners:
        return
    for d, device in enumerate(question.devices):
        if device.backend.offloads_ops:
            yield Change(
                f"link:{device.name}",
                f"twice the link of {device.name}",
                with_wider_link(question, d, 2.0),
            )
            return


def with_wider_link(question: Question, d: int, factor: float) -> Question:
    """The same machine with `factor` times the link of card `d`, measured or guessed."""
    device = question.devices[d]
    wider = replace(device, link_bytes_per_s=round(factor * link_bytes_per_s(device)))
    speeds = question.speeds
    if speeds.measured is not None and device.name in speeds.measured.device_of:
        card = speeds.measured.device_of[device.name]
        known = _scaled(speeds.measured.coefficients, f"prefill.stream.{card}", 1 / factor)
        speeds = speeds._replace(measured=Measured(known, speeds.measured.device_of))
    return question._replace(devices=_put(question.devices, d, wider), speeds=speeds)


def _scaled(known: Coefficients, name: str, factor: float) -> Coefficients:
    """One coefficient times `factor`, with its doubts.

    Copies of mapped weights are bound by a pageable copy too: they stay as measured.
    """
    if name not in known.table:
        return known
    old = known.table[name]
    new = old._replace(value=old.value * factor, standard_error=old.standard_error * factor)
    covariance = {
        pair: value * (factor if name in pair else 1.0) for pair, value in known.covariance.items()
    }
    return known._replace(table={**known.table, name: new}, covariance=covariance)


def _option_changes(base: Answered) -> Iterator[Change]:
    question, context, options = base.question, base.plan.context, base.question.options

    def change(code: str, text: str, **changed: object) -> Change:
        return Change(code, text, question._replace(options=_with(options, **changed)))

    n_ubatch = _N_UBATCH if context.n_ubatch < _N_UBATCH else 2 * context.n_ubatch
    if n_ubatch <= min(context.n_ctx, _N_UBATCH_MAX):
        n_batch = max(options.n_batch, n_ubatch)
        also = "" if n_batch == options.n_batch else f" -b {n_batch}"
        yield change("ubatch", f"-ub {n_ubatch}{also}", n_ubatch=n_ubatch, n_batch=n_batch)
    if context.n_ubatch > 512:
        yield change("ubatch-512", "-ub 512", n_ubatch=512)
    if context.flash_attn and not context.type_k.is_quantized:
        q8 = TYPES_BY_NAME["Q8_0"]
        yield change("kv-q8_0", "-ctk q8_0 -ctv q8_0", type_k=q8, type_v=q8)
    if context.n_ctx // 2 >= _N_CTX_MIN:
        yield change("half-context", f"-c {context.n_ctx // 2}", n_ctx=context.n_ctx // 2)


def _with(options: PlanOptions, **changed: object) -> PlanOptions:
    return replace(options, **changed)  # type: ignore[arg-type]


def _card_changes(question: Question) -> Iterator[Change]:
    """One card less, once for each kind: the last of those that are alike."""
    devices, options = question.devices, question.options
    if len(devices) < 2 or options.tensor_split is not None or options.split_mode != "layer":
        return
    last = {_alike(question, d): d for d in range(len(devices))}
    for d in sorted(last.values()):
        margins = options.margin_bytes
        if len(margins) > 1:
            margins = (*margins[:d], *margins[d + 1 :])
        kept = (*devices[:d], *devices[d + 1 :])
        names = tuple(device.name for device in kept)
        fewer = replace(options, margin_bytes=margins, device_names=names)
        yield Change(
            f"without:{devices[d].name}",
            f"without {devices[d].name}",
            question._replace(devices=kept, options=fewer),
        )


def _alike(question: Question, d: int) -> object:
    """What makes two cards the same to a planner; the first one streams, so it is its own kind."""
    margins = question.options.margin_bytes
    device = replace(question.devices[d], name="", buffer_type="", endpoint=None)
    return d == 0, device, margins[d] if len(margins) > 1 else margins[0]
