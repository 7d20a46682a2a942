"""From a model, cards and options to a plan: the whole pipeline on one screen.

`make_plan` resolves llama-server's defaults, lets a strategy choose the
placement, prices it with the referee's own functions, writes the rules and
says what it found. It is pure: the same values in give the same plan out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from offload.advice import Advice, advise
from offload.context import ContextOptions
from offload.device import Device, rpc_servers
from offload.errors import UsageError
from offload.memory import Breakdown, Companion
from offload.model import Model
from offload.options import DEFAULT_N_CTX_MAX, SERVER_SLOTS, PlanOptions, Strategy
from offload.placement import Placement
from offload.rules import Rule, cpu_moe_rule, make_rules, n_cpu_moe_rules, replay
from offload.split import HOST, LayerSplit
from offload.strategy import Priced, Problem, solve_strategy

if TYPE_CHECKING:
    from offload.choice import Choice
    from offload.speeds import Speeds

LAYERS_MAX: Final = 512
"""`LLAMA_MAX_LAYERS` (src/llama-hparams.h, b11434)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A placement with everything needed to print, emit, verify or compare it.

    `rules` are ours only; the user's own (`options`) stand before them on the
    command line. `short_bytes` is keyed by device index, HOST for the host.
    `offered_devices` are the cards there were to choose from; `-sm none` and `-ngl 0`
    leave some of them out of `devices`.
    """

    model: Model
    options: PlanOptions
    context: ContextOptions
    offered_devices: tuple[Device, ...]
    devices: tuple[Device, ...]
    margins_bytes: tuple[int, ...]
    host_free_bytes: int | None
    placement: Placement
    rules: tuple[Rule, ...]
    memory: Breakdown
    compute_source: str
    short_bytes: Mapping[int, int]
    advice: tuple[Advice, ...]
    choice: Choice | None = None
    """What was weighed, where placements were weighed by their seconds."""

    speeds: Speeds | None = None
    """What they were weighed by; planning again asks for the same."""

    companions: tuple[Companion, ...] = ()
    """What else the server loads; what it takes of a card is in the card's margin."""

    @property
    def feasible(self) -> bool:
        """True when every device and the host hold their share."""
        return not self.short_bytes

    @property
    def split(self) -> LayerSplit:
        """Owner of every layer."""
        return self.placement.split

    def headroom_bytes(self, device: int) -> int:
        """Free less margin less everything planned; negative where short."""
        return (
            self.devices[device].memory_free_bytes
            - self.margins_bytes[device]
            - self.memory.devices[device].total_bytes
        )

    def experts_on_host(self, device: int) -> tuple[int, ...]:
        """Layers of this card with at least one routed-expert tensor on the host."""
        return self._with_experts_at(device, (HOST,))

    def experts_elsewhere(self, device: int) -> tuple[int, ...]:
        """Layers of this card with at least one routed-expert tensor on another card."""
        cards = (d for d in range(len(self.devices)) if d != device)
        return self._with_experts_at(device, tuple(cards))

    def guests(self, device: int) -> tuple[int, ...]:
        """Layers that are not this card's, with at least one routed-expert tensor on it."""
        mine = set(self.split.layers_of(device))
        here = {t.il for t in self.model.expert_tensors if self._place(t.name) == device}
        return tuple(sorted(il for il in here if il is not None and il not in mine))

    def _place(self, name: str) -> int | None:
        return self.placement.placed.get(name)

    def _with_experts_at(self, device: int, places: tuple[int, ...]) -> tuple[int, ...]:
        mine = self.split.layers_of(device)
        moved = {t.il for t in self.model.expert_tensors if self._place(t.name) in places}
        return tuple(il for il in mine if il in moved)


