"""Do the flags for experts do what was hoped, on the card it was hoped for?

A layer's KV cache and norms follow the layer's owner whatever a rule says
(`llama_kv_cache`, src/llama-kv-cache.cpp, b11434), and `-ncmoe N` counts blocks from
the first, which the first card owns.
"""

from __future__ import annotations

from collections.abc import Iterator

from offload.device import Device
from offload.lint.case import Case, owner_name
from offload.lint.finding import Finding, note, warning
from offload.model import Model, Role, Tensor
from offload.plan import Plan
from offload.priors.cards import find_card
from offload.render.text import ranges
from offload.split import HOST
from offload.units import format_mib


def expert_findings(case: Case) -> Iterator[Finding]:
    """Findings about `-ncmoe`, `-cmoe`, `-ncffn` and where experts end up."""
    model = case.model
    if model is None:
        return
    yield from _counts(case, model)
    yield from _dense_flags(case, model)
    yield from _biases(case)
    yield from _mtp(case, model)
    if case.plan is not None and len(case.plan.devices) > 1:
        yield from _strays(case)


def _n_layers(case: Case, flag: str) -> int:
    return max((o.n_layers for o in case.settings.overrides if o.flag == flag), default=0)


def _counts(case: Case, model: Model) -> Iterator[Finding]:
    n = _n_layers(case, "-ncmoe")
    layers = model.expert_layers
    if not n or not layers:
        return
    last = layers[-1]
    if n > last + 1:
        mtp = (
            f"; the {model.n_layer_nextn} MTP block(s) at the end are counted as layers but not"
            " loaded"
            if model.n_layer_nextn
            else ""
        )
        yield note(
            "ncmoe-beyond-layers",
            f"-ncmoe {n}: experts stand in the blocks {layers[0]} to {last}, so this is the same"
            f" as all of them{mtp}",
            "-cmoe",
        )
    dense = [il for il in range(min(n, last)) if il not in set(layers)]
    if dense and n <= last:
        yield note(
            "ncmoe-counts-dense-layers",
            f"-ncmoe {n} counts blocks, and {ranges(dense)} have no experts: it moves the experts"
            f" of {n - len(dense)} layers",
            f"-ncmoe {n + len(dense)}" if n + len(dense) <= last else "",
        )


def _dense_flags(case: Case, model: Model) -> Iterator[Finding]:
    flags = {o.flag for o in case.settings.overrides}
    if not model.expert_tensors and flags & {"-ncmoe", "-cmoe"}:
        yield warning(
            "moe-flag-on-dense",
            "-cmoe and -ncmoe move routed experts, and this model has none: nothing moves",
            "-ncffn N for the feed-forward weights of a dense model, or fewer -ngl",
        )
    if "-ncffn" not in flags:
        return
    moved = {name for m in case.matches if m.rule.flag == "-ncffn" for name in m.taken}
    n = _n_layers(case, "-ncffn")
    if model.expert_tensors:
        what = f"{len({n.split('.')[1] for n in moved})} dense layer(s)" if moved else "nothing"
        yield warning(
            "ncpu-ffn-on-moe",
            f"-ncffn {n} moves dense feed-forward weights only; the experts, nearly all of this"
            f" model, stay on the cards: it moves {what}",
            f"-ncmoe {n}",
        )


def _biases(case: Case) -> Iterator[Finding]:
    tensors = case.tensors
    moved = [
        tensors[name]
        for m in case.matches
        if m.rule.buffer_type == "CPU"
        for name in m.taken
        if tensors[name].role is Role.EXPERT and tensors[name].part == "bias"
    ]
    if not moved:
        return
    flags = ", ".join(dict.fromkeys(m.rule.flag for m in case.matches if m.taken))
    yield note(
        "expert-biases-on-host",
        f"{flags}: the pattern takes {len(moved)} expert biases along"
        f" ({format_mib(sum(t.n_bytes for t in moved))}); on gpt-oss that was measured to cost"
        " prefill",
        r"-ot 'blk\.(…)\.ffn_(up|down|gate)_exps\.weight=CPU'",
    )


