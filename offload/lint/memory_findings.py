"""Which card stays over budget, by how much, and which rule would relieve it?

The trap this answers: `-sm layer` gives each card a contiguous range, so relief by
"the first N layers" never reaches the last card, whose demand does not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from offload.errors import OffloadError
from offload.lint.case import Case
from offload.lint.finding import Finding, error, note, warning
from offload.model import Tensor
from offload.plan import Plan, make_plan
from offload.render.text import ranges
from offload.rules import Rule, make_rules
from offload.split import HOST
from offload.units import format_gib, format_mib

_NO_TENSOR = Rule(pattern="^$", buffer_type="CPU")
"""Finds nothing, yet switches pipeline parallelism off."""


def memory_findings(case: Case) -> Iterator[Finding]:
    """Findings about bytes; none where cards or model are unknown."""
    plan = case.plan
    if plan is None:
        return
    yield from _context(case)
    for device in range(len(plan.devices)):
        yield from _card(case, plan, device)
    yield from _first_card_only(case, plan)
    yield from _host(case, plan)
    yield from _pipeline(case, plan)
    yield from _not_counted(case)


def over_bytes(plan: Plan, device: int) -> int:
    """How much more than it has a card would need; negative where it fits."""
    return plan.memory.devices[device].total_bytes - plan.devices[device].memory_free_bytes


def _context(case: Case) -> Iterator[Finding]:
    full, reduced = case.plan_at_full_context, case.plan
    if full is None or reduced is None or not case.context_is_reduced:
        return
    yield warning(
        "context-shrinks",
        f"without -c the training context of {full.context.n_ctx} is wanted, which does not fit;"
        f" --fit then takes what is free, at least {case.settings.fit_ctx}. Figures here are for"
        f" {reduced.context.n_ctx}",
        "-c N, so that the context is the one you chose",
    )


def _card(case: Case, plan: Plan, device: int) -> Iterator[Finding]:
    card, used = plan.devices[device], plan.memory.devices[device]
    over = over_bytes(plan, device)
    if over <= 0 <= plan.headroom_bytes(device):
        return
    needs = (
        f"{card.name} needs {format_mib(used.total_bytes)} (weights"
        f" {format_mib(used.model_bytes)}, context {format_mib(used.context_bytes)}, compute"
        f" {format_mib(used.compute_bytes)}) of {format_mib(card.memory_free_bytes)} free"
    )
    if over <= 0:
        yield warning(
            "card-over-margin",
            f"{needs}: it fits, but leaves {format_mib(-over)} of the margin of"
            f" {format_mib(plan.margins_bytes[device])}. Long prompts and other programs take more"
            " later, and a driver that pages then is up to 13 times slower instead of failing",
            _relief(case, plan, device),
        )
        return
    text = f"{needs}: {format_mib(over)} over. {_owned(plan, device)}"
    if case.is_fitted:
        yield warning(
            "fit-decides",
            f"{text}. Nothing in the command says where experts go, so --fit moves things at load"
            " time, by the memory that is free then and without regard to speed",
            "plan it: the corrected command below says everything",
        )
    else:
        yield error("card-over-budget", text, _relief(case, plan, device))


def _owned(plan: Plan, device: int) -> str:
    """The layers a card owns, and whether anything relieves them."""
    layers = plan.split.layers_of(device)
    output = " and the output layer" if plan.split.output_owner == device else ""
    owned = f"It owns the layers {ranges(layers)}{output}" if layers else "It owns no layer"
    if not plan.model.expert_tensors or not layers:
        return owned
    relieved = plan.experts_on_host(device)
    if relieved:
        return f"{owned}; experts of {ranges(relieved)} are on the host"
    return f"{owned}; the experts of none of them are on the host"


def relieving_tensors(plan: Plan, device: int) -> list[Tensor] | None:
    """Experts of this card's own first layers, enough to fit; None where all are too few."""
    missing = -plan.headroom_bytes(device)
    owners, placed = plan.split.owners, plan.placement.placed
    chosen: list[Tensor] = []
    by_layer: dict[int, list[Tensor]] = {}
    for tensor in plan.model.expert_tensors:
        il = tensor.il or 0
        if placed.get(tensor.name, owners[il]) == device:
            by_layer.setdefault(il, []).append(tensor)
    for il in sorted(by_layer):
        if missing <= 0:
            break
        chosen += by_layer[il]
        missing -= sum(t.n_bytes for t in by_layer[il])
    return chosen if missing <= 0 else None


