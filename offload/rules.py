"""Which `-ot` rules put exactly these tensors there, and what do given rules match?

Mirrors `parse_tensor_buffer_overrides` (common/arg.cpp) and the override loop
of `llama_model_loader::create_tensor` (src/llama-model-loader.cpp, b11434): the
value is split at `,`, then at the first `=`, so a pattern holds neither; a
pattern is searched anywhere in the tensor's name; the first that matches wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from offload.ecmascript import byte_text, compile_pattern
from offload.errors import UsageError
from offload.name_regex import name_regex

HOST: Final = "CPU"
"""The buffer type of the host, as `-ot` names it."""

RULES_MAX: Final = 4095
"""One less than `llama_max_tensor_buft_overrides()` (src/llama.cpp, b11434).

With 4096 no room is left for the empty rule that ends the list, and llama.cpp
aborts (`common_model_params_to_llama`, common/common.cpp).
"""

EXPERTS: Final = r"ffn_(up|down|gate|gate_up)_(ch|)exps"
"""llama.cpp's own pattern of routed experts (`LLM_FFN_EXPS_REGEX`, common/common.h, b11434)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Tensors whose name `pattern` finds go to `buffer_type`."""

    pattern: str
    buffer_type: str


def make_rules(
    moved: Mapping[str, str] | AbstractSet[str],
    names: Iterable[str],
    *,
    fixed: Collection[str] = (),
) -> tuple[Rule, ...]:
    """The fewest, then shortest rules that match exactly `moved` among the model's `names`.

    `moved` gives the buffer type of each tensor; a set means the host. Each buffer
    type needs one rule and gets one, and no rule leans on another, so their order
    is free. `fixed` names are placed by earlier rules (the user's), so it does not
    matter whether ours match them too.
    """
    if not isinstance(moved, Mapping):
        moved = dict.fromkeys(sorted(moved), HOST)
    open_names = dict.fromkeys(names)
    for name in fixed:
        open_names.pop(name, None)
    wanted: dict[str, set[str]] = {}
    for name, buffer_type in moved.items():
        if name not in open_names:
            raise UsageError(
                f"no rule can move {name!r}: the model has no such tensor left to move"
            )
        wanted.setdefault(buffer_type, set()).add(name)
    return tuple(
        Rule(pattern=name_regex(tensors, open_names), buffer_type=buffer_type)
        for buffer_type, tensors in wanted.items()
    )


def with_user_rules(user_rules: Iterable[Rule], our_rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """All rules in the order to emit: the user's first, since the first match wins.

    Raises UsageError where they are more than llama.cpp takes.
    """
    rules = (*user_rules, *our_rules)
    _check_count(len(rules))
    return rules


def replay(rules: Sequence[Rule], names: Iterable[str]) -> dict[str, str]:
    """Buffer type of every name that a rule matches; the first match wins.

    Raises UsageError for patterns that std::regex refuses or that could search for ever.
    """
    searches = [(compile_pattern(rule.pattern).search, rule.buffer_type) for rule in rules]
    placed = {}
    for name in names:
        text = byte_text(name)
        for search, buffer_type in searches:
            if search(text):
                placed[name] = buffer_type
                break
    return placed


def parse_overrides(text: str, buffer_types: Collection[str] | None = None) -> tuple[Rule, ...]:
    """Parse a `-ot` value; raises UsageError for what llama.cpp refuses.

    `buffer_types` are those that exist, where that is known. An empty pattern, which
    llama.cpp takes and which matches every tensor, is refused: nobody means it.
    """
    parts = text.split(",")
    _check_count(len(parts))
    rules = []
    for part in parts:
        pattern, equals, buffer_type = part.partition("=")
        if not equals or not pattern or not buffer_type:
            raise UsageError(
                f"-ot {part!r}: write PATTERN=BUFFER; neither ',' nor '=' may stand in a pattern"
            )
        if buffer_types is not None and buffer_type not in buffer_types:
            raise UsageError(
                f"-ot …={buffer_type}: no such buffer type here; one of {', '.join(buffer_types)}"
            )
        compile_pattern(pattern)
        rules.append(Rule(pattern=pattern, buffer_type=buffer_type))
    return tuple(rules)


def render_overrides(rules: Iterable[Rule], separator: str = ",") -> str:
    """The `-ot` value of `rules` (`;` is llama-bench's separator)."""
    return separator.join(f"{rule.pattern}={rule.buffer_type}" for rule in rules)


def n_cpu_moe_rules(n_layers: int) -> tuple[Rule, ...]:
    """What `-ncmoe N` adds: llama.cpp's own pattern for each of the first N layers."""
    if n_layers < 0:
        raise UsageError(f"-ncmoe {n_layers}: a number of layers is not negative")
    _check_count(n_layers)
    return tuple(Rule(pattern=rf"blk\.{il}\.{EXPERTS}", buffer_type=HOST) for il in range(n_layers))


def cpu_moe_rule() -> Rule:
    """What `-cmoe` adds."""
    return Rule(pattern=rf"\.{EXPERTS}", buffer_type=HOST)


def _check_count(n_rules: int) -> None:
    if n_rules > RULES_MAX:
        raise UsageError(f"{n_rules} override rules; llama.cpp takes at most {RULES_MAX}")
