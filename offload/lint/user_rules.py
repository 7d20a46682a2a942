"""Which rules does the command give, in llama.cpp's order, and which tensors does each find?

Mirrors `parse_tensor_buffer_overrides` and `llm_add_n_cpu_ffn_overrides` (common/arg.cpp,
common/common.h, b11434): `-ot`, `-cmoe`, `-ncmoe` and `-ncffn` add to one list in the order
they stand in; of several rules that find a tensor the first counts. Patterns are data: one that
searches for too long is given up, and the time of all together is bounded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from offload.ecmascript import byte_text, compile_pattern
from offload.errors import UsageError
from offload.lint.finding import Finding, error
from offload.lint.settings import Override
from offload.plan import LAYERS_MAX
from offload.rules import EXPERTS, RULES_MAX, Rule

DENSE_FFN: Final = r"ffn_(up|down|gate)\."
"""llama.cpp's pattern of dense feed-forward weights (`LLM_FFN_DENSE_REGEX`, common/common.h)."""

_SECONDS_PER_RULE: Final = 0.25
_SECONDS_FOR_ALL: Final = 1.0
"""Of processor time, so that a busy machine finds no fault; a usual rule takes a millisecond."""
_TOLD_MAX: Final = 12
_NUMBER_CLASS: Final = re.compile(r"\[(\d*)(\d)-(\d+)\]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRule:
    """One rule of the command; `flag` is what it came from."""

    flag: str
    pattern: str
    buffer_type: str

    @property
    def text(self) -> str:
        """As `-ot` would have it, shortened."""
        written = f"{self.pattern}={self.buffer_type}"
        return written if len(written) <= 80 else f"{written[:79]}…"

    @property
    def rule(self) -> Rule:
        """The same for the planner."""
        return Rule(pattern=self.pattern, buffer_type=self.buffer_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What one rule finds (`found`), and what earlier rules leave of it (`taken`)."""

    rule: UserRule
    found: frozenset[str]
    taken: frozenset[str]


def expand_overrides(
    overrides: Iterable[Override], n_layer: int = LAYERS_MAX
) -> tuple[list[UserRule], list[Finding]]:
    """The rules of all override flags, and what is wrong with their form.

    Those that a flag makes for more layers than `n_layer` are counted, but left out.
    """
    rules: list[UserRule] = []
    findings: list[Finding] = []
    n_rules = 0
    for override in overrides:
        if override.flag == "-ot":
            parsed, wrong = _parse(override.text)
            rules += parsed
            findings += wrong
            n_rules += len(parsed)
        elif override.flag == "-cmoe":
            rules.append(UserRule(flag="-cmoe", pattern=rf"\.{EXPERTS}", buffer_type="CPU"))
            n_rules += 1
        else:
            rest = EXPERTS if override.flag == "-ncmoe" else DENSE_FFN
            n_rules += override.n_layers
            rules += (
                UserRule(flag=override.flag, pattern=rf"blk\.{il}\.{rest}", buffer_type="CPU")
                for il in range(min(override.n_layers, n_layer))
            )
    if n_rules > RULES_MAX:
        findings.append(
            error(
                "too-many-rules",
                f"{n_rules} override rules: llama.cpp has room for {RULES_MAX} and aborts",
                "say the same with fewer patterns, e.g. blk\\.([0-9]|1[0-9])\\.ffn_.*_exps",
            )
        )
    return rules[:RULES_MAX], findings


def _parse(text: str) -> tuple[list[UserRule], list[Finding]]:
    rules: list[UserRule] = []
    findings: list[Finding] = []
    for part in text.split(","):
        if not part:
            continue
        pattern, equals, buffer_type = part.partition("=")
        shown = part if len(part) <= 60 else f"{part[:59]}…"
        if not equals or not buffer_type or "=" in buffer_type:
            why = (
                "the pattern ends at the first '='"
                if "=" in buffer_type
                else "there is no '=BUFFER' in it; the list is split at every ','"
            )
            findings.append(
                error(
                    "comma-or-equals-in-rule",
                    f"-ot {shown!r}: {why}, so neither ',' nor '=' can stand in a pattern;"
                    " llama.cpp stops with 'invalid value' or 'unknown buffer type'",
                    "write alternatives as (a|b), counts as a?, and lookaheads not at all",
                )
            )
            continue
        rules.append(UserRule(flag="-ot", pattern=pattern, buffer_type=buffer_type))
    return rules, findings


class Matcher:
    """Finds the tensors of rules, in bounded time."""

    def __init__(self, names: Sequence[str], clock: Callable[[], float] = time.thread_time) -> None:
        self.names = [(name, byte_text(name)) for name in names]
        self.clock = clock
        self.spent_s = 0.0
        self.findings: list[Finding] = []

    def matches(self, rules: Iterable[UserRule]) -> Iterator[Match]:
        """One value for each rule that llama.cpp would take; what it would not is a finding."""
        placed: set[str] = set()
        for rule in rules:
            found = self._found(rule)
            if found is None:
                continue
            yield Match(rule=rule, found=found, taken=found - placed)
            placed |= found

    def found_by(self, pattern: str) -> frozenset[str] | None:
        """What another pattern would find; None where it is no pattern or takes too long."""
        try:
            return self._search(compile_pattern(pattern))
        except UsageError:
            return None

    def _found(self, rule: UserRule) -> frozenset[str] | None:
        try:
            found = self._search(compile_pattern(rule.pattern))
        except UsageError as refusal:
            self._tell(_refused(rule, str(refusal)))
            return None
        if found is None:
            self._tell(_slow(rule))
        return found

    def _tell(self, finding: Finding) -> None:
        """A dozen bad patterns make the point."""
        if len(self.findings) < _TOLD_MAX:
            self.findings.append(finding)

    def _search(self, compiled: re.Pattern[str]) -> frozenset[str] | None:
        """Names found; None when the time for one rule or for all of them is over."""
        allowed_s = min(_SECONDS_PER_RULE, _SECONDS_FOR_ALL - self.spent_s)
        if allowed_s <= 0:
            return None
        found = []
        start_s = self.clock()
        for name, text in self.names:
            if compiled.search(text):
                found.append(name)
            if self.clock() - start_s > allowed_s:
                break
        took_s = self.clock() - start_s
        self.spent_s += took_s
        return frozenset(found) if took_s <= allowed_s else None


def _refused(rule: UserRule, why: str) -> Finding:
    why = why.partition(": ")[2] or why
    if _NUMBER_CLASS.search(rule.pattern) and "is no range" in why:
        return error(
            "class-as-number",
            f"{rule.text}: a class in brackets stands for one character, not for a number, and"
            f" this one is refused ({why})",
            "write numbers as alternatives, e.g. ([0-9]|1[0-5]) for 0 to 15",
        )
    if "for ever" in why:
        return _slow(rule)
    return error("bad-regex", f"{rule.text}: {why}; llama.cpp aborts", "see the character named")


def _slow(rule: UserRule) -> Finding:
    return error(
        "slow-regex",
        f"{rule.text}: searching the names of all tensors with it takes too long; llama.cpp would"
        " hang while loading, so it is left out of the figures",
        "use fewer '*' and '+', none around another",
    )
