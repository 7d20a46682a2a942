"""Do the fastest placements fit where llama.cpp itself is asked?"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fastest_cells import SLACK_BYTES, make_cell
from offload.model import make_model
from offload.source import read_header
from tuner.synth import write_shape


@pytest.mark.parametrize(
    ("shape", "machines"),
    [
        ("gpt-oss-120b", ("3090+3060", "8gb+24gb", "5090+3060+p40+t4")),
        ("qwen3-next-80b-a3b", ("4090+2x3060", "p40+2x3090")),
        ("deepseek-v3", ("2x3090+p40",)),
    ],
)
def test_llama_cpp_agrees_that_it_fits(
    llama_cpp_python: None, tmp_path: Path, shape: str, machines: tuple[str, ...]
) -> None:
    """A dry run of the emitted arguments keeps every card within its budget; nothing is faster."""
    model = make_model(read_header(write_shape(shape, tmp_path / "m.gguf")))
    for machine in machines:
        cell = make_cell(shape, model, machine, judge=True)
        assert cell.plan.feasible and not cell.is_slower, machine
        assert cell.over_bytes is not None and cell.over_bytes <= SLACK_BYTES, machine
