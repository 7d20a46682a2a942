"""Layers that stand for all of a big model's."""

from __future__ import annotations

from tuner.layer_choice import candidates, donors, good_counts, is_known_by_count


def test_every_nth_layer_keeps_its_place() -> None:
    """Of layers in a period the first whole periods are taken."""
    kinds = ["swa", "swa", "swa", "full"] * 3
    assert next(candidates(kinds, 8, n_lead=0)) == tuple(range(8))
    assert good_counts(kinds, n_lead=0) == (12, 8, 4)


def test_leading_layers_in_proportion() -> None:
    """Three leading layers of 61 are one of six, and the rest keeps its place in the period."""
    kinds = ["dense"] * 3 + ["a", "b"] * 29
    assert next(candidates(kinds, 6, n_lead=3)) == (0, 3, 4, 5, 6, 7)
    assert kinds[3] == "a"  # layer 1 of the cut must be odd as layer 3 is
    kinds = ["dense"] * 2 + ["a", "b"] * 29
    assert next(candidates(kinds, 3, n_lead=2)) == (0, 3, 4)


def test_irregular_layers_are_spread() -> None:
    """Without a period each kind comes in proportion, once at least, in order."""
    kinds = [*"mmamfmmmamf", "x"]
    chosen = next(candidates(kinds, 6, n_lead=0))
    assert chosen == tuple(sorted(chosen))
    assert {kinds[il] for il in chosen} == set("mafx")
    assert sum(kinds[il] == "m" for il in chosen) == 3


def test_types_come_in_proportion() -> None:
    """A quarter of the layers with the larger type stays a quarter, in the order of the model."""
    kinds = ["moe"] * 16
    types = ["q6" if il % 4 == 3 else "q4" for il in range(16)]
    taken = donors(kinds, types, range(8))
    assert [types[il] for il in taken].count("q6") == 2
    assert taken == tuple(sorted(taken))


def test_types_come_from_layers_of_the_same_kind() -> None:
    """A dense layer never lends its tensors to a layer with experts."""
    kinds = ["dense", "moe", "moe", "dense", "moe", "moe"]
    taken = donors(kinds, list("abcdef"), (0, 1, 2))
    assert [kinds[il] for il in taken] == ["dense", "moe", "moe"]


def test_models_known_by_their_count() -> None:
    """llama.cpp takes DeepSeek-2 files of 26 or 27 layers for the lite ones."""
    assert is_known_by_count("deepseek2", 27, 102400)
    assert is_known_by_count("deepseek2", 48, 128256)
    assert not is_known_by_count("deepseek2", 48, 154880)
    assert not is_known_by_count("qwen3moe", 27, 102400)
