"""Layer numbers as short regexes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import combinations

import pytest

from offload.layer_regex import layer_regex


@pytest.mark.parametrize(
    ("layers", "n_layer", "expected"),
    [
        (range(12), 36, r"(\d|1[01])"),
        (range(8, 36), 64, r"(8|9|[12]\d|3[0-5])"),
        (range(8, 36), 36, r"(8|9|\d\d)"),  # nothing beyond: any two digits will do
        (range(10, 30), 61, r"[12]\d"),
        (range(3, 4), 61, "3"),
        ((1, 2), 36, "[12]"),
        ((5, 15), 36, "1?5"),
        ((2, 3, 4, 12, 13, 14), 36, "1?[2-4]"),
        (range(100, 128), 128, r"1\d\d"),
        (range(118, 124), 128, "1(1[89]|2[0-3])"),
        (range(50, 61), 61, r"[56]\d"),
        ((0, 36, 72, 108), 128, "(0|36|72|108)"),
    ],
)
def test_written_as_a_person_would(layers: Sequence[int], n_layer: int, expected: str) -> None:
    """Runs and pairs of layers get the short forms one expects."""
    assert layer_regex(layers, set(range(n_layer)) - set(layers)) == expected


def test_numbers_nobody_asks_about_are_free() -> None:
    """Dense leading layers may be matched, since they carry no expert."""
    assert layer_regex(range(3, 61), ()) == r"\d+"
    assert layer_regex(range(3, 20), range(20, 61)) == r"1?\d"
    assert layer_regex(range(1, 36, 2), range(37, 94, 2)) == r"([12]?\d|3[135])"


def _class_length(digits: tuple[int, ...]) -> int:
    if len(digits) in (1, 10):
        return 1 if len(digits) == 1 else 2
    runs = [0]
    for before, digit in zip((-9, *digits), digits, strict=False):
        runs = [*runs, 1] if digit != before + 1 else [*runs[:-1], runs[-1] + 1]
    return 2 + sum(min(run, 3) for run in runs)


@cache
def _terms(n_layer: int) -> tuple[tuple[int, int], ...]:
    """Every class of last digits behind nothing, `1` or `1?`: the numbers and its length."""
    terms: dict[int, int] = {}
    for n_digits in range(1, 11):
        for digits in combinations(range(10), n_digits):
            short = sum(1 << d for d in digits)
            teens = sum(1 << 10 + d for d in digits if 10 + d < n_layer)
            for numbers, length in ((short, 0), (teens, 1), (short | teens, 2)):
                terms[numbers] = min(terms.get(numbers, 99), length + _class_length(digits))
    return tuple(terms.items())


def _shortest_length(must: set[int], never: set[int], n_layer: int) -> int:
    """By exhaustive search over all covers of `must` with such terms."""
    refused, goal = sum(1 << n for n in never), sum(1 << n for n in must)
    terms = {n & goal: 99 for n, _ in _terms(n_layer) if not n & refused}
    for numbers, length in _terms(n_layer):
        if not numbers & refused:
            terms[numbers & goal] = min(terms[numbers & goal], length)

    @cache
    def cover(left: int) -> int:
        lowest = left & -left
        return min(
            length + (1 + cover(left & ~numbers) if left & ~numbers else 0)
            for numbers, length in terms.items()
            if numbers & lowest
        )

    return min(terms.get(goal, 99), cover(goal) + 2)


def test_runs_are_as_short_as_can_be() -> None:
    """No cover by classes of digits is shorter, for any run of layers of a small model."""
    n_layer = 13
    for first, last in combinations(range(n_layer + 1), 2):
        must = set(range(first, last))
        never = set(range(n_layer)) - must
        if never:
            text = layer_regex(must, never)
            assert len(text) == _shortest_length(must, never, n_layer), text


@pytest.mark.parametrize("n_digits", [1, 2, 3, 4, 5])
def test_any_number_of_digits(n_digits: int) -> None:
    """Numbers of any length are told apart."""
    low: int = 10 ** (n_digits - 1)
    must = {low, low + 1, low * 9}
    never = {low + 2, low * 3, low * 10, low * 9 - 1}
    pattern = re.compile(layer_regex(must, never))
    assert all(pattern.fullmatch(str(il)) for il in must)
    assert not any(pattern.fullmatch(str(il)) for il in never)
