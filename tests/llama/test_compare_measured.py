"""`offload compare --measure` with the real llama-bench on virtual cards."""

from __future__ import annotations

import json
from pathlib import Path

from offload.engine.binaries import find_binary
from tests.cli.test_plan_command import offload
from tests.missing import missing
from tuner.synth import write_random


def test_placements_are_run(tmp_path: Path) -> None:
    """Each that fits is timed on two RPC cards: rates, lengths, no failure, and progress."""
    if find_binary("llama-bench") is None:
        missing("llama-bench is not here")
    path = write_random(tmp_path / "moe.gguf", arch="qwen3moe", n_layer=4, n_vocab=512)
    done = offload(
        "compare", path, "--gpus", "2", "--vram", "1GiB", "--margin", "100MiB", "-c", "512",
        "--no-fit", "--measure", "--virtual", "--time", "12s", "-o", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    timed = {
        one["name"]: one["measured"] for one in json.loads(done.stdout)["placements"]
        if one["feasible"]
    }  # fmt: skip
    assert {"own", "all", "CUDA1 alone"} <= set(timed)
    assert timed["own"]["n_runs"] >= 1 and timed["own"]["decode_t_s"] > 0
    assert not [name for name, one in timed.items() if one and one["error"]], done.stderr
    assert "s left (last: own)" in done.stderr


def test_cards_that_are_not_here(tmp_path: Path) -> None:
    """What runs on the host would be called a card's speed: refused before anything runs."""
    if find_binary("llama-bench") is None:
        missing("llama-bench is not here")
    path = write_random(tmp_path / "moe.gguf", arch="qwen3moe", n_layer=2, n_vocab=512)
    done = offload(
        "compare", path, "--gpus", "1", "--vram", "1GiB", "--margin", "100MiB", "-c", "512",
        "--no-fit", "--measure", "--time", "5s",
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert "sees no CUDA0" in done.stderr and "s left" not in done.stderr


def test_virtual_alone_means_nothing(tmp_path: Path) -> None:
    """--virtual without --measure is refused in one line."""
    path = write_random(tmp_path / "moe.gguf", arch="qwen3moe", n_layer=2, n_vocab=512)
    done = offload("compare", path, "--gpus", "1", "--vram", "1GiB", "--virtual")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--measure" in done.stderr
