"""What does this command make of this model on these cards, priced as llama.cpp would place it?

A `Case` is everything the families of findings look at. The placement is the user's
own: every layer and rule as written, shares by free memory where `-ts` is missing
(`llama_model_base::load_tensors`, src/llama-model.cpp, b11434), the training context
where `-c` is (common/common.h). Nothing is planned here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from offload.device import Device
from offload.emit import make_launch
from offload.errors import OffloadError
from offload.ggml import TYPES_BY_NAME, GGMLType
from offload.lint.command import Command
from offload.lint.finding import Finding, error, note
from offload.lint.settings import Settings
from offload.lint.user_rules import Match, Matcher, UserRule
from offload.model import Model, Tensor
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.rules import Rule
from offload.split import HOST

F16 = TYPES_BY_NAME["F16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The cards (None: nobody knows) and the host, as described or found."""

    devices: tuple[Device, ...] | None = None
    host_free_bytes: int | None = None
    margin_bytes: tuple[int, ...] = (1 << 30,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command over a model and a machine; `plan` is None where there is nothing to price.

    `devices` are the cards llama.cpp would use, in its order. `rules` are all that can be
    understood, `matches` what they find in the model. `context_is_reduced`: `--fit` has taken
    away from an unset `-c` what it may.
    """

    command: Command
    settings: Settings
    model: Model | None
    machine: Machine
    devices: tuple[Device, ...]
    rules: tuple[UserRule, ...]
    matches: tuple[Match, ...]
    matcher: Matcher | None
    plan: Plan | None
    plan_at_full_context: Plan | None

    @property
    def context_is_reduced(self) -> bool:
        """True where the figures are those of the smallest context `--fit` may choose."""
        return self.plan is not self.plan_at_full_context

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name."""
        return {} if self.model is None else {t.name: t for t in self.model.tensors}

    @property
    def fit_blockers(self) -> tuple[str, ...]:
        """What makes `--fit` give up; shares and rows only where there are several cards."""
        several_only = ("-ts", "-sm row") if len(self.devices) == 1 else ()
        return tuple(flag for flag in self.settings.blocks_fit if flag not in several_only)

    @property
    def is_fitted(self) -> bool:
        """True where llama.cpp's own `--fit` may move layers and experts."""
        return self.settings.fit and not self.fit_blockers


def buffer_types(devices: Sequence[Device]) -> tuple[str, ...]:
    """What `-ot` may name: each device's default buffer type and the host."""
    return ("CPU", *(device.buffer_type for device in devices))


def choose_devices(
    devices: Sequence[Device], settings: Settings, *, is_known: bool = True
) -> tuple[tuple[Device, ...], list[Finding]]:
    """Cards in llama.cpp's order: that of `-dev`, else RPC servers first.

    Mirrors `llama_prepare_model_devices` (src/llama.cpp, b11434). Without `is_known` nobody
    knows which cards there are, and none is missed.
    """
    findings: list[Finding] = []
    if settings.device_names is None:
        ordered = sorted(devices, key=lambda card: card.backend.name != "RPC")
    elif settings.device_names == ("none",):
        ordered = []
    else:
        by_name = {card.name.lower(): card for card in devices}
        ordered = []
        for name in settings.device_names:
            card = by_name.get(name.lower())
            if card is None and is_known:
                here = ", ".join(card.name for card in devices) or "none"
                findings.append(
                    error(
                        "unknown-device",
                        f"-dev {name[:40]}: no such card here ({here}); llama.cpp stops with"
                        " 'invalid device'",
                        f"-dev {','.join(card.name for card in devices)}" if devices else "",
                    )
                )
            elif card is not None and card not in ordered:
                ordered.append(card)
    if settings.split_mode == "none" and ordered:
        i = settings.main_gpu
        if i >= len(ordered):
            findings.append(
                error(
                    "unknown-device",
                    f"-mg {i}: there are {len(ordered)} cards, counted from 0; llama.cpp"
                    " stops with 'invalid value for main_gpu'",
                    "-mg 0",
                )
            )
        ordered = [] if i < 0 else [ordered[min(i, len(ordered) - 1)]]
    return tuple(ordered), findings


def plan_options(
    model: Model,
    settings: Settings,
    devices: Sequence[Device],
    rules: Sequence[Rule],
    margin_bytes: tuple[int, ...],
) -> PlanOptions:
    """The user's settings as a plan's options, what llama.cpp chooses by itself filled in."""
    type_k, type_v = cache_types(model, settings)
    shares = settings.tensor_split
    if shares is not None:
        shares = (*shares, *(0.0,) * len(devices))[: len(devices)]
    if len(devices) < 2:
        shares = None
    elif shares is None or not any(shares):
        shares = tuple(float(card.memory_free_bytes) for card in devices)
    return PlanOptions(
        n_ctx=settings.n_ctx or 0,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        n_parallel=settings.n_parallel,
        kv_unified=settings.kv_unified,
        type_k=type_k,
        type_v=type_v,
        flash_attn=settings.flash_attn,
        swa_full=settings.swa_full,
        offload_kqv=settings.offload_kqv,
        op_offload=settings.op_offload,
        no_host=settings.no_host,
        n_gpu_layers=settings.n_gpu_layers,
        tensor_split=shares,
        override_rules=tuple(rules),
        load_mode=settings.load_mode,
        margin_bytes=margin_bytes if len(margin_bytes) in (1, len(devices)) else margin_bytes[:1],
        strategy=Strategy.NONE,
    )


def cannot_be_priced(why: OffloadError) -> Finding:
    """The planner refuses what llama.cpp may take."""
    return note("cannot-be-priced", f"memory per card is not known: {why}")


def price_case(
    model: Model,
    devices: Sequence[Device],
    options: PlanOptions,
    host_free_bytes: int | None,
) -> tuple[Plan | None, list[Finding]]:
    """The user's own placement, or why it cannot be priced."""
    try:
        made = make_plan(
            model, devices, options, host_free_bytes=host_free_bytes, with_advice=False
        )
    except OffloadError as why:
        return None, [cannot_be_priced(why)]
    return made, []


def usable_rules(matches: Sequence[Match], devices: Sequence[Device]) -> tuple[Rule, ...]:
    """The rules that can be placed on these cards, as the planner takes them.

    Those that find nothing stay out, one excepted: any rule ends pipeline parallelism.
    """
    known = {*buffer_types(devices), *(card.name for card in devices)}
    placeable = [m for m in matches if m.rule.buffer_type in known]
    telling = [m.rule.rule for m in placeable if m.found]
    return tuple(telling) or tuple(m.rule.rule for m in placeable[:1])


def own_rules(matches: Sequence[Match], devices: Sequence[Device]) -> tuple[Rule, ...]:
    """The same without those that `-cmoe` and `-ncmoe` stand for."""
    kept = [m for m in matches if m.rule.flag not in ("-cmoe", "-ncmoe")]
    return usable_rules(kept, devices)


def ik_options(plan: Plan) -> PlanOptions:
    """The options of the same command for ik_llama.cpp, whose `-ts` shares out bytes.

    A card's range ends at the layer whose end lies nearest to the card's share of all bytes
    (`llm_load_tensors`, src/llama.cpp of ik_llama.cpp; see offload/emit/ik.py).
    """
    shares, sizes = plan.options.tensor_split, make_launch(plan).layer_bytes
    if shares is None or not any(shares) or not any(sizes):
        return plan.options
    ends = (0, *accumulate(sizes))
    wanted = [share / sum(shares) * ends[-1] for share in accumulate(shares)]
    reached = [min(range(len(ends)), key=lambda u: abs(ends[u] - w)) for w in wanted]
    reached[-1] = len(sizes)
    counts = [max(b - a, 0) for a, b in zip([0, *reached], reached, strict=False)]
    return replace(plan.options, tensor_split=tuple(map(float, counts)))


def owner_name(plan: Plan, device: int) -> str:
    """`CUDA1`, or `the host`."""
    return "the host" if device == HOST else plan.devices[device].name


def cache_types(model: Model, settings: Settings) -> tuple[GGMLType, GGMLType]:
    """The cache types, or those nearest that llama.cpp takes, so that the rest can be priced."""
    hp, k, v = model.hparams, settings.type_k, settings.type_v
    has_flash = settings.flash_attn is not False and model.has_flash_attn
    if v.is_quantized and not has_flash:
        v = F16
    if (hp.is_mla or model.arch == "deepseek4") and k is not v:
        v = k
    if has_flash:
        layers = range(hp.n_layer_all - hp.n_layer_nextn)
        if any(hp.n_embd_head_k(il) % k.block_size for il in layers):
            k = F16
        if any(hp.n_embd_head_v(il) % v.block_size for il in layers):
            v = F16
    # keys and values of such a cache are one, and so have one type
    if (hp.is_mla or model.arch == "deepseek4") and (k is not v or not has_flash):
        k = v = k if not k.is_quantized else F16
    return k, v
