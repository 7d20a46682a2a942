"""Which runs, in which order."""

from __future__ import annotations

import itertools

from tests.bench_fakes import cards, model
from tuner.cells import Bench, Sizes, candidate_cells
from tuner.sweep import ANCHOR_EVERY, FIRST, Speeds, n_identified, order_cells, steps

_SIZES = Sizes(n_prompt=512, n_gen=32, n_ubatch=512, n_depth=1024)
_SPEEDS = Speeds(load_s=2.0, prompt_t_s=400.0, decode_t_s=40.0)


def _bench() -> Bench:
    return Bench(model=model(), devices=cards(), short_model=model(4))


def test_the_first_runs_teach_most() -> None:
    """Half of the runs in our order tell apart most of what all do; in the listed order, less."""
    bench = _bench()
    cells = candidate_cells(bench, _SIZES)
    costs_s = {cell.label: _SPEEDS.step_seconds(cell, 3) for cell in cells}
    ordered = order_cells(bench, cells, costs_s)
    assert sorted(c.label for c in ordered) == sorted(c.label for c in cells)
    assert tuple(c.label for c in ordered[: len(FIRST)]) == FIRST
    n = len(cells) // 2
    assert n_identified(bench, ordered[:n]) > n_identified(bench, cells[:n])
    assert n_identified(bench, ordered[:n]) >= 0.75 * n_identified(bench, cells)


def test_fewer_layers_part_what_does_not_grow() -> None:
    """Without a shorter model the constant and the cost per layer are one and the same."""
    long_only = Bench(model=model(), devices=cards())
    both = _bench()
    assert n_identified(both, candidate_cells(both, _SIZES)) > n_identified(
        long_only, candidate_cells(long_only, _SIZES)
    )


def test_expensive_runs_come_later() -> None:
    """Of two runs that teach the same, the cheaper one is made first."""
    bench = _bench()
    cells = candidate_cells(bench, _SIZES)
    costs_s = {cell.label: 1.0 for cell in cells}
    dear = "on CUDA0"
    cheap = [c.label for c in order_cells(bench, cells, costs_s)].index(dear)
    late = [c.label for c in order_cells(bench, cells, costs_s | {dear: 100.0})].index(dear)
    assert late > cheap


def test_anchors_between_all_others() -> None:
    """Every cell once before any twice, the second round in another order, anchors all along."""
    cells = candidate_cells(_bench(), _SIZES)
    made = list(itertools.islice(steps(cells), 70))
    plain = [step for step in made if not step.is_anchor]
    n = len(cells) - 1
    assert len({step.cell.label for step in plain[:n]}) == n
    first, second = ([s.cell.label for s in plain[i * n : (i + 1) * n]] for i in (0, 1))
    assert sorted(first) == sorted(second) and first != second
    places = [i for i, step in enumerate(made) if step.is_anchor]
    assert places[0] == 0
    assert {b - a for a, b in itertools.pairwise(places)} == {ANCHOR_EVERY + 1}
    assert [made[i].repetition for i in places] == list(range(len(places)))


def test_a_lone_cell_is_repeated() -> None:
    """A sweep of one cell is its anchor, over and over."""
    (cell,) = candidate_cells(_bench(), _SIZES)[:1]
    made = list(itertools.islice(steps((cell,)), 3))
    assert [(s.cell.label, s.is_anchor, s.repetition) for s in made] == [
        ("none", True, i) for i in range(3)
    ]


def test_tests_are_as_long_as_the_machine_is_fast() -> None:
    """A card gets llama.cpp's own ubatch and long prompts, a slow processor short ones."""
    fast = Speeds(load_s=1.0, prompt_t_s=3000.0, decode_t_s=100.0).sizes()
    assert (fast.n_prompt, fast.n_ubatch, fast.n_gen) == (2048, 512, 32)
    slow = Speeds(load_s=5.0, prompt_t_s=20.0, decode_t_s=2.0).sizes()
    assert (slow.n_prompt, slow.n_ubatch, slow.n_gen) == (64, 64, 8)


def test_costs_count_warm_up_and_depth() -> None:
    """A run costs its load, the prompt that fills the context, and all repetitions."""
    cells = {c.label: c for c in candidate_cells(_bench(), _SIZES)}
    flat = _SPEEDS.step_seconds(cells["none"], 3)
    assert abs(flat - (2.0 + 4 * (512 + 128) / 400 + (3 * 32 + 1) / 40)) < 1e-9
    deep = _SPEEDS.step_seconds(cells["none, depth 1024"], 3)
    assert abs(deep - flat - (1024 - 4 * 128) / 400) < 1e-9
