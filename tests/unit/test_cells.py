"""The runs that could be made, and where everything is in each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload.device import device_by_name
from offload.emit import emit_bench_args
from offload.rules import replay
from offload.split import HOST
from offload.units import GIB
from tests.bench_fakes import cards, model
from tuner.cells import Bench, Cell, Sizes, candidate_cells, even_counts

_SIZES = Sizes(n_prompt=512, n_gen=32, n_ubatch=512, n_depth=1024)


def _bench(n_cards: int = 2) -> Bench:
    return Bench(model=model(), devices=cards(n_cards), short_model=model(4))


def _cells(bench: Bench) -> dict[str, Cell]:
    return {cell.label: cell for cell in candidate_cells(bench, _SIZES)}


def test_the_runs_people_ask_for() -> None:
    """All, some and none of the experts on cards; each order; each card; each setting."""
    assert set(_cells(_bench())) == {
        "none", "all", "own 1/4", "own 2/4", "own 3/4", "first 2/4", "last 2/4",
        "only CUDA0", "only CUDA1", "on CUDA0", "on CUDA1", "on CUDA0, all", "on CUDA1, all",
        "half the layers", "none, depth 1024", "all, depth 1024", "none, -ub 128", "all, -ub 128",
        "none, -ub 2048", "all, -ub 2048", "all, --no-host", "all, no op-offload",
        "fewer layers", "fewer layers, all",
    }  # fmt: skip


def test_other_numbers_of_threads_are_asides() -> None:
    """Half and twice the threads, where there is more than one; the command line has them."""
    cells = _cells(replace(_bench(), n_threads=8))
    asides = {label: cell for label, cell in cells.items() if cell.n_threads}
    assert {label: cell.n_threads for label, cell in asides.items()} == {
        "all, -t 4": 4, "all, -t 16": 16
    }  # fmt: skip
    assert all(cell.host_layers == cells["all"].host_layers for cell in asides.values())


def test_own_relieves_every_card_first_only_one() -> None:
    """Half of each card's layers, against the first half, which is the first card's."""
    cells = _cells(_bench())
    assert cells["own 2/4"].host_layers == (0, 1, 4, 5)
    assert cells["first 2/4"].host_layers == (0, 1, 2, 3)
    assert cells["last 2/4"].host_layers == (4, 5, 6, 7)
    assert cells["only CUDA1"].host_layers == (4, 5, 6, 7)


def test_rules_put_the_experts_where_the_work_is_counted() -> None:
    """llama-bench is told of exactly the tensors that the placement has on the host."""
    bench = _bench()
    for cell in candidate_cells(bench, _SIZES):
        launch = bench.launch(cell)
        names = bench.model_of(cell).tensor_names
        placed = bench.placement(cell).placed
        assert set(replay(launch.rules, names)) == set(placed)
        assert set(placed.values()) <= {HOST}
        assert sum(launch.tensor_split) == launch.n_gpu_layers == sum(cell.counts)
        assert emit_bench_args(launch)[0] == "llama-bench"


def test_work_follows_the_placement() -> None:
    """What leaves the cards is read on the host instead; a card that owns nothing does nothing."""
    bench = _bench()
    cells = _cells(bench)
    decode = {label: bench.work(cells[label], cells[label].tests[0]).amounts for label in cells}
    assert not any(".CPU." in name for name in decode["none"])
    assert any(".CPU." in name for name in decode["all"])
    assert any(".CPU_REPACK." in name for name in decode["all, --no-host"])
    assert not any("CUDA1" in name for name in decode["on CUDA0"])
    assert decode["none"]["decode.const"] == 32


def test_cells_that_do_not_fit_a_card_are_left_out() -> None:
    """A card too small for everything is not asked to hold it."""
    small = device_by_name("CUDA1", 2 * GIB)
    bench = replace(_bench(), devices=(cards()[0], small))
    labels = _cells(bench)
    assert "on CUDA0" in labels and "on CUDA1" not in labels
    assert "on CUDA1, all" in labels


def test_machines_without_cards_or_with_one() -> None:
    """One card has no orders; no card has settings only; cards behind RPC offload no ops."""
    assert not any("CUDA" in label or "first" in label for label in _cells(_bench(1)))
    bare = Bench(model=model(), devices=())
    assert set(_cells(bare)) == {
        "none", "unpacked", "none, depth 1024", "none, -ub 128", "none, -ub 2048"
    }  # fmt: skip
    rpc = device_by_name("RPC0", 24 * GIB, endpoint="127.0.0.1:50052")
    remote = _cells(Bench(model=model(), devices=(rpc,)))
    assert "all, not repacked" in remote and "all, no op-offload" not in remote


@pytest.mark.parametrize(("n_units", "n_cards"), [(9, 2), (37, 3), (5, 4), (2, 4)])
def test_even_counts_use_all_units(n_units: int, n_cards: int) -> None:
    """Shares differ by one at most."""
    counts = even_counts(n_units, n_cards)
    assert sum(counts) == n_units and max(counts) - min(counts) <= 1
