"""llama.cpp as the judge of placement rules and memory, architecture by architecture."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.judge import Tally, judge, moe_files
from offload.engine.binaries import library_folder

CELLS = 360
REFUSED_MAX = 0.2
"""Share of drawn cells llama.cpp may refuse to load (an option the architecture lacks)."""


@pytest.fixture(scope="module")
def tally(llama_cpp_python: None, fit_params: Path, archs_dir: Path) -> tuple[Tally, list[str]]:
    """Random cells over every mixture-of-experts architecture llama.cpp writes.

    The judge is build b11434, whose rules the planner mirrors: llama-cpp-python's own,
    older llama.cpp keeps one indexer key less for qwen4exp.
    """
    paths = moe_files(archs_dir)
    assert len(paths) >= 45
    counted, lines = Tally(), []
    for cell, _, verification in judge(paths, CELLS, 2, library_folder(fit_params)):
        if verification is None:
            counted.refused += 1
        else:
            lines += list(counted.add(cell, verification))
    return counted, lines


def test_enough_was_judged(tally: tuple[Tally, list[str]]) -> None:
    """Most cells are accepted by llama.cpp, so that agreement means something."""
    counted, _ = tally
    assert counted.refused <= REFUSED_MAX * CELLS


@pytest.mark.parametrize("what", ["wrong_owner", "wrong_tensors", "wrong_weights", "wrong_context"])
def test_places_weights_and_context_are_llama_cpps(
    tally: tuple[Tally, list[str]], what: str
) -> None:
    """Owner of every layer, moved tensors, weights and context: equal in every cell."""
    counted, lines = tally
    assert getattr(counted, what) == 0, "\n".join(lines[:20])


def test_compute_is_in_its_band(tally: tuple[Tally, list[str]]) -> None:
    """At least 99 % of devices: not over 5 % or 8 MiB below, not over 25 % or 32 MiB above."""
    counted, lines = tally
    outside = counted.compute_low + counted.compute_high
    assert outside <= 0.01 * counted.devices, "\n".join(lines[:20])
