"""Bounds on the ways a backtracking search can match."""

from __future__ import annotations

import pytest

from offload.search_bound import WAYS_MAX, Piece, choice, repeated, sequence

A, B, ANY = Piece("a", first="a"), Piece("b", first="b"), Piece(".")


@pytest.mark.parametrize(
    ("piece", "ways"),
    [
        (sequence([A, B]), 1),
        (choice([A, B]), 1),  # different first characters: one or the other
        (choice([A, A]), 2),
        (choice([A, ANY]), 2),
        (choice([A, B, Piece("")]), 3),
        (repeated(A, "?", 0, 1), 2),
        (repeated(A, "{2}", 2, 2), 1),
        (repeated(A, "*", 0, None), 64),
        (sequence([repeated(A, "*", 0, None)] * 2), 64 * 65 // 2),
        (repeated(choice([A, A]), "{3}", 3, 3), 8),
        (repeated(choice([A, A]), "{0,2}", 0, 2), 1 + 2 + 4),
    ],
)
def test_ways(piece: Piece, ways: int) -> None:
    """Ways multiply along a sequence, add up over alternatives and grow with every repeat."""
    assert piece.all_ways == ways


@pytest.mark.parametrize(
    "piece",
    [
        repeated(repeated(A, "+", 1, None), "+", 1, None),
        repeated(choice([A, A]), "*", 0, None),
        repeated(repeated(A, "?", 0, 1), "{1000}", 1000, 1000),
        sequence([choice([A, A])] * 20),
        sequence([repeated(ANY, "*", 0, None)] * 5),
    ],
)
def test_explosions_are_beyond_the_bound(piece: Piece) -> None:
    """Nested or long repetition of what has several ways is found, and numbers stay small."""
    assert piece.all_ways == WAYS_MAX + 1
    assert piece.ways <= WAYS_MAX + 1


def test_states_multiply() -> None:
    """A counted repeat is built out, as libstdc++ does."""
    assert repeated(repeated(A, "{50}", 50, 50), "{50}", 50, 50).n_states > 2500
