r"""What is the shortest regular expression for a set of layer numbers?

`{0..11}` becomes `(\d|1[01])`, `{10..29}` becomes `[12]\d`. Numbers that nobody
asks about may be matched or not, whichever is shorter. Only digits, classes, `?`,
`|`, `\d` and groups are used: plain ECMAScript, as `std::regex` reads it.

Numbers with the same digits before the last one share a class for the last; groups
of such prefixes that can share it are merged while that shortens the whole, and
the prefixes of a group are a set of numbers again. Greedy, yet as short as can be
for the runs of layers that plans are made of; tests compare with exhaustive search.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import combinations, groupby
from typing import Final, NamedTuple

_DIGITS: Final = (1 << 10) - 1
"""Sets of digits are bit sets: bit d stands for the digit d."""
_PAIR: Final = re.compile(r"(?<![^|])\[(\d)(\d)\](?![^|])", re.ASCII)


class _Group(NamedTuple):
    """Numbers `prefix + digit` for each prefix; other digits of `allowed` may follow or not."""

    prefixes: frozenset[str]
    must: int
    allowed: int


def layer_regex(layers: Collection[int], others: Collection[int]) -> str:
    """A regex for every number of `layers` and none of `others`, to stand between two dots.

    Numbers in neither are free. Several alternatives are in parentheses.
    """
    if not others:
        return r"\d+" if len(layers) > 1 else str(min(layers))
    return _joined(_alternatives(map(str, layers), map(str, others)))


def _joined(alternatives: list[str]) -> str:
    """The alternatives as one atom, a first digit common to all of them written once."""
    if len(alternatives) == 1:
        return alternatives[0]
    heads = {text[:1] for text in alternatives}
    if len(heads) == 1 and min(heads).isdecimal() and not any(t[1:2] == "?" for t in alternatives):
        return heads.pop() + _joined([text[1:] for text in alternatives])
    # between bars `8|9` is shorter than `[89]`
    return "(" + _PAIR.sub(r"\1|\2", "|".join(alternatives)) + ")"


def _alternatives(must: Iterable[str], never: Iterable[str]) -> list[str]:
    """One text per group of prefixes that share their last digits."""
    wanted, refused = _by_prefix(must), _by_prefix(never)
    groups = [
        _Group(frozenset((prefix,)), digits, _DIGITS & ~refused.get(prefix, 0))
        for prefix, digits in sorted(wanted.items(), key=lambda item: (len(item[0]), item[0]))
    ]
    return [_text(group, refused) for group in _merged(groups, refused)]


def _by_prefix(numbers: Iterable[str]) -> dict[str, int]:
    """For each number without its last digit, the last digits there are."""
    by_prefix: dict[str, int] = {}
    for number in numbers:
        by_prefix[number[:-1]] = by_prefix.get(number[:-1], 0) | 1 << int(number[-1])
    return by_prefix


def _merged(groups: list[_Group], refused: dict[str, int]) -> list[_Group]:
    """Merge pairs of groups while that shortens the whole."""
    lengths = {group: len(_text(group, refused)) for group in groups}
    while True:
        best, merger = 0, None
        for a, b in combinations(groups, 2):
            must, allowed = a.must | b.must, a.allowed & b.allowed
            if must & ~allowed:
                continue
            both = _Group(a.prefixes | b.prefixes, must, allowed)
            if both not in lengths:
                lengths[both] = len(_text(both, refused))
            # the bar between the two goes too, and the parentheses with the last bar
            saved = lengths[a] + lengths[b] + (3 if len(groups) == 2 else 1) - lengths[both]
            if saved > best:
                best, merger = saved, (a, b, both)
        if merger is None:
            return groups
        a, b, both = merger
        groups = [both if group is a else group for group in groups if group is not b]


def _text(group: _Group, refused: dict[str, int]) -> str:
    digits, matched = _digit_class(group.must, group.allowed)
    prefixes = group.prefixes - {""}
    if not prefixes:
        return digits
    # a prefix is free unless one of the digits that will follow makes a refused number
    others = (prefix for prefix, last in refused.items() if prefix and last & matched)
    text = _joined(_alternatives(prefixes, others))
    if prefixes == group.prefixes:
        return text + digits
    return f"{text if _is_atom(text) else f'({text})'}?{digits}"


def _is_atom(text: str) -> bool:
    """True for what a following `?` applies to as a whole."""
    if len(text) == 1 or text == r"\d":
        return True
    closing = {"(": ")", "[": "]"}.get(text[0])
    return closing is not None and text.count(closing) == 1 and text[-1] == closing


@lru_cache(maxsize=4096)
def _digit_class(must: int, allowed: int) -> tuple[str, int]:
    """The shortest class of all `must`, some of `allowed` and nothing else; and its digits."""
    wanted = [digit for digit in range(10) if must >> digit & 1]
    if len(wanted) == 1:
        return str(wanted[0]), must
    if allowed == _DIGITS:
        return r"\d", _DIGITS
    text, matched = "", must
    # within a run of allowed digits a range costs three characters whatever it spans
    for _, run in groupby(wanted, key=lambda digit: (allowed | (1 << digit) - 1) ^ allowed):
        digits = list(run)
        first, last = digits[0], digits[-1]
        if len(digits) > 3 or len(digits) == 1 + last - first > 2:
            text += f"{first}-{last}"
            matched |= (1 << last + 1) - (1 << first)
        else:
            text += "".join(map(str, digits))
    return f"[{text}]", matched
