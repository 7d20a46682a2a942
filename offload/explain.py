"""Why is each layer where it is, what limits each card, and what is the next best plan?

Shares are the seconds of a turn's work, feature by feature, by the coefficients that the
prediction is made of; nothing is measured or solved twice here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from offload.choice import EVEN, SAME_SHARE
from offload.contenders import make_contenders
from offload.cost.coefficients import terms_of
from offload.cost.difference import Difference
from offload.cost.work import CPU, REPACKED
from offload.plan import Plan, user_override_rules
from offload.question import Answered, answered, between, same_places
from offload.shadow_prices import ShadowPrice, shadow_prices
from offload.split import HOST

PHASES: Final = ("decode", "prefill")

BETWEEN: Final = "between"
"""Crossings from one device to another, which belong to none."""

FIXED: Final = "always"
"""What every token, prompt or batch takes, whatever the placement."""

KINDS: Final = {
    "read": "bandwidth",
    "layer": "kernels",
    "context": "context",
    "wait": "waiting",
    "flops": "compute",
    "attention": "attention",
    "stream": "link",
    "hop": "crossings",
    "carry": "crossings",
    "resend": "crossings",
    "const": "always",
    "ubatch": "always",
}
"""What a kind of work is limited by, in one word; `stream_mmap` counts as `stream`."""


class Place(NamedTuple):
    """A device's part of a turn: seconds by phase and limit, of one prompt and all tokens.

    `next_bytes` is the smallest expert matrix of its layers that is on the host, None where
    none is. `headroom_bytes` is None for what is no card.
    """

    name: str
    device: int | None
    seconds: Mapping[str, Mapping[str, float]]
    headroom_bytes: int | None = None
    next_bytes: int | None = None

    def phase_s(self, phase: str) -> float:
        """Seconds of this place in one phase of the turn."""
        return sum(self.seconds[phase].values())

    def limit(self, phase: str) -> str | None:
        """What takes most of its seconds; None where it does nothing."""
        parts = self.seconds[phase]
        return max(parts, key=lambda kind: parts[kind]) if parts else None

    @property
    def is_full(self) -> bool:
        """Whether not even the smallest matrix that left would find room again."""
        if self.headroom_bytes is None or self.next_bytes is None:
            return False
        return self.headroom_bytes < self.next_bytes


class NextBest(NamedTuple):
    """The shortest turn of the other placements that fit, and how much longer it is."""

    name: str
    answer: Answered
    difference: Difference


class Explanation(NamedTuple):
    """A plan taken apart; what has no price is None or missing."""

    answer: Answered
    places: tuple[Place, ...]
    reasons: tuple[str, ...]
    next_best: NextBest | None
    prices: tuple[ShadowPrice, ...]

    def phase_s(self, phase: str) -> float:
        """Seconds of all places in one phase of the turn."""
        return sum(place.phase_s(phase) for place in self.places)


def explain(answer: Answered) -> Explanation:
    """Everything there is to say of a plan; plans again some ten to twenty times."""
    places = places_of(answer)
    return Explanation(
        answer=answer,
        places=places,
        reasons=tuple(_reasons(answer.plan, places)),
        next_best=next_best(answer),
        prices=tuple(shadow_prices(answer)),
    )


def places_of(answer: Answered) -> tuple[Place, ...]:
    """Cards in order, the host, what lies between and what is always there."""
    seconds: dict[str, dict[str, dict[str, float]]] = {}
    for term in terms_of(answer.work, answer.clock.coefficients)[0]:
        phase, kind, place = (*term.feature.split("."), "")[:3]
        kind = KINDS["stream" if kind == "stream_mmap" else kind]
        if not place:
            place = FIXED if kind == KINDS["const"] else BETWEEN
        elif place == REPACKED:
            place = CPU
        parts = seconds.setdefault(place, {one: {} for one in PHASES})[phase]
        parts[kind] = parts.get(kind, 0.0) + term.seconds
    plan = answer.plan
    nothing: dict[str, dict[str, float]] = {phase: {} for phase in PHASES}
    cards = [
        Place(
            name=device.name,
            device=d,
            seconds=seconds.get(device.name, nothing),
            headroom_bytes=plan.headroom_bytes(d),
            next_bytes=_next_bytes(plan, d),
        )
        for d, device in enumerate(plan.devices)
    ]
    others = [
        Place(name=name, device=HOST if name == CPU else None, seconds=seconds[name])
        for name in (CPU, BETWEEN, FIXED)
        if name in seconds
    ]
    return (*cards, *others)


def _next_bytes(plan: Plan, d: int) -> int | None:
    """The smallest routed-expert matrix of this card's layers that is on the host."""
    hosted, backend = plan.placement.host_tensors, plan.devices[d].backend
    mine = set(plan.split.layers_of(d))
    sizes = [
        backend.padded_bytes(tensor.type, tensor.shape)
        for tensor in plan.model.expert_tensors
        if tensor.name in hosted and tensor.il in mine and len(tensor.shape) > 2
    ]
    return min(sizes, default=None)


