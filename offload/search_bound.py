"""In how many ways at most can a backtracking search match this pattern in one name?

A search of `std::regex` or Python's `re` tries, from every place in the name,
one way after the other until one succeeds. The bounds here are upper bounds and
rough: they assume that whatever could match does, except that alternatives with
different first characters exclude each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, prod
from typing import Final, NamedTuple

NAME_MAX: Final = 63
"""Bytes of the longest tensor name: `GGML_MAX_NAME` less the closing zero."""

WAYS_MAX: Final = 1_000_000
"""Four `.*` in a row have 766 480 ways. Made for it, one name then takes a second or two."""

STATES_MAX: Final = 100_000
"""libstdc++'s `_GLIBCXX_REGEX_STATE_LIMIT`."""


class Piece(NamedTuple):
    """Part of a pattern: its text for `re`, and what bounds the search.

    From one place of a name it can match in at most C(63 + stars, stars) x `ways`
    ways; `stars` counts the unbounded repeats of what has one way only. `first` is
    the character that every match begins with, empty where there are several;
    `n_states` is about what libstdc++ builds for it.
    """

    text: str
    ways: int = 1
    stars: int = 0
    first: str = ""
    n_states: int = 1
    may_be_dropped: bool = False  # at an end of the pattern: it may match nothing, has no group

    @property
    def all_ways(self) -> int:
        """The bound, itself bounded so that numbers stay small."""
        return min(self.ways * comb(NAME_MAX + self.stars, self.stars), WAYS_MAX + 1)


def sequence(pieces: Sequence[Piece]) -> Piece:
    """One after the other: every way of one with every way of the next."""
    return Piece(
        "".join(piece.text for piece in pieces),
        ways=min(prod(piece.ways for piece in pieces), WAYS_MAX + 1),
        stars=sum(piece.stars for piece in pieces),
        first=pieces[0].first if pieces else "",
        n_states=sum(piece.n_states for piece in pieces) + 1,
    )


def choice(pieces: Sequence[Piece]) -> Piece:
    """One or the other: only those with the same first character can both match."""
    ways: dict[str, int] = {}
    for piece in pieces:
        ways[piece.first] = ways.get(piece.first, 0) + piece.ways
    return Piece(
        "|".join(piece.text for piece in pieces),
        ways=min(sum(ways.values()) if "" in ways else max(ways.values()), WAYS_MAX + 1),
        stars=max(piece.stars for piece in pieces),
        first=pieces[0].first if len(ways) == 1 else "",
        n_states=sum(piece.n_states for piece in pieces) + len(pieces),
    )


def repeated(piece: Piece, quantifier: str, least: int, most: int | None) -> Piece:
    """`piece`, `least` to `most` times (None: without end)."""
    ways, stars = 0, 0
    if piece.all_ways > 1:
        # with k repeats, every way of each: soon beyond the bound
        for k in range(least, NAME_MAX + 1 if most is None else most + 1):
            ways += piece.all_ways ** min(k, 20)
            if ways > WAYS_MAX:
                break
    elif most is None:
        ways, stars = 1, 1
    else:
        ways = min(most - least + 1, WAYS_MAX + 1)
    return Piece(
        piece.text + quantifier,
        ways=min(ways, WAYS_MAX + 1),
        stars=stars,
        first=piece.first if least else "",
        n_states=piece.n_states * (least + 1 if most is None else most) + 1,
        may_be_dropped=least == 0 and "(" not in piece.text,
    )
