"""Which of all runs, and in which order, teach most about a machine in the time there is?

Seconds are linear in amounts of work, so what a set of runs can tell is known before any
of them is made: the information matrix of their amounts. Runs are taken greedily, the
one that adds most per second first (D-optimal design: Fedorov, Theory of Optimal
Experiments, 1972), until every cost that can be told apart is. The rest of the time
repeats and refines. Anchors, one cell over and over, show drift.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offload.cost.work import RESEND_S
from tuner.cells import ANCHOR, Bench, Cell, Sizes

Array = NDArray[np.float64]

ANCHOR_EVERY: Final = 6
"""Runs between two anchors."""

MUST: Final = (ANCHOR, "all")
"""The two ends; made however short the time is."""

FIRST: Final = (*MUST, "own 2/4", "fewer layers", "own 1/4")
"""Next, what lies between them, and what grows with layers."""

_ROUGH_S: Final[Mapping[str, float]] = {
    "const": 1e-3, "ubatch": 1e-3, "layer": 1e-4, "hop": 5e-5, "resend": RESEND_S,
    "read": 1e-10, "context": 1e-10, "stream": 1e-10, "stream_mmap": 2e-10,
    "carry": 1e-9, "flops": 2e-11, "attention": 2e-11,
}  # fmt: skip
"""Seconds per unit before anything is measured, good enough to weigh runs against each other."""

_NOISE: Final = 0.02
_RIDGE: Final = 1e-3
_BLOCK: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run of the sweep; `repetition` counts from 0."""

    cell: Cell
    repetition: int
    is_anchor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What a first short run tells: seconds to load, tokens per second."""

    load_s: float
    prompt_t_s: float
    decode_t_s: float

    def step_seconds(self, cell: Cell, n_repetitions: int) -> float:
        """A whole run: load, warm-up, filling the context, repetitions."""
        total = self.load_s
        for n_depth in {test.n_depth for test in cell.tests}:
            total += n_depth / self.prompt_t_s
        for test in cell.tests:
            total += test.n_prompt / self.prompt_t_s * (n_repetitions + 1)
            total += (test.n_gen * n_repetitions + bool(test.n_gen)) / self.decode_t_s
        return total

    def sizes(self) -> Sizes:
        """How long tests should be: a prompt of about a second, generation of half a second.

        `-ub` is llama.cpp's 512 unless a prompt of that length takes too long.
        """
        n_prompt = _power_of_two(self.prompt_t_s, 64, 2048)
        return Sizes(
            n_prompt=n_prompt,
            n_gen=_power_of_two(0.5 * self.decode_t_s, 8, 64),
            n_ubatch=min(512, n_prompt),
            n_depth=_power_of_two(2.0 * self.prompt_t_s, 256, 8192),
        )


def order_cells(
    bench: Bench, cells: Sequence[Cell], costs_s: Mapping[str, float]
) -> tuple[Cell, ...]:
    """All cells, those that teach most per second first.

    The first ones are those of FIRST. What identifies the rest of the costs follows, in
    blocks whose inner order is drawn by lot, so that drift does not look like placement.
    `costs_s` are the seconds of a run by label.
    """
    names = _names(bench, cells)
    rows = {cell.label: _rows(bench, cell, names) for cell in cells}
    left = {cell.label: cell for cell in cells}
    taken = [left.pop(label) for label in FIRST if label in left]
    information = np.eye(len(names)) * _RIDGE
    for cell in taken:
        information += rows[cell.label].T @ rows[cell.label]
    while left:
        label = max(left, key=lambda name: _gain(information, rows[name]) / costs_s[name])
        information += rows[label].T @ rows[label]
        taken.append(left.pop(label))
    n_first = sum(cell.label in FIRST for cell in taken)
    return (*taken[:n_first], *_shuffled_in_blocks(taken[n_first:]))


def n_identified(bench: Bench, cells: Sequence[Cell]) -> int:
    """How many costs these cells can tell apart: the rank of their amounts."""
    names = _names(bench, cells)
    if not names:
        return 0
    rows = np.vstack([_rows(bench, cell, names) for cell in cells])
    lengths = np.linalg.norm(rows, axis=0)
    return int(np.linalg.matrix_rank(rows / np.where(lengths, lengths, 1.0), tol=1e-6))


def steps(cells: Sequence[Cell], *, seed: int = 0) -> Iterator[Step]:
    """Runs without end: every cell once, then again and again in other orders, with anchors."""
    if not cells:
        return
    anchor = next((cell for cell in cells if cell.label == ANCHOR), cells[0])
    rng = random.Random(seed)
    n_anchors, since, repetition = 0, ANCHOR_EVERY, 0
    order = list(cells)
    while True:
        for cell in order:
            if since >= ANCHOR_EVERY:
                yield Step(cell=anchor, repetition=n_anchors, is_anchor=True)
                n_anchors, since = n_anchors + 1, 0
            if cell is not anchor:
                yield Step(cell=cell, repetition=repetition, is_anchor=False)
                since += 1
        if len(order) == 1:  # nothing else: the anchor is the sweep
            since = ANCHOR_EVERY
        repetition += 1
        rng.shuffle(order)


def _power_of_two(wanted: float, low: int, high: int) -> int:
    n = low
    while n * 2 <= min(wanted, high):
        n *= 2
    return n


def _kind(name: str) -> str:
    return name.split(".")[1] if "." in name else name


def _names(bench: Bench, cells: Sequence[Cell]) -> tuple[str, ...]:
    works = (bench.work(cell, test) for cell in cells for test in cell.tests)
    return tuple(sorted({name for work in works for name in work.amounts}))


def _rows(bench: Bench, cell: Cell, names: Sequence[str]) -> Array:
    """One row per test: rough seconds of each feature over the noise of the whole."""
    rows = []
    for test in cell.tests:
        work = bench.work(cell, test)
        parts = [work.amounts.get(name, 0.0) * _ROUGH_S.get(_kind(name), 0.0) for name in names]
        rows.append(np.array(parts) / (_NOISE * max(sum(parts), 1e-12)))
    return np.array(rows)


def _gain(information: Array, rows: Array) -> float:
    """How much the logarithm of the determinant grows with these rows."""
    inner = np.eye(len(rows)) + rows @ np.linalg.solve(information, rows.T)
    return float(np.linalg.slogdet(inner)[1])


def _shuffled_in_blocks(cells: Sequence[Cell]) -> list[Cell]:
    rng = random.Random(len(cells))
    out: list[Cell] = []
    for start in range(0, len(cells), _BLOCK):
        block = list(cells[start : start + _BLOCK])
        rng.shuffle(block)
        out += block
    return out