def next_best(answer: Answered) -> NextBest | None:
    """The best of what people would do instead; None where nothing else fits."""
    question, plan = answer.question, answer.plan
    best: NextBest | None = None
    for contender in make_contenders(
        question.model,
        question.devices,
        question.options,
        host_free_bytes=question.host_free_bytes,
        speeds=question.speeds,
        own=plan,
    ):
        if not contender.plan.feasible or same_places(contender.plan, plan):
            continue
        other = answered(question, contender.plan)
        more = between(answer, other)
        if more is not None and (best is None or more.seconds < best.difference.seconds):
            best = NextBest(contender.name, other, more)
    return best


def _reasons(plan: Plan, places: tuple[Place, ...]) -> Iterator[str]:
    """Sentences that each state a fact of this plan, first those about all cards."""
    if not plan.devices:
        yield "there is no card, so everything is on the host"
        return
    yield from _user_reasons(plan)
    yield from _choice_reasons(plan)
    for d, device in enumerate(plan.devices):
        if guests := plan.guests(d):
            yield (
                f"{device.name} holds experts of {len(guests)} layers that others own: of experts a"
                " token reads a few, of all else everything, which belongs on faster cards; two"
                " crossings for each such layer take less than that saves"
            )
    on_host = plan.split.layers_of(HOST)
    hosted = [t for t in plan.model.expert_tensors if t.name in plan.placement.host_tensors]
    if on_host:
        why = (
            "by your -ngl"
            if plan.options.n_gpu_layers is not None
            else ("with them too the cards would be short, or the turn longer")
        )
        yield f"{len(on_host)} whole layers are on the host: {why}"
    elif not hosted:
        yield "everything fits on the cards, so nothing leaves them"
    if hosted:
        yield (
            "llama.cpp gives each card one range of layers, so a card is relieved only by experts"
            " of its own range; attention, routers and caches stay, as a token needs all of them"
        )
    for place in places:
        if place.device is not None and place.device in plan.split.owners and place.device != HOST:
            yield _card_reason(plan, place, place.device)


def _user_reasons(plan: Plan) -> Iterator[str]:
    options = plan.options
    if options.tensor_split is not None:
        yield "how many layers each card has is yours (-ts)"
    if user_override_rules(options):
        yield "what your own rules place (-ot, -ncmoe, -cmoe) stays there"


def _choice_reasons(plan: Plan) -> Iterator[str]:
    choice = plan.choice
    if choice is None:
        return
    if choice.left_out:
        yield f"{', '.join(choice.left_out)} owns nothing: a turn is shorter without"
    if choice.name == EVEN:
        yield (
            "the cards are filled evenly: of all placements that were weighed none has a turn"
            f" more than {100 * SAME_SHARE:.0f} % shorter"
        )
    if choice.gap is not None:
        yield (
            "no spread over these cards is shorter by more than"
            f" {100 * choice.gap:.1f} % (proven, with these compute buffers and coefficients)"
        )


def _card_reason(plan: Plan, place: Place, d: int) -> str:
    own, away = plan.split.layers_of(d), plan.experts_on_host(d)
    if not own:
        return f"{place.name} owns the output layer alone"
    experts = set(plan.model.expert_layers).intersection(own)
    if not experts:
        return f"{place.name} owns {len(own)} layers whole"
    elsewhere = set(plan.experts_elsewhere(d)).difference(away)
    if not away and elsewhere:
        return (
            f"{place.name} has experts of {len(elsewhere)} of its {len(own)} layers on other cards"
        )
    if not away:
        return f"{place.name} holds all experts of its {len(own)} layers"
    return (
        f"{place.name} has no room for experts of {len(away)} of its {len(own)} layers"
        if place.is_full
        else f"{place.name} has experts of {len(away)} of its {len(own)} layers on the host, and"
        " room that none of their matrices was worth or that compute buffers may need"
    )
