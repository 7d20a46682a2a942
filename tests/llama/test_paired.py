"""The arms of a speed check time a real llama.cpp, and its processes end with it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from offload.emit import Launch
from offload.errors import LlamaCppError, UsageError
from tests.missing import missing
from tuner.paired import (
    Arm,
    BenchArm,
    ServerArm,
    SessionArm,
    Sizes,
    SpeedOptions,
    choose_arm,
    compare_builds,
    compare_recorded,
    record_baseline,
)
from tuner.synth import write_random

_SIZES = Sizes(n_prompt=24, n_gen=4)


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """A small MoE, all of it on the processor."""
    path = tmp_path_factory.mktemp("paired") / "small.gguf"
    write_random(path, arch="qwen3moe", n_layer=3, n_expert=8, quant="Q8_0")
    return Launch(
        model_path=str(path),
        n_gpu_layers=0,
        devices=("none",),
        n_ctx=512,
        n_batch=512,
        n_ubatch=512,
        n_parallel=1,
        load_mode="none",
    )


def _program(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not on PATH")
    return Path(found)


def _arms(launch: Launch) -> Sequence[Arm]:
    return (
        ServerArm(program=_program("llama-server"), launch=launch, n_threads=1),
        SessionArm(launch=launch, n_threads=1),
        BenchArm(program=_program("llama-bench"), launch=launch, n_threads=1),
    )


def test_every_arm_tells_plausible_seconds(launch: Launch) -> None:
    """Each times decode and prefill of one model within a factor of 5 of the others."""
    found = []
    for arm in _arms(launch):
        with arm.open() as loaded:
            loaded.time(_SIZES)
            found.append(loaded.time(_SIZES))
            assert (loaded.pid is None) == isinstance(arm, BenchArm)
            if loaded.pid is not None:
                assert psutil.pid_exists(loaded.pid)
        assert loaded.pid is None or not psutil.pid_exists(loaded.pid)
        assert arm.build in arm.name and "/" not in arm.name
    for test in ("decode", "prefill"):
        seconds = [row[test] for row in found]
        assert min(seconds) > 0 and max(seconds) < 5 * min(seconds), (test, seconds)


def test_a_check_of_two_and_of_recorded_times(launch: Launch) -> None:
    """Two seconds of each: sizes are chosen, pairs are made, and something is said."""
    arm = _arms(launch)[0]
    options = SpeedOptions(time_s=2.0)
    check = compare_builds(arm, arm, options)
    assert check.n_pairs >= 2 and check.n_starts >= 1 and check.spent_s < 20
    assert [result.test for result in check.results] == ["decode", "prefill"]
    baseline = record_baseline(arm, options)
    recorded = compare_recorded(arm, baseline, options)
    assert recorded.sizes == baseline.sizes and recorded.machine_drift.keys() == {"copy", "hash"}


def test_the_arm_is_chosen_by_what_is_there(launch: Launch, tmp_path: Path) -> None:
    """A folder or program with a server: the server; only llama-bench: that; a name: in process."""
    folder = _program("llama-server").parent
    assert isinstance(choose_arm(str(folder), launch), ServerArm)
    assert isinstance(choose_arm("llama-cpp-python", launch), SessionArm)
    (tmp_path / "llama-bench").symlink_to(_program("llama-bench"))
    assert isinstance(choose_arm(str(tmp_path), launch), BenchArm)
    with pytest.raises(UsageError, match="no llama-server"):
        choose_arm(str(tmp_path / "none"), launch)


def test_what_llama_cpp_says_when_it_fails_is_passed_on(launch: Launch) -> None:
    """A card that is not there is an error with llama-server's own words."""
    there_is_none = replace(launch, devices=("Nope9",))
    arm = ServerArm(program=_program("llama-server"), launch=there_is_none, n_threads=1)
    with pytest.raises(LlamaCppError, match=r"llama-server ended.*Nope9"), arm.open():
        pass
