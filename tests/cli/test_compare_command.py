"""`offload compare` as scripts use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offload.engine.binaries import find_binary
from tests.cli.test_plan_command import offload
from tests.missing import missing
from tuner.synth import write_shape


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 119B shape."""
    return write_shape("mistral-small-4-119b", tmp_path_factory.mktemp("m") / "119b.gguf")


TWO = ("--gpus", "2", "--vram", "22GiB", "--host-ram", "64GiB", "-c", "8192")


def test_table_and_json(shape: Path) -> None:
    """Each placement is a line and an object; exit code 0, since ours fits."""
    done = offload("compare", shape, *TWO, "--no-fit")
    assert done.returncode == 0 and done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()[1:7]] == [
        "own", "even", "first", "last", "all", "none",
    ]  # fmt: skip
    done = offload("compare", shape, *TWO, "--no-fit", "-o", "json")
    placements = json.loads(done.stdout)["placements"]
    by_name = {one["name"]: one for one in placements}
    assert by_name["own"]["feasible"] and not by_name["none"]["feasible"]
    assert by_name["own"]["prediction"]["decode_t_s"] > by_name["all"]["prediction"]["decode_t_s"]
    assert by_name["own"]["turn_s"] < by_name["all"]["turn_s"]


def test_the_shortest_turn_is_marked(shape: Path) -> None:
    """One star, at the shortest turn of those that fit."""
    done = offload("compare", shape, *TWO, "--no-fit", "--turn", "prompt=100,generate=900")
    lines = done.stdout.splitlines()
    assert lines[0].endswith("turn s")
    assert sum(line.endswith("*") for line in lines) == 1
    done = offload("compare", shape, *TWO, "--no-fit", "-o", "json")
    placements = json.loads(done.stdout)["placements"]
    best = min((p for p in placements if p["feasible"]), key=lambda p: p["turn_s"])
    assert [p["name"] for p in placements if p["fastest"]] == [best["name"]]


def test_nothing_fits(shape: Path) -> None:
    """Where no placement fits the answer is no."""
    done = offload(
        "compare", shape, "--gpus", "1", "--vram", "2GiB", "--host-ram", "8GiB", "--no-fit"
    )
    assert done.returncode == 1 and "short by" in done.stdout


def test_fit_joins_in(shape: Path) -> None:
    """Where llama-fit-params is here, `--fit`'s own choice is the last line."""
    if find_binary("llama-fit-params") is None:
        missing("llama-fit-params is not here")
    done = offload("compare", shape, *TWO)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[-1].startswith("--fit")
