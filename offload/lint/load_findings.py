"""What costs speed although it fits: how weights are loaded, who streams, what is clamped?

Sources: `select_weight_buft` and the pinned host buffers (src/llama-model.cpp), op offload to
the first device that takes it (`ggml_backend_sched_backend_id_from_cur`,
ggml/src/ggml-backend.cpp), the batch limits of `llama_context` (src/llama-context.cpp), b11434.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from offload.errors import OffloadError
from offload.lint.case import Case
from offload.lint.command import Program
from offload.lint.finding import Finding, note, warning
from offload.model import Tensor
from offload.plan import Plan, make_plan
from offload.split import HOST
from offload.units import format_gib


def load_findings(case: Case) -> Iterator[Finding]:
    """Findings about loading, streaming, batches and drafts."""
    yield from _batches(case)
    yield from _draft(case)
    plan = case.plan
    if plan is None or not plan.devices:
        return
    yield from _needless_rpc(case, plan)
    on_host = host_experts(plan)
    if on_host:
        yield from _mapped(case, plan, on_host)
        yield from _streaming(case, plan)


def _needless_rpc(case: Case, plan: Plan) -> Iterator[Finding]:
    """Every device more is a crossing more, and over a network it costs most."""
    local = [card for card in plan.devices if card.endpoint is None]
    if not local or len(local) == len(plan.devices) or plan.short_bytes:
        return
    if plan.model.size_bytes > sum(card.memory_free_bytes for card in local):
        return
    shares = tuple(float(card.memory_free_bytes) for card in local) if local[1:] else None
    options = replace(
        plan.options, tensor_split=shares, override_rules=(), margin_bytes=plan.margins_bytes[:1]
    )
    try:
        alone = make_plan(
            plan.model,
            local,
            options,
            host_free_bytes=plan.host_free_bytes,
            with_advice=False,
        )
    except OffloadError:
        return
    if alone.feasible:
        names = ",".join(card.name for card in local)
        yield warning(
            "rpc-not-needed",
            f"all of it fits on {names}: each RPC device adds a crossing of the network to every"
            " token, and a slow one has been seen to cost a factor of five",
            f"-dev {names}, without --rpc",
        )


def host_experts(plan: Plan) -> list[Tensor]:
    """Routed experts that this placement keeps on the host."""
    owners, placed = plan.split.owners, plan.placement.placed
    return [
        t
        for t in plan.model.expert_tensors
        if placed.get(t.name, owners[t.il] if t.il is not None else HOST) == HOST
    ]


def _mapped(case: Case, plan: Plan, on_host: list[Tensor]) -> Iterator[Finding]:
    settings = case.settings
    is_mapped = settings.load_mode in ("auto", "mmap", "mmap+mlock")
    pins = any(card.backend.has_pinned_host_buffer for card in plan.devices)
    if not is_mapped or not pins or settings.no_host:
        return
    n_bytes = sum(t.n_bytes for t in on_host)
    yield warning(
        "mmap-with-host-experts",
        f"{format_gib(n_bytes)} of experts on the host are mapped from the file: not in pinned"
        " memory, so that copying them to a card for prefill is slower, and the first use reads"
        " them from disk",
        "--no-mmap" if settings.is_ik else "--load-mode none",
    )


def _streaming(case: Case, plan: Plan) -> Iterator[Finding]:
    cards = plan.devices
    if len(cards) < 2 or not case.settings.op_offload:
        return
    takers = [d for d, card in enumerate(cards) if card.backend.offloads_ops]
    if not takers:
        return
    first = cards[takers[0]]
    links = [cards[d].link_bytes_per_s for d in takers]
    known = [link for link in links if link is not None]
    best = max(known, default=0)
    if first.link_bytes_per_s is not None and best > first.link_bytes_per_s:
        fastest = next(cards[d] for d in takers if cards[d].link_bytes_per_s == best)
        order = [fastest.name, *(card.name for card in cards if card is not fastest)]
        yield warning(
            "slow-link-first",
            f"for prefill the experts on the host are copied to {first.name} only, the first card"
            f" that takes such work, over {first.link_bytes_per_s / 1e9:.1f} GB/s; {fastest.name}"
            f" has {best / 1e9:.1f} GB/s",
            f"-dev {','.join(order)}",
        )
    else:
        yield note(
            "prefill-on-first-card",
            f"for prefill the experts on the host are copied to {first.name} only, whichever card"
            f" owns the layer; the links of the other {len(takers) - 1} card(s) stay idle",
            "the card with the widest link first in -dev; a larger -ub copies them less often",
        )


def _batches(case: Case) -> Iterator[Finding]:
    settings = case.settings
    if settings.n_ubatch > settings.n_batch:
        yield warning(
            "ubatch-above-batch",
            f"-ub {settings.n_ubatch} is more than -b {settings.n_batch} and is cut down to it",
            f"-b {settings.n_ubatch} -ub {settings.n_ubatch}",
        )
    n_prompt = settings.n_prompt
    if case.command.kind is Program.BENCH and n_prompt and settings.n_ubatch > n_prompt:
        yield warning(
            "bench-ubatch-clamped",
            f"-ub {settings.n_ubatch} is more than the longest prompt, -p {n_prompt}: llama-bench"
            " makes the context as long as the prompt, and that limits batch and ubatch, so that"
            " larger ones measure the same",
            f"-p {settings.n_ubatch}",
        )


def _draft(case: Case) -> Iterator[Finding]:
    settings = case.settings
    has_rules = any(o.flag in ("-ot", "-cmoe", "-ncmoe") for o in settings.overrides)
    if not settings.has_draft_model or settings.draft_has_overrides or not has_rules:
        return
    yield note(
        "draft-inherits-overrides",
        "builds before August 2025 apply the rules to the draft model as well, whose experts then"
        " run on the host; newer ones apply none of them to it",
        "say where the draft goes: -otd 'RULE=BUFFER', --n-cpu-moe-draft N or -ngld 99",
    )
