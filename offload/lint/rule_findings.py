"""What is wrong with the override rules: what they find, what they miss, what they say?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from offload.backend import backend_of
from offload.errors import DeviceError
from offload.layer_regex import layer_regex
from offload.lint.case import Case, buffer_types
from offload.lint.finding import Finding, error, warning
from offload.lint.user_rules import Match, UserRule
from offload.model import Role, Tensor
from offload.render.text import ranges
from offload.units import format_mib

_BRACKETS: Final = re.compile(r"\[(\d*)(\d)-(\d+)\]", re.ASCII)
_BARRED: Final = re.compile(r"\[[^\]]*\|[^\]]*\]")
_GLOB: Final = re.compile(r"(?<!\\)(?P<before>[A-Za-z0-9_])\*|^\*")
_LOOSE_NUMBER: Final = re.compile(
    r"(blk\\?\.(?:\d+|\([\d|]+\)))(\.(?![*+?{])|(?=\.[*+])|$)", re.ASCII
)
_UNINTENDED: Final = (Role.NORM, Role.ROUTER, Role.SHARED_EXPERT, Role.ATTENTION, Role.RECURRENT)
_ROLE_NAMES: Final = {
    Role.NORM: "norms",
    Role.ROUTER: "routers",
    Role.SHARED_EXPERT: "shared experts",
    Role.ATTENTION: "attention",
    Role.RECURRENT: "recurrent layers",
}
_RULES_TOLD_MAX: Final = 12


def rule_findings(case: Case) -> Iterator[Finding]:
    """Everything about `-ot` rules; those that flags stand for are llama.cpp's own and right."""
    seen: set[tuple[str, str]] = set()
    told = 0
    matches = {(m.rule.pattern, m.rule.buffer_type): m for m in case.matches}
    for rule in case.rules:
        key = (rule.pattern, rule.buffer_type)
        if rule.flag != "-ot" or key in seen or told >= _RULES_TOLD_MAX:
            continue
        seen.add(key)
        found = [*_form(rule), *_buffer(case, rule)]
        if key in matches:
            found += _extent(case, matches[key], misspelt=bool(found))
        told += bool(found)
        yield from found


def _form(rule: UserRule) -> Iterator[Finding]:
    """What can be seen in the pattern alone."""
    for match in _BRACKETS.finditer(rule.pattern):
        if not match[1] and len(match[3]) == 1:
            continue
        low, high = int(match[1] + match[2]), int(match[3])
        meant = layer_regex(range(low, high + 1), _others(low, high)) if low <= high < 1000 else ""
        yield warning(
            "class-as-number",
            f"{rule.text}: {match[0]} stands for one character ({_characters(match)}), not for"
            f" the numbers {low} to {high}",
            rule.pattern.replace(match[0], meant) + f"={rule.buffer_type}" if meant else "",
        )
    if barred := _BARRED.search(rule.pattern):
        inside = barred[0][1:-1]
        yield warning(
            "class-as-number",
            f"{rule.text}: inside {barred[0]} a '|' is just a character; alternatives stand in (…)",
            rule.pattern.replace(barred[0], f"({inside})") + f"={rule.buffer_type}",
        )
    if re.search(r"\s", rule.pattern):
        yield warning(
            "glob-or-space-in-rule",
            f"{rule.text!r}: there is a blank in the pattern, and no tensor's name has one",
            re.sub(r"\s+", "", rule.pattern) + f"={rule.buffer_type.strip()}",
        )
    elif _GLOB.search(rule.pattern):
        yield warning(
            "glob-or-space-in-rule",
            f"{rule.text}: '*' repeats the character before it; a pattern is no file name with"
            " wildcards",
            _GLOB.sub(r"\g<before>.*", rule.pattern) + f"={rule.buffer_type}",
        )


def _others(low: int, high: int) -> list[int]:
    return [n for n in range(2 * high + 100) if not low <= n <= high]


def _characters(match: re.Match[str]) -> str:
    """What `[0-10]` really stands for."""
    codes = (
        set(match[1])
        | {chr(c) for c in range(ord(match[2]), ord(match[3][0]) + 1)}
        | set(match[3][1:])
    )
    return " or ".join(sorted(codes))


def _buffer(case: Case, rule: UserRule) -> Iterator[Finding]:
    """A buffer type that is not there: llama.cpp stops while it reads the command."""
    name = rule.buffer_type
    if case.machine.devices is None:
        try:
            known = name == "CPU" or backend_of(name.partition("[")[0])[1] == name.partition("[")[0]
        except DeviceError:
            known = False
        listed = "CPU, CUDA0, Vulkan0, …"
    else:
        everywhere = buffer_types(case.machine.devices)
        known = name in everywhere
        listed = ", ".join(everywhere)
    if not known:
        near = "CPU" if name.strip().lower() in ("cpu", "host", "ram") else ""
        near = near or next((b for b in listed.split(", ") if b.lower() == name.lower()), "")
        yield error(
            "unknown-buffer",
            f"{rule.text}: there is no buffer type {name[:40]!r} here ({listed}); llama.cpp stops"
            " with 'unknown buffer type'",
            f"{rule.pattern}={near}" if near else "",
        )
    elif case.machine.devices is not None and name not in buffer_types(case.devices):
        yield error(
            "unknown-buffer",
            f"{rule.text}: {name} is not among the cards this command uses"
            f" ({', '.join(card.name for card in case.devices) or 'none'}); nothing computes there",
            "name it in -dev, or send the tensors to a card that is",
        )