def _relief(case: Case, plan: Plan, device: int) -> str:
    """The rule that would bring this card within its margin, alone."""
    if not plan.model.expert_tensors:
        return "fewer -ngl, or a smaller share for it in -ts"
    chosen = relieving_tensors(plan, device)
    name = plan.devices[device].name
    if not chosen:
        return (
            f"even with all experts of its layers on the host {name} is short: give it fewer layers"
            " by -ts, or a smaller context (-c, -ctk q8_0 -ctv q8_0)"
        )
    rule = make_rules({t.name for t in chosen}, plan.model.tensor_names)[0]
    layers = sorted({t.il for t in chosen if t.il is not None})
    return (
        f"send the experts of its own layers {ranges(layers)} to the host: -ot '{rule.pattern}=CPU'"
    )


def _first_card_only(case: Case, plan: Plan) -> Iterator[Finding]:
    """`-ncmoe N` spent on the cards before the one that is short."""
    n = max((o.n_layers for o in case.settings.overrides if o.flag == "-ncmoe"), default=0)
    if not n or len(plan.devices) < 2:
        return
    with_experts = set(plan.model.expert_layers)
    relieved, own = [], []
    for d in range(len(plan.devices)):
        relieved.append(len(plan.experts_on_host(d)))
        own.append(len(with_experts.intersection(plan.split.layers_of(d))))
    for d, card in enumerate(plan.devices):
        if over_bytes(plan, d) <= 0 or relieved[d] == own[d] or not any(relieved[:d]):
            continue
        first = min(plan.split.layers_of(d))
        shares = ", ".join(
            f"{relieved[i]} of the {own[i]} layers of {other.name}"
            for i, other in enumerate(plan.devices)
        )
        newer = (
            " (ik_llama.cpp since March 2026 spreads N over the cards by itself)"
            if case.settings.is_ik
            else ""
        )
        yield warning(
            "ncmoe-relieves-first-card-only",
            f"-ncmoe {n} relieves the first layers of the model, not of each card: experts of"
            f" {shares} are on the host. {card.name} begins at layer {first}, so what it asks for"
            f" does not move until N is above {first}{newer}",
            "spread the relief over each card's own layers (see card-over-budget)",
        )
        return


def _host(case: Case, plan: Plan) -> Iterator[Finding]:
    short = plan.short_bytes.get(HOST)
    if not short:
        return
    used = plan.memory.host.total_bytes
    text = f"{format_gib(used)} are to stand in host memory, {format_gib(short)} more than is free"
    if case.settings.load_mode in ("none", "mlock", "mmap+mlock", "dio"):
        yield error(
            "pinned-beyond-host-ram",
            f"{text}, and -lm {case.settings.load_mode} keeps all of it resident",
            "-lm mmap to read from disk (slow), or less on the host: a smaller quantisation",
        )
    else:
        yield warning(
            "pinned-beyond-host-ram",
            f"{text}: mapped weights are then read from disk again and again",
            "a smaller quantisation, or more on the cards",
        )


def _pipeline(case: Case, plan: Plan) -> Iterator[Finding]:
    """Copies of the inputs for pipeline parallelism, where they are what is missing."""
    if case.settings.is_ik and case.rules and len(plan.devices) > 1:
        yield warning(
            "pipeline-copies",
            "ik_llama.cpp keeps GGML_SCHED_MAX_COPIES=4 copies of the inputs on several cards, also"
            " with overrides; allocations of hundreds of GiB on device 0 were seen",
            "build it with -DGGML_SCHED_MAX_COPIES=1",
        )
    if plan.placement.has_rules or len(plan.devices) < 2:
        return
    if all(over_bytes(plan, d) <= 0 for d in range(len(plan.devices))):
        return
    try:
        without = make_plan(
            plan.model,
            plan.devices,
            replace(plan.options, override_rules=(_NO_TENSOR,)),
            with_advice=False,
        )
    except OffloadError:
        return
    saved = [
        a.compute_bytes - b.compute_bytes
        for a, b in zip(plan.memory.devices, without.memory.devices, strict=True)
    ]
    if max(saved) > 64 << 20:
        listed = ", ".join(
            f"{card.name} {format_mib(n)}" for card, n in zip(plan.devices, saved, strict=True)
        )
        yield note(
            "pipeline-copies",
            f"without any rule llama.cpp keeps copies of the inputs to work on several cards at"
            f" once; any -ot switches that off and frees {listed}",
            "one -ot rule of any kind, or a smaller -ub",
        )


def _not_counted(case: Case) -> Iterator[Finding]:
    settings = case.settings
    parts: Sequence[tuple[bool, str]] = (
        (settings.has_draft_model, "the draft model"),
        (settings.drafts_with_mtp, "the MTP block and its context"),
        (settings.has_projector, "the multimodal projector"),
    )
    named = [what for is_there, what in parts if is_there]
    if named:
        yield note(
            "extra-memory-not-counted",
            f"{' and '.join(named)} need memory of their own, which is not in these figures",
            "leave room for it: --margin",
        )