def make_plan(
    model: Model,
    devices: Sequence[Device],
    options: PlanOptions,
    *,
    host_free_bytes: int | None = None,
    with_advice: bool = True,
    speeds: Speeds | None = None,
) -> Plan:
    """Plan `model` on `devices` (in llama.cpp's order) with `options`.

    With `speeds`, strategy `own` is the placement whose turn is shortest (offload/choice.py);
    without, the one that fills the cards evenly. Raises UsageError where options and devices
    do not go together. A plan that does not fit is returned all the same, with `feasible`
    false and advice, which takes several more solutions to find; leave it out where nobody
    reads it.
    """
    cards = _used_devices(devices, options)
    margins = _margins(options.margin_bytes, len(cards))
    problem = _problem(model, cards, margins, options, host_free_bytes)
    choice: Choice | None = None
    offered = tuple(devices)
    if speeds is None or options.strategy is not Strategy.OWN or not cards:
        priced = solve_strategy(problem, options.strategy)
    else:
        priced, choice, some = _fastest(problem, cards, options, speeds)
        if some is not None:
            cards, margins = tuple(cards[d] for d in some), tuple(margins[d] for d in some)
            # those left out keep their numbers, so that `-dev` means the cards it names
            servers = options.rpc or ",".join(rpc_servers(offered)) or None
            offered = cards
            names = tuple(card.name for card in cards)
            options = replace(options, device_names=names, margin_bytes=margins, rpc=servers)
            problem = _problem(model, cards, margins, options, host_free_bytes)
    ours = {
        name: "CPU" if device == HOST else cards[device].buffer_type
        for name, device in priced.placement.placed.items()
        if name not in problem.user_placed
    }
    notes = advise(problem, priced, options.strategy) if with_advice else ()
    return Plan(
        model=model,
        options=options,
        context=problem.context,
        offered_devices=offered,
        devices=cards,
        margins_bytes=margins,
        host_free_bytes=host_free_bytes,
        placement=priced.placement,
        rules=make_rules(ours, model.tensor_names, fixed=problem.user_placed) if ours else (),
        memory=priced.memory,
        compute_source="estimate",
        short_bytes=priced.short_bytes,
        advice=(*notes, *_left_out(choice, devices)) if with_advice else (),
        choice=choice,
        speeds=speeds,
    )


def _fastest(
    problem: Problem, cards: Sequence[Device], options: PlanOptions, speeds: Speeds
) -> tuple[Priced, Choice | None, tuple[int, ...] | None]:
    """The shortest turn; only those who ask for it wait for its modules to be imported."""
    from offload.choice import choose_fastest
    from offload.clock import make_clock

    clock = make_clock(
        problem.model,
        cards,
        problem.context,
        speeds,
        op_offload=options.op_offload,
        load_mode=options.load_mode,
    )
    return choose_fastest(
        problem, clock, may_drop_cards=speeds.may_drop_cards and options.split_mode == "layer"
    )


def _left_out(choice: Choice | None, devices: Sequence[Device]) -> tuple[Advice, ...]:
    if choice is None or not choice.left_out:
        return ()
    names = ", ".join(choice.left_out)
    first = ", --settings auto also tries another card as the first, which host experts go through"
    return (
        Advice(
            code="card-left-out",
            text=f"{names}: left out, a turn is shorter without; --strategy even uses every card"
            + (first if devices[0].name in choice.left_out else ""),
        ),
    )


def with_memory(plan: Plan, memory: Breakdown, source: str) -> Plan:
    """The same places with other numbers, such as llama.cpp's own (`source` `dry-run`)."""
    rooms = (d.memory_free_bytes - m for d, m in zip(plan.devices, plan.margins_bytes, strict=True))
    used = (*(m.total_bytes for m in memory.devices), memory.host.total_bytes)
    room = (*rooms, plan.host_free_bytes)
    keys = (*range(len(plan.devices)), HOST)
    short = {
        key: n_bytes - limit
        for key, n_bytes, limit in zip(keys, used, room, strict=True)
        if limit is not None and n_bytes > limit
    }
    return replace(plan, memory=memory, compute_source=source, short_bytes=short)


def _problem(
    model: Model,
    cards: tuple[Device, ...],
    margins: tuple[int, ...],
    options: PlanOptions,
    host_free_bytes: int | None,
) -> Problem:
    free = tuple(card.memory_free_bytes for card in cards)
    user_rules = user_override_rules(options)
    return Problem(
        model=model,
        context=resolve_context(model, options),
        backends=tuple(card.backend for card in cards),
        room_bytes=tuple(f - m for f, m in zip(free, margins, strict=True)),
        free_bytes=free,
        host_free_bytes=host_free_bytes,
        op_offload=options.op_offload,
        n_gpu_layers=options.n_gpu_layers,
        tensor_split=_tensor_split(options.tensor_split, len(cards), options.split_mode),
        user_placed=_user_placed(user_rules, model, cards),
        has_user_rules=bool(user_rules),
    )


