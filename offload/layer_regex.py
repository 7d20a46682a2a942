"""What is the shortest regular expression for a set of layer numbers?

`{0..11}` becomes `\\d|1[01]`, `{10..29}` becomes `[12]\\d`. Numbers that no
tensor carries may be matched or not, whichever is shorter. Only digits,
classes, `?`, `|`, `\\d` and groups are used: plain ECMAScript, as
`std::regex` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations
from typing import Final

_DIGITS: Final = frozenset("0123456789")
_PAIR: Final = re.compile(r"\[\d\d\]")


@dataclass(frozen=True, slots=True)
class _Group:
    """Numbers `prefix + digit` for each prefix; digits in `may` are optional for all of them."""

    prefixes: frozenset[str]
    must: frozenset[str]
    may: frozenset[str]


def layer_regex(layers: Collection[int], others: Collection[int]) -> str:
    """A regex that matches every number of `layers` and none of `others`, whole numbers only.

    Numbers in neither are free. Alternatives are not parenthesised.
    """
    if not others:
        return r"\d+"
    must = {str(il) for il in layers}
    never = {str(il) for il in others}
    texts = _alternatives(must, never)
    if len(texts) > 1 and _PAIR.fullmatch(texts[0]):
        texts[0] = f"{texts[0][1]}|{texts[0][2]}"  # beside other alternatives a class is longer
    return "|".join(texts)


def _alternatives(must: set[str], never: set[str]) -> list[str]:
    """One text per group of prefixes that share their last digits."""
    prefixes = sorted({number[:-1] for number in must}, key=lambda p: (len(p), p))
    groups = []
    for prefix in prefixes:
        wanted = frozenset(n[-1] for n in must if n[:-1] == prefix)
        refused = frozenset(n[-1] for n in never if n[:-1] == prefix)
        groups.append(_Group(frozenset((prefix,)), wanted, _DIGITS - wanted - refused))
    return [_text(group, never) for group in _merged(groups, never)]


def _merged(groups: list[_Group], never: set[str]) -> list[_Group]:
    """Merge pairs of groups while that shortens the whole."""
    lengths = {group: len(_text(group, never)) for group in groups}
    while True:
        best, pair = 0, None
        for a, b in combinations(groups, 2):
            both = _union(a, b)
            if both is None:
                continue
            # the bar between two alternatives goes too
            if both not in lengths:
                lengths[both] = len(_text(both, never))
            saved = lengths[a] + lengths[b] + 1 - lengths[both]
            if saved > best:
                best, pair = saved, (a, b, both)
        if pair is None:
            return groups
        a, b, both = pair
        groups = [both if group is a else group for group in groups if group is not b]


def _union(a: _Group, b: _Group) -> _Group | None:
    """The group of both prefixes, or None where the digits of one are refused by the other."""
    must = a.must | b.must
    allowed = (a.must | a.may) & (b.must | b.may)
    if not must <= allowed:
        return None
    return _Group(a.prefixes | b.prefixes, must, allowed - must)


def _text(group: _Group, never: set[str]) -> str:
    digits, matched = _digit_class(group.must, group.may)
    prefixes = set(group.prefixes)
    optional = "" in prefixes
    prefixes.discard("")
    if not prefixes:
        return digits
    # a prefix is free unless one of the digits that will follow makes a refused number
    refused = {number[:-1] for number in never if number[-1] in matched} - {""}
    alternatives = _alternatives(prefixes, refused)
    text = "|".join(alternatives)
    if len(alternatives) > 1 or (optional and not _is_atom(text)):
        text = f"({text})"
    return f"{text}?{digits}" if optional else f"{text}{digits}"


def _is_atom(text: str) -> bool:
    """True for what a following `?` applies to as a whole."""
    return len(text) == 1 or text == r"\d" or (text[0] == "[" and text.index("]") == len(text) - 1)


def _digit_class(must: frozenset[str], may: frozenset[str]) -> tuple[str, frozenset[str]]:
    """The shortest class with all of `must`, some of `may` and nothing else; and its digits."""
    if len(must) == 1:
        return min(must), must
    if must | may == _DIGITS:
        return r"\d", _DIGITS
    runs = [(int(d), int(d)) for d in sorted(must)]
    free = {int(d) for d in may}
    gaps = [
        (left[1] + 1, right[0] - 1)
        for left, right in zip(runs, runs[1:], strict=False)
        if left[1] + 1 < right[0] and free.issuperset(range(left[1] + 1, right[0]))
    ]
    choices = [
        _joined(sorted([*runs, *filled]))
        for n in range(len(gaps) + 1)
        for filled in combinations(gaps, n)
    ]
    best = min(choices, key=lambda runs: len(_runs_text(runs)))
    return _runs_text(best), frozenset(
        str(d) for first, last in best for d in range(first, last + 1)
    )


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined = [runs[0]]
    for first, last in runs[1:]:
        if first == joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def _runs_text(runs: list[tuple[int, int]]) -> str:
    parts = []
    for first, last in runs:
        if last - first >= 2:
            parts.append(f"{first}-{last}")
        else:
            parts.append("".join(str(d) for d in range(first, last + 1)))
    return f"[{''.join(parts)}]"
