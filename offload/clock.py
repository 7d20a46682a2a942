"""How many seconds does a turn take, wherever everything is?

The referee of time, as offload/placement.py is that of memory: any placement from anyone
is priced by the same work and the same coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from offload.context import ContextOptions
from offload.cost import (
    Coefficients,
    Places,
    Prediction,
    Work,
    decode_work,
    nearest,
    predict,
    prefill_work,
    seconds_of,
)
from offload.cost.lumps import find_lumps, multiplied
from offload.cost.work import CPU, REPACKED, RPC
from offload.device import Device
from offload.model import Model
from offload.speeds import Speeds, known_speeds
from offload.split import HOST


class Clock(NamedTuple):
    """One model on these cards with these options, and what a unit of each work costs there.

    `devices` are those the indices of a placement mean.
    """

    model: Model
    devices: tuple[Device, ...]
    context: ContextOptions
    op_offload: bool
    load_mode: str | None
    speeds: Speeds
    coefficients: Coefficients
    source: str
    """Who says so: `prior`, `profile` or `profile+prior`."""

    @property
    def prompt_depth(self) -> int:
        """Tokens of context before the turn."""
        return self.speeds.turn.depth_in(self.context.n_ctx)

    @property
    def token_depth(self) -> int:
        """Tokens of context before the middle one of those that are written."""
        turn = self.speeds.turn
        return self.prompt_depth + turn.n_prompt + turn.n_generate // 2

    def work(self, placement: Places) -> Work:
        """Everything a turn does: its prompt once, and each token it writes."""
        token, prompt = placement_work(
            self.model,
            placement,
            self.devices,
            context=self.context,
            op_offload=self.op_offload,
            load_mode=self.load_mode,
            n_prompt=self.speeds.turn.n_prompt,
            prompt_depth=self.prompt_depth,
            token_depth=self.token_depth,
            routing_skew=self.speeds.routing_skew,
        )
        return prompt + token.scaled(self.speeds.turn.n_generate)

    def price(self, placement: Places) -> Prediction | None:
        """Seconds of a turn with their interval; None where nothing is known."""
        return predict(self.work(placement), self.coefficients)

    def seconds(self, placement: Places) -> float:
        """The seconds of `price` alone."""
        return seconds_of(self.work(placement), self.coefficients)

    def value(self, feature: str) -> float:
        """Seconds for one unit of a feature, borrowed as `predict` borrows; 0 if unknown."""
        table = self.coefficients.table
        source = feature if feature in table else nearest(feature, table)
        return 0.0 if source is None else table[source].value


def make_clock(
    model: Model,
    devices: Sequence[Device],
    context: ContextOptions,
    speeds: Speeds,
    *,
    op_offload: bool = True,
    load_mode: str | None = None,
) -> Clock:
    """A clock that knows every feature that work on this machine can have."""
    names = tuple(_features(model, devices))
    coefficients, source = known_speeds(names, devices, speeds.host, speeds.measured)
    return Clock(
        model=model,
        devices=tuple(devices),
        context=context,
        op_offload=op_offload,
        load_mode=load_mode,
        speeds=speeds,
        coefficients=coefficients,
        source=source,
    )


class Timed(Protocol):
    """A plan, as far as its seconds go; offload.plan.Plan is one."""

    @property
    def model(self) -> Model:
        """The model."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """The cards in use."""

    @property
    def context(self) -> ContextOptions:
        """Context and batches."""

    @property
    def options(self) -> Asked:
        """What else was asked for."""


class Asked(Protocol):
    """Options that decide where operations run; offload.options.PlanOptions is one."""

    @property
    def op_offload(self) -> bool:
        """Cards take over operations of host weights."""

    @property
    def load_mode(self) -> str | None:
        """How files are loaded; None: as the emitted command says."""


def clock_of_plan(plan: Timed, speeds: Speeds) -> Clock:
    """The clock for a plan's placement, or any other of the same model, cards and options."""
    return make_clock(
        plan.model,
        plan.devices,
        plan.context,
        speeds,
        op_offload=plan.options.op_offload,
        load_mode=plan.options.load_mode,
    )


def _features(model: Model, devices: Sequence[Device]) -> Iterator[str]:
    yield from ("decode.const", "decode.hop", "prefill.const", "prefill.ubatch")
    yield from ("prefill.hop", "prefill.carry")
    types = dict.fromkeys(tensor.type.name for tensor in multiplied(model))
    places = [*(device.name for device in devices), CPU, REPACKED]
    for place in places:
        yield from (f"decode.read.{place}.{name}" for name in types)
        yield from (f"prefill.flops.{place}.{name}" for name in types)
        yield from (f"decode.{kind}.{place}" for kind in ("layer", "context"))
        yield from (f"prefill.{kind}.{place}" for kind in ("layer", "read", "attention"))
    for device in devices:
        yield from (f"prefill.{kind}.{device.name}" for kind in ("stream", "stream_mmap"))
        if device.backend.name == RPC:
            yield f"decode.resend.{device.name}"


def host_is_repacked(devices: Sequence[Device], *, no_host: bool) -> bool:
    """Whether host weights lie in the processor's own layouts, where no card can copy them from.

    Mirrors `make_cpu_buft_list` (src/llama-model.cpp, b11434).
    """
    return no_host or not any(device.backend.has_pinned_host_buffer for device in devices)


def host_is_mapped(load_mode: str | None, *, has_host_rules: bool) -> bool:
    """Whether host weights stay in the mapped file, from which copies are slower.

    Mirrors `create_tensor` (src/llama-model-loader.cpp, b11434); `offload emit` asks for
    `--load-mode none` where a rule sends anything to the host and nobody says otherwise.
    """
    if load_mode is None:
        return not has_host_rules
    return load_mode in ("mmap", "mmap+mlock", "auto")


def placement_work(
    model: Model,
    placement: Places,
    devices: Sequence[Device],
    *,
    context: ContextOptions,
    op_offload: bool,
    load_mode: str | None,
    n_prompt: int,
    prompt_depth: int,
    token_depth: int,
    routing_skew: float,
) -> tuple[Work, Work]:
    """The work of one token and of a prompt, each after so many tokens of context."""
    repacked = host_is_repacked(devices, no_host=context.no_host)
    lumps = find_lumps(model, placement)
    token = decode_work(
        model,
        placement,
        devices,
        context=context,
        n_depth=token_depth,
        host_is_repacked=repacked,
        lumps=lumps,
    )
    prompt = prefill_work(
        model,
        placement,
        devices,
        context=context,
        n_prompt=n_prompt,
        n_depth=prompt_depth,
        op_offload=op_offload,
        host_is_repacked=repacked,
        host_is_mapped=host_is_mapped(load_mode, has_host_rules=HOST in placement.placed.values()),
        routing_skew=routing_skew,
        lumps=lumps,
    )
    return token, prompt