def resolve_context(model: Model, options: PlanOptions) -> ContextOptions:
    """Fill llama-server's defaults in: slots, unified KV, context, batch bounds.

    Mirrors tools/server/server.cpp (`n_parallel` auto) and the constructor of
    llama_context (src/llama-context.cpp, b11434). `-c 0` means the training context.
    Raises UsageError for cache types that `llama_init_from_model` refuses.
    """
    n_ctx = options.n_ctx
    if n_ctx is None:
        n_ctx = min(model.n_ctx_train or DEFAULT_N_CTX_MAX, DEFAULT_N_CTX_MAX)
    elif n_ctx == 0:
        n_ctx = model.n_ctx_train or DEFAULT_N_CTX_MAX
    _check_cache_types(model, options)
    is_auto = options.n_parallel is None
    unified = options.kv_unified
    n_batch = min(options.n_batch, n_ctx)
    return ContextOptions(
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=min(options.n_ubatch, n_batch),
        n_parallel=SERVER_SLOTS if options.n_parallel is None else options.n_parallel,
        kv_unified=is_auto if unified is None else unified,
        type_k=options.type_k,
        type_v=options.type_v,
        flash_attn=options.flash_attn is not False and model.has_flash_attn,
        flash_attn_auto=options.flash_attn is None and model.has_flash_attn,
        swa_full=options.swa_full,
        offload_kqv=options.offload_kqv,
        no_host=options.no_host,
        llama_build=options.llama_build,
    )


def _check_cache_types(model: Model, options: PlanOptions) -> None:
    """Refuse what `llama_init_from_model` refuses (src/llama-context.cpp, b11434)."""
    hp = model.hparams
    if (hp.is_mla or model.arch == "deepseek4") and options.type_k is not options.type_v:
        raise UsageError(
            "-ctk and -ctv differ, but this model's cache holds no values of its own"
            " and llama.cpp refuses two types; set both to the same"
        )
    if options.flash_attn is False or not model.has_flash_attn:
        if options.type_v.is_quantized:
            raise UsageError(
                f"-ctv {options.type_v.name.lower()} needs flash attention,"
                f" which {model.arch} does not have; use -ctv f16"
            )
        return
    for flag, type_, head_of in (
        ("-ctk", options.type_k, hp.n_embd_head_k),
        ("-ctv", options.type_v, hp.n_embd_head_v),
    ):
        for il in range(hp.n_layer_all - hp.n_layer_nextn):
            if head_of(il) % type_.block_size:
                raise UsageError(
                    f"{flag} {type_.name.lower()}: heads of {head_of(il)} are not whole blocks"
                    f" of {type_.block_size}, and llama.cpp refuses them; use {flag} f16"
                )


def user_override_rules(options: PlanOptions) -> tuple[Rule, ...]:
    """The user's `-ot`, `-cmoe` and `-ncmoe` as rules, in the order they are emitted."""
    rules = options.override_rules
    if options.cpu_moe:
        rules += (cpu_moe_rule(),)
    if options.n_cpu_moe:
        # more than there are layers means all of them
        rules += n_cpu_moe_rules(min(options.n_cpu_moe, LAYERS_MAX))
    return rules


def _user_placed(rules: tuple[Rule, ...], model: Model, cards: Sequence[Device]) -> dict[str, int]:
    if not rules:
        return {}
    index = {card.buffer_type: d for d, card in enumerate(cards)}
    index |= {card.name: d for d, card in enumerate(cards)} | {"CPU": HOST}
    placed: dict[str, int] = {}
    for name, buffer_type in replay(rules, model.tensor_names).items():
        if buffer_type not in index:
            raise UsageError(
                f"-ot …={buffer_type}: no such buffer type here; one of {', '.join(index)}"
            )
        placed[name] = index[buffer_type]
    return placed


def _used_devices(devices: Sequence[Device], options: PlanOptions) -> tuple[Device, ...]:
    if options.n_gpu_layers == 0:
        return ()
    if options.split_mode == "none" and devices:
        if not 0 <= options.main_gpu < len(devices):
            raise UsageError(f"-mg {options.main_gpu}: there are {len(devices)} cards, from 0")
        return (devices[options.main_gpu],)
    return tuple(devices)


def _margins(margins: tuple[int, ...], n_devices: int) -> tuple[int, ...]:
    if len(margins) == 1:
        return margins * n_devices
    if len(margins) != n_devices:
        raise UsageError(
            f"--margin has {len(margins)} values for {n_devices} cards; give 1 or {n_devices}"
        )
    return margins


def _tensor_split(
    shares: tuple[float, ...] | None, n_devices: int, split_mode: str
) -> tuple[float, ...] | None:
    """Pad with zeros as llama.cpp does; None where there is nothing to share."""
    if shares is None or n_devices == 0:
        return None
    if split_mode == "none":
        return None  # llama.cpp uses one card and reads no shares
    if len(shares) > n_devices and any(shares[n_devices:]):
        raise UsageError(f"-ts has {len(shares)} shares for {n_devices} cards")
    return (*shares, *(0.0,) * n_devices)[:n_devices]