def _mtp(case: Case, model: Model) -> Iterator[Finding]:
    """The MTP block runs more than once for each token: the worst layer to leave on the host."""
    if not model.n_layer_nextn or not case.settings.drafts_with_mtp:
        return
    first = model.n_layer - model.n_layer_nextn
    tensors = case.tensors
    moved = [
        m.rule
        for m in case.matches
        if m.rule.buffer_type == "CPU" and any((tensors[name].il or 0) >= first for name in m.taken)
    ]
    on_host = case.plan is not None and case.plan.split.owners[first] == HOST
    if moved or on_host:
        rule = f"{moved[0].text} sends" if moved else "-ngl leaves"
        yield warning(
            "mtp-on-host",
            f"{rule} weights of the MTP block {first} to the host, and it runs about 2.4 times for"
            " each accepted token: measured at -37 % where an ordinary layer cost -23 %",
            "keep the MTP block on a card, or draft without it (no --spec-type draft-mtp)",
        )


def _strays(case: Case) -> Iterator[Finding]:
    """Weights ruled to a card that does not own their layer."""
    plan = case.plan
    assert plan is not None
    tensors = case.tensors
    experts: dict[int, list[Tensor]] = {}
    others: dict[int, list[Tensor]] = {}
    for name, device in plan.placement.placed.items():
        tensor = tensors[name]
        if device == HOST or tensor.il is None or plan.split.owners[tensor.il] == device:
            continue
        if tensor.role is Role.EXPERT:
            experts.setdefault(device, []).append(tensor)
        elif tensor.role in (Role.ATTENTION, Role.RECURRENT):
            others.setdefault(device, []).append(tensor)
    for device, strays in experts.items():
        is_slower = all(_is_slower(plan, device, plan.split.owners[t.il or 0]) for t in strays)
        yield (note if is_slower else warning)(
            "expert-off-its-owner",
            f"experts of {_layers(strays)} ({format_mib(sum(t.n_bytes for t in strays))}) are ruled"
            f" to {owner_name(plan, device)}, but {_owners(case, strays)}: each such layer costs"
            " two more crossings between devices per token",
            "worth it only where the owner is clearly faster, which offload plan works out;"
            " else give the card the whole layer by -ts, and rule only to CPU",
        )
    for device, strays in others.items():
        yield warning(
            "kv-elsewhere",
            f"attention weights of {_layers(strays)} are ruled to {owner_name(plan, device)}, but"
            f" {_owners(case, strays)} and keeps their KV cache: -ot moves weights only",
            "give the card the layers by -ts; the KV cache follows them",
        )
    apart = _up_gate_apart(case)
    if apart:
        yield warning(
            "up-gate-apart",
            f"up and gate experts of the layers {ranges(apart)} are on different cards, although"
            " they are computed together",
            "rule up and gate of a layer to one device",
        )


def _is_slower(plan: Plan, device: int, owner: int) -> bool:
    """Whether a card is known to read slower than another: experts may be well placed there."""
    if owner == HOST:
        return False
    rates = [_bandwidth(plan.devices[d]) for d in (device, owner)]
    return None not in rates and (rates[0] or 0.0) < (rates[1] or 0.0)


def _bandwidth(device: Device) -> float | None:
    """Bytes a second, as described or by the data sheet of a card of that name."""
    if device.bandwidth_bytes_per_s is not None:
        return float(device.bandwidth_bytes_per_s)
    sheet = find_card(device.description)
    return None if sheet is None else sheet.bandwidth_gb_per_s * 1e9


def _up_gate_apart(case: Case) -> list[int]:
    plan = case.plan
    assert plan is not None and case.model is not None
    sites: dict[int, set[int]] = {}
    for tensor in case.model.expert_tensors:
        if tensor.il is not None and ("ffn_up_" in tensor.name or "ffn_gate_" in tensor.name):
            owner = plan.split.owners[tensor.il]
            sites.setdefault(tensor.il, set()).add(plan.placement.placed.get(tensor.name, owner))
    return sorted(il for il, devices in sites.items() if len(devices - {HOST}) > 1)


def _layers(tensors: list[Tensor]) -> str:
    return "the layers " + ranges(sorted({t.il for t in tensors if t.il is not None}))


def _owners(case: Case, tensors: list[Tensor]) -> str:
    assert case.plan is not None
    owners = sorted({case.plan.split.owners[t.il] for t in tensors if t.il is not None})
    names = " and ".join(owner_name(case.plan, owner) for owner in owners)
    return f"{names} owns those layers"
