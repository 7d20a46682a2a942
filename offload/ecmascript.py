"""Does this user's pattern mean the same to Python as to llama.cpp's std::regex, and is it safe?

llama.cpp compiles every `-ot` pattern with `std::regex` (ECMAScript grammar)
and searches each tensor name with it (src/llama-model-loader.cpp,
`create_tensor`, b11434). Python's `re` agrees on what people write; what it
reads otherwise, or what could run for ever, is refused with the reason.
Patterns are data: whoever wrote the command may not be who plans with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from offload.errors import UsageError

_PATTERN_MAX: Final = 4096
_UNBOUNDED_MAX: Final = 4
"""`.*` and the like per pattern: names have at most 63 bytes, so 63^4 steps bound a search."""

_GROUP_OPENINGS: Final = ("(?:", "(?=", "(?!")
_ESCAPES: Final = frozenset(r"dDsSwWbBfnrtv0123456789^$\.*+?()[]{}|/-_")
_QUANTIFIER: Final = re.compile(r"[*+?]|\{\d+(,\d*)?\}")
_POSIX: Final = {
    "[:digit:]": "0-9", "[:alpha:]": "a-zA-Z", "[:alnum:]": "a-zA-Z0-9", "[:lower:]": "a-z",
    "[:upper:]": "A-Z", "[:space:]": r"\s", "[:punct:]": r"!-/:-@\[-`{-~", "[:xdigit:]": "0-9a-fA-F",
}  # fmt: skip


@dataclass(slots=True)
class _Open:
    """A group being read: whether it repeats something without bound or has alternatives."""

    has_unbounded: bool = False
    has_alternatives: bool = False


@dataclass(slots=True)
class _Scan:
    pattern: str
    position: int = 0
    groups: list[_Open] = field(default_factory=lambda: [_Open()])
    n_unbounded: int = 0
    translated: list[str] = field(default_factory=list)

    def refuse(self, why: str) -> UsageError:
        return UsageError(f"-ot pattern {self.pattern!r} at character {self.position}: {why}")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a user's `-ot` pattern with the meaning std::regex gives it.

    Raises UsageError for what std::regex refuses, for what the two read
    differently, and for patterns whose search time is not bounded.
    """
    scan = _Scan(pattern)
    if len(pattern) > _PATTERN_MAX:
        raise UsageError(f"-ot pattern of {len(pattern)} characters; at most {_PATTERN_MAX}")
    while scan.position < len(pattern):
        _step(scan)
    if len(scan.groups) != 1:
        raise scan.refuse("a '(' is not closed")
    try:
        return re.compile("".join(scan.translated), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"-ot pattern {pattern!r} is not a regular expression: {error}") from None


def _step(scan: _Scan) -> None:
    """Read one atom with its quantifier."""
    c = scan.pattern[scan.position]
    if c == "(":
        _open_group(scan)
        return
    closed = None
    if c == ")":
        if len(scan.groups) == 1:
            raise scan.refuse("a ')' without '('")
        closed = scan.groups.pop()
        scan.groups[-1].has_unbounded |= closed.has_unbounded
        text = c
    elif c == "|":
        scan.groups[-1].has_alternatives = True
        text = c
    elif c == "[":
        text = _char_class(scan)
    elif c == "\\":
        text = _escape(scan)
    elif c in "*+?":
        raise scan.refuse(f"nothing before {c!r} to repeat (globs are not regular expressions)")
    elif c in "{}":
        raise scan.refuse(f"a bare {c!r}; write \\{c}")
    else:
        text = c
    scan.translated.append(text)
    if c not in "[\\":
        scan.position += 1
    if c != "|":
        _quantifier(scan, closed)


def _open_group(scan: _Scan) -> None:
    opening = "("
    if scan.pattern.startswith("(?", scan.position):
        opening = scan.pattern[scan.position : scan.position + 3]
        if opening not in _GROUP_OPENINGS:
            raise scan.refuse(f"{opening!r} is not ECMAScript")
    scan.groups.append(_Open())
    scan.translated.append(opening)
    scan.position += len(opening)


def _escape(scan: _Scan) -> str:
    text = scan.pattern[scan.position : scan.position + 2]
    if len(text) < 2 or text[1] not in _ESCAPES:
        raise scan.refuse(f"std::regex does not know the escape {text!r}")
    scan.position += 2
    return text[1] if text[1] in "/-_" else text


def _char_class(scan: _Scan) -> str:
    """A bracket expression with POSIX classes spelled out."""
    pattern, start = scan.pattern, scan.position
    i = start + 1
    parts = ["["]
    if pattern.startswith("^", i):
        parts.append("^")
        i += 1
    if pattern.startswith("]", i):
        raise scan.refuse("an empty class; write \\] for the bracket itself")
    while i < len(pattern) and pattern[i] != "]":
        named = next((name for name in _POSIX if pattern.startswith(name, i)), None)
        if named is not None:
            parts.append(_POSIX[named])
            i += len(named)
        elif pattern[i] == "\\":
            parts.append(pattern[i : i + 2])
            i += 2
        else:
            # Python warns of a nested '['; it is an ordinary character in both
            parts.append(r"\[" if pattern[i] == "[" else pattern[i])
            i += 1
    if i >= len(pattern):
        raise scan.refuse("a '[' is not closed")
    scan.position = i + 1
    return "".join([*parts, "]"])


def _quantifier(scan: _Scan, closed: _Open | None) -> None:
    match = _QUANTIFIER.match(scan.pattern, scan.position)
    if match is None:
        return
    text = match[0]
    scan.position += len(text)
    scan.translated.append(text)
    if scan.pattern.startswith("?", scan.position):
        scan.translated.append("?")
        scan.position += 1
    elif _QUANTIFIER.match(scan.pattern, scan.position):
        raise scan.refuse("a quantifier after a quantifier")
    repeats = text != "?"
    if repeats and closed is not None and (closed.has_unbounded or closed.has_alternatives):
        raise scan.refuse("a repeated group that repeats or branches inside can run for ever")
    if text in "*+" or text.endswith(",}"):
        scan.groups[-1].has_unbounded = True
        scan.n_unbounded += 1
        if scan.n_unbounded > _UNBOUNDED_MAX:
            raise scan.refuse(f"more than {_UNBOUNDED_MAX} of '*' and '+' can run for ever")
