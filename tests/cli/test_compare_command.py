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
    assert placements[0]["feasible"] and not placements[4]["feasible"]
    assert placements[0]["prediction"]["decode_t_s"] > placements[3]["prediction"]["decode_t_s"]


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
