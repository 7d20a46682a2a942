"""Which `-ot` rules put exactly these tensors there, and what do given rules match?

Mirrors `parse_tensor_buffer_overrides` (common/arg.cpp) and the override loop
of `llama_model_loader::create_tensor` (src/llama-model-loader.cpp, b11434): the
value is split at `,`, then at the first `=`, so a pattern holds neither; a
pattern is searched anywhere in the tensor's name; the first that matches wins.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from offload.ecmascript import compile_pattern
from offload.errors import UsageError
from offload.layer_regex import layer_regex

HOST: Final = "CPU"
"""The buffer type of the host, as `-ot` names it."""

RULES_MAX: Final = 4096
"""`llama_max_tensor_buft_overrides()` (src/llama.cpp, b11434)."""

EXPERTS: Final = r"ffn_(up|down|gate_up|gate)_(ch|)exps"
"""llama.cpp's own pattern of routed experts (`LLM_FFN_EXPS_REGEX`, common/common.h)."""

_ANY_EXPERT: Final = "ffn_.*exps"
_NAME: Final = re.compile(r"blk\.(\d+)\.(.+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Tensors whose name `pattern` finds go to `buffer_type`."""

    pattern: str
    buffer_type: str


@dataclass(frozen=True, slots=True)
class _Names:
    """All tensor names by layer, as the part behind `blk.<il>.`."""

    by_layer: Mapping[int, frozenset[str]]
    elsewhere: frozenset[str]


def make_rules(moved: Mapping[str, str], names: Sequence[str]) -> tuple[Rule, ...]:
    """The fewest, then shortest rules that match exactly `moved` (name -> buffer type) of `names`.

    Layers that move the same tensors share one rule, so a plan of whole layers is
    one rule and each layer cut in the middle at most one more. Raises UsageError
    for a tensor outside the layers, which no plan moves.
    """
    known = _sorted_names(names)
    rules = []
    for buffer_type in dict.fromkeys(moved.values()):
        wanted: dict[int, set[str]] = {}
        for name, buft in moved.items():
            if buft == buffer_type:
                match = _NAME.fullmatch(name)
                if match is None:
                    raise UsageError(f"{name!r} belongs to no layer; no rule can be made for it")
                wanted.setdefault(int(match[1]), set()).add(match[2])
        rules += [
            Rule(pattern=_pattern(layers, parts, known), buffer_type=buffer_type)
            for layers, parts in _groups(wanted, known)
        ]
    return tuple(rules)


def _sorted_names(names: Iterable[str]) -> _Names:
    by_layer: dict[int, set[str]] = {}
    elsewhere = set()
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            elsewhere.add(name)
        else:
            by_layer.setdefault(int(match[1]), set()).add(match[2])
    return _Names({il: frozenset(parts) for il, parts in by_layer.items()}, frozenset(elsewhere))


def _is_expert(part: str) -> bool:
    return re.match(EXPERTS, part) is not None


def _groups(
    wanted: Mapping[int, set[str]], known: _Names
) -> list[tuple[frozenset[int], frozenset[str]]]:
    """Layers with equal parts together; layers that give up all experts are one group."""
    whole, parts_of_whole = set(), set()
    cut: dict[frozenset[str], set[int]] = {}
    for il, parts in wanted.items():
        if parts == {part for part in known.by_layer[il] if _is_expert(part)}:
            whole.add(il)
            parts_of_whole |= parts
        else:
            cut.setdefault(frozenset(parts), set()).add(il)
    groups = [(frozenset(layers), parts) for parts, layers in cut.items()]
    if whole:
        groups.insert(0, (frozenset(whole), frozenset(parts_of_whole)))
    return groups


def _pattern(layers: frozenset[int], parts: frozenset[str], known: _Names) -> str:
    """The first of a few readable forms, shortest first, that is exact on all names."""
    for part_regex in _part_regexes(parts):
        search = re.compile(part_regex).search
        touched = {
            il for il, present in known.by_layer.items() if any(search(part) for part in present)
        }
        if not all(
            {part for part in known.by_layer[il] if search(part)} == parts & known.by_layer[il]
            for il in layers
        ):
            continue
        others = touched - layers
        if not others and not any(search(name) for name in known.elsewhere):
            return part_regex
        numbers = layer_regex(layers, others)
        if "|" in numbers:
            numbers = f"({numbers})"
        return rf"blk\.{numbers}\.{part_regex}"
    raise AssertionError("the full names match themselves")


def _part_regexes(parts: frozenset[str]) -> list[str]:
    """Ways to write a set of tensor names without their layer, shortest first."""
    stems = sorted({part.split(".")[0] for part in parts})
    full = "|".join(re.escape(part) for part in sorted(parts))
    forms = [_alternation(stems), rf"({full})$"]
    if all(_is_expert(part) for part in parts):
        forms.append(_ANY_EXPERT)
    return sorted(forms, key=len)


def _alternation(stems: Sequence[str]) -> str:
    """`ffn_(down|up)_exps` for stems that share their ends, else `(a|b)`."""
    if len(stems) == 1:
        return rf"{stems[0]}\."
    if all(stem.startswith("ffn_") and stem.endswith("_exps") for stem in stems):
        middles = "|".join(stem[4:-5] for stem in stems)
        return f"ffn_({middles})_exps"
    return rf"({'|'.join(stems)})\."


def replay(rules: Sequence[Rule], names: Iterable[str]) -> dict[str, str]:
    """Buffer type of every name that a rule matches; the first match wins.

    Raises UsageError for patterns that std::regex would not take as meant.
    """
    compiled = [(compile_pattern(rule.pattern).search, rule.buffer_type) for rule in rules]
    placed = {}
    for name in names:
        for search, buffer_type in compiled:
            if search(name):
                placed[name] = buffer_type
                break
    return placed


def parse_overrides(text: str) -> tuple[Rule, ...]:
    """Parse a `-ot` value; raises UsageError for what llama.cpp refuses."""
    rules = []
    for part in text.split(","):
        pattern, equals, buffer_type = part.partition("=")
        if not equals or not pattern or not buffer_type:
            raise UsageError(
                f"-ot {part!r}: write PATTERN=BUFFER; neither ',' nor '=' may stand in a pattern"
            )
        compile_pattern(pattern)
        rules.append(Rule(pattern=pattern, buffer_type=buffer_type))
    if len(rules) > RULES_MAX:
        raise UsageError(f"-ot has {len(rules)} rules; llama.cpp takes at most {RULES_MAX}")
    return tuple(rules)


def render_overrides(rules: Collection[Rule], separator: str = ",") -> str:
    """The `-ot` value of `rules` (`;` is llama-bench's separator)."""
    return separator.join(f"{rule.pattern}={rule.buffer_type}" for rule in rules)


def n_cpu_moe_rules(n_layers: int) -> tuple[Rule, ...]:
    """What `-ncmoe N` adds: llama.cpp's own pattern for each of the first N layers."""
    return tuple(Rule(pattern=rf"blk\.{il}\.{EXPERTS}", buffer_type=HOST) for il in range(n_layers))


def cpu_moe_rule() -> Rule:
    """What `-cmoe` adds."""
    return Rule(pattern=rf"\.{EXPERTS}", buffer_type=HOST)
