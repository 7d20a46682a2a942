"""What should the user know about this plan, and what would make it fit?

Every remark has a stable code. When nothing fits, the smallest change of each
kind is found by solving the same problem again with that one thing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from offload.ggml import TYPES_BY_NAME
from offload.options import Strategy
from offload.split import HOST
from offload.strategy import Priced, Problem, solve_strategy
from offload.units import format_gib, format_mib

_N_CTX_MIN: Final = 4096
_N_UBATCH_MIN: Final = 128


class Advice(NamedTuple):
    """One remark: a stable code and a sentence."""

    code: str
    text: str


def advise(problem: Problem, priced: Priced, strategy: Strategy) -> tuple[Advice, ...]:
    """Remarks on a priced placement, what is short first."""
    notes = [Advice(code=code, text=text) for code, text in problem.model.warnings]
    notes += _state_notes(problem, priced)
    if priced.short_bytes:
        notes += _short_notes(problem, priced)
        if min(problem.room_bytes, default=1) > 0:
            notes += _remedies(problem, strategy, priced.short_bytes)
    return tuple(notes)


def _state_notes(problem: Problem, priced: Priced) -> Iterator[Advice]:
    model, split = problem.model, priced.placement.split
    on_host = [il for il, owner in enumerate(split.owners[:-1]) if owner == HOST]
    if not problem.backends:
        yield Advice(code="no-cards", text="no cards: everything is planned on the host")
    elif not model.expert_tensors:
        what = f"{len(on_host)} whole layers stay on the host" if on_host else "all layers fit"
        yield Advice(
            code="dense-model",
            text=f"no routed experts: there is nothing to offload but whole layers; {what}",
        )
    elif priced.fits and not priced.placement.placed and not on_host:
        yield Advice(code="fits-without-rules", text="everything fits on the cards: no rules")
    elif priced.fits and not priced.host_expert_bytes and not problem.has_user_rules:
        yield Advice(
            code="fits-without-pipeline",
            text="everything fits on the cards once pipeline parallelism is off: the one rule"
            " moves nothing, any rule switches it off and frees its copies of the inputs",
        )
    elif on_host and problem.n_gpu_layers is None:
        yield Advice(
            code="layers-on-host",
            text=f"{len(on_host)} whole layers stay on the host: with all experts there the cards"
            " are still too small"
            if HOST not in priced.short_bytes
            else f"{len(on_host)} whole layers are planned on the host, which is short itself",
        )
    if model.n_layer_nextn and "mtp-partly-loaded" not in dict(model.warnings):
        yield Advice(
            code="mtp-not-loaded",
            text=f"{model.n_layer_nextn} MTP block(s) take a unit of -ngl and -ts"
            " but are not loaded",
        )
    if problem.host_free_bytes is None and priced.memory.host.model_bytes:
        yield Advice(
            code="host-ram-unknown",
            text=f"{format_gib(priced.memory.host.total_bytes)} are planned in host RAM,"
            " which was not checked; give --host-ram",
        )


def _device_name(problem: Problem, device: int) -> str:
    if device == HOST:
        return "the host"
    return f"card {device} ({problem.backends[device].name})"


def _short_notes(problem: Problem, priced: Priced) -> Iterator[Advice]:
    for device, room in enumerate(problem.room_bytes):
        if room <= 0:
            free = problem.free_bytes[device]
            yield Advice(
                code="margin-takes-the-card",
                text=f"{_device_name(problem, device)} has {format_mib(free)} free and is to keep"
                f" {format_mib(free - room)} of it: nothing is left to plan with; lower --margin",
            )
    for device, n_bytes in sorted(priced.short_bytes.items()):
        yield Advice(
            code="short-host" if device == HOST else "short-card",
            text=f"{_device_name(problem, device)} is short by {format_mib(n_bytes)}"
            f" ({n_bytes} bytes)",
        )


def _remedies(problem: Problem, strategy: Strategy, short: Mapping[int, int]) -> Iterator[Advice]:
    """The smallest single change of each kind that makes the plan fit."""

    def fits(changed: Problem) -> bool:
        return solve_strategy(changed, strategy).fits

    if not any(device != HOST for device in short):
        # smaller contexts and batches do not make the weights on the host any smaller
        yield from _hardware_remedies(problem, strategy, fits)
        return
    context = problem.context
    found = False
    n_ctx = _largest(
        lambda n: fits(problem._replace(context=replace(context, n_ctx=n * 256))),
        _N_CTX_MIN // 256,
        context.n_ctx // 256 - 1,
    )
    if n_ctx:
        found = True
        yield Advice(code="try-context", text=f"it fits with -c {n_ctx * 256}")
    q8 = TYPES_BY_NAME["Q8_0"]
    if context.flash_attn and not context.type_k.is_quantized:
        smaller = problem._replace(context=replace(context, type_k=q8, type_v=q8))
        if fits(smaller):
            found = True
            yield Advice(code="try-kv-type", text="it fits with -ctk q8_0 -ctv q8_0")
    n_ubatch = context.n_ubatch // 2
    while n_ubatch >= _N_UBATCH_MIN:
        if fits(problem._replace(context=replace(context, n_ubatch=n_ubatch))):
            found = True
            yield Advice(code="try-ubatch", text=f"it fits with -ub {n_ubatch}")
            break
        n_ubatch //= 2
    yield from _hardware_remedies(problem, strategy, fits)
    if not found:
        yield Advice(
            code="try-smaller-model",
            text="no smaller context, KV type or ubatch alone is enough:"
            " a smaller quantisation, or several of these together",
        )


def _hardware_remedies(
    problem: Problem, strategy: Strategy, fits: Callable[[Problem], bool]
) -> Iterator[Advice]:
    if problem.backends and problem.tensor_split is None:
        one_more = problem._replace(
            backends=(*problem.backends, problem.backends[-1]),
            room_bytes=(*problem.room_bytes, problem.room_bytes[-1]),
            free_bytes=(*problem.free_bytes, problem.free_bytes[-1]),
        )
        if fits(one_more):
            size = format_gib(problem.free_bytes[-1])
            yield Advice(code="try-card", text=f"it fits with one more card of {size}")
    if problem.host_free_bytes is not None:
        unbounded = solve_strategy(problem._replace(host_free_bytes=None), strategy)
        if unbounded.fits:
            needed = unbounded.memory.host.total_bytes
            yield Advice(code="try-host-ram", text=f"it fits with {format_gib(needed)} of host RAM")


def _largest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The largest n in [low, high] for which `holds`, assumed monotone; 0 if none."""
    if high < low or not holds(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