def _extent(case: Case, match: Match, *, misspelt: bool) -> Iterator[Finding]:
    """What the rule finds in this model."""
    assert case.model is not None
    tensors = case.tensors
    mtp = case.model.n_layer - case.model.n_layer_nextn
    with_mtp = case.settings.drafts_with_mtp
    loaded = {
        name
        for name in match.found
        if tensors[name].loaded or (with_mtp and (tensors[name].il or 0) >= mtp)
    }
    if not loaded:
        why = "" if not match.found else " that is loaded (an MTP block is not)"
        example = next((t.name for t in case.model.expert_tensors), case.model.tensor_names[-1])
        yield warning(
            "rule-matches-nothing",
            f"{match.rule.text}: it finds no tensor of this model{why}; names look like {example}",
            "" if misspelt else "leave it out, or write the name as the model has it",
        )
        return
    if not match.taken:
        yield warning(
            "rule-shadowed",
            f"{match.rule.text}: all {len(match.found)} tensors it finds are taken by rules before"
            " it, and the first rule that finds a tensor counts",
            "put it before them, or leave it out",
        )
        return
    yield from _too_many_layers(case, match, loaded)
    yield from _merged_experts(case, match)
    taken = [tensors[name] for name in match.taken & loaded]
    yield from _too_many_roles(match, taken, case.model.n_layer)


def _merged_experts(case: Case, match: Match) -> Iterator[Finding]:
    """A pattern for gate and up experts in a model that has both in one tensor."""
    assert case.model is not None
    layers = {case.tensors[name].il for name in match.found}
    merged = [
        t
        for t in case.model.expert_tensors
        if "ffn_gate_up_exps" in t.name and t.il in layers and t.name not in match.found
    ]
    pattern = match.rule.pattern
    if merged and "gate" in pattern and "up" in pattern:
        yield warning(
            "rule-misses-merged-experts",
            f"{match.rule.text}: this model keeps gate and up experts in one tensor, e.g."
            f" {merged[0].name}, which the rule does not find:"
            f" {format_mib(sum(t.n_bytes for t in merged))} stay where they were",
            r"\.ffn_(up|down|gate|gate_up)_(ch|)exps" + f"={match.rule.buffer_type}",
        )


def _too_many_layers(case: Case, match: Match, loaded: set[str]) -> Iterator[Finding]:
    """`blk.1` also finds `blk.10`: the number is not closed by an escaped dot."""
    strict = _LOOSE_NUMBER.sub(r"\1\\.", match.rule.pattern)
    if strict == match.rule.pattern or case.matcher is None:
        return
    meant = case.matcher.found_by(strict)
    if not meant:
        return
    tensors = case.tensors
    extra = sorted({tensors[n].il or 0 for n in loaded} - {tensors[n].il or 0 for n in meant})
    if extra:
        yield warning(
            "rule-matches-too-much",
            f"{match.rule.text}: it finds the layers {ranges(extra)} as well, since nothing ends"
            " the number (a plain '.' is any character)",
            f"{strict}={match.rule.buffer_type}",
        )


def _too_many_roles(match: Match, tensors: list[Tensor], n_layer: int) -> Iterator[Finding]:
    """Experts were meant, and what every token needs goes with them."""
    roles = Counter(t.role for t in tensors)
    extra = [role for role in _UNINTENDED if roles[role]]
    if not roles[Role.EXPERT] or not extra or match.rule.buffer_type != "CPU":
        return  # on another card it is a question of who owns the layer
    n_bytes = sum(t.n_bytes for t in tensors if t.role in extra)
    example = next(t.name for t in tensors if t.role in extra)
    kinds = ", ".join(f"{roles[role]} {_ROLE_NAMES[role]}" for role in extra)
    layers = sorted({t.il for t in tensors if t.role is Role.EXPERT and t.il is not None})
    number = layer_regex(layers, [il for il in range(n_layer) if il not in set(layers)])
    yield warning(
        "rule-matches-too-much",
        f"{match.rule.text}: besides experts it takes {kinds} ({format_mib(n_bytes)}, e.g."
        f" {example}), which every token needs and which belong beside their layer's attention",
        rf"blk\.{number}\.ffn_(up|down|gate|gate_up)_(ch|)exps={match.rule.buffer_type}",
    )
