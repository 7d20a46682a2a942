"""From samples to the profile of a machine, and how it is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench_fakes import FakeRunner, cards, subject
from tuner.bench import Sweep, run_sweep
from tuner.bench_text import bench_to_json, notes, render_bench
from tuner.learn import Learned, cpu_name, default_path, hardware_of, known_profile, learn
from tuner.profile import write_profile
from tuner.store import SampleLog

_HARDWARE = hardware_of(
    tuple(replace(card, description="NVIDIA RTX 3090") for card in cards()),
    n_threads=8, memory_total_bytes=64 << 30,
)  # fmt: skip


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A whole one, with a placement that fails."""
    runner = FakeRunner(noise=0.01, fails=frozenset(["on CUDA1"]))
    with SampleLog(tmp_path_factory.mktemp("sweep") / "log.jsonl") as log:
        return run_sweep(
            subject(), cards(), runner=runner, log=log, time_s=900.0, n_threads=1,
            clock=runner.clock,
        )  # fmt: skip


@pytest.fixture(scope="module")
def learned(sweep: Sweep) -> Learned:
    """What it says."""
    return learn(sweep.samples, _HARDWARE)


def test_one_file_for_each_machine_and_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named after the cards, the processor, the memory and the build."""
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    hardware = replace(_HARDWARE, cpu="AMD EPYC 7551 32-Core Processor")
    assert default_path(hardware, 11434) == Path(
        "/state/offload/profiles/2x-nvidia-rtx-3090_amd-epyc-7551-32-core-processor_64gib_b11434.json"
    )
    bare = replace(hardware, cards=(), cpu="", memory_total_bytes=None)
    assert default_path(bare, None).name.endswith(".json")


def test_samples_of_other_models_stay(sweep: Sweep, learned: Learned, tmp_path: Path) -> None:
    """A profile grows by models, a model's new samples take the place of its old ones."""
    path = tmp_path / "p.json"
    write_profile(learned.profile, path)
    known = known_profile(path, _HARDWARE)
    assert known is not None
    assert known_profile(path, replace(_HARDWARE, n_threads=4)) is None
    other: list[dict[str, Any]] = json.loads(json.dumps(sweep.samples[:12]))
    for sample in other:
        sample["model"]["digest"] = "another"
    grown = learn(other, _HARDWARE, known=known)
    assert grown.n_old == len(sweep.samples)
    assert len(grown.profile.samples) == len(sweep.samples) + 12
    again = learn(sweep.samples, _HARDWARE, known=grown.profile)
    assert again.n_old == 12
    newer = [sample | {"build_number": 12000} for sample in other]
    assert learn(newer, _HARDWARE, known=known).n_old == 0


def test_files_that_are_no_profile_are_nothing_known(tmp_path: Path) -> None:
    """A missing and a broken file count as none; the broken one is kept (test_profile)."""
    assert known_profile(tmp_path / "none.json", _HARDWARE) is None
    (tmp_path / "p.json").write_text("{")
    assert known_profile(tmp_path / "p.json", _HARDWARE) is None


def test_the_processor_names_itself(tmp_path: Path) -> None:
    """By /proc/cpuinfo where it is, else as Python has it."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A Fast One\n")
    assert cpu_name(cpuinfo) == "A Fast One"
    assert cpu_name(tmp_path / "none")


@pytest.mark.parametrize("markdown", [False, True])
def test_the_table_shows_speeds_costs_and_what_to_make_of_it(
    sweep: Sweep, learned: Learned, markdown: bool
) -> None:
    """Every placement with its speeds, every cost in words, failures and scatter in notes."""
    text = render_bench(learned, sweep, Path("/p.json"), markdown=markdown)
    for label in ("none", "own 2/4", "only CUDA1", "fewer layers, all"):
        assert label in text
    table = learned.profile.coefficients.table
    known = {c.name for c in table.values() if c.value > c.standard_error}
    assert known and {name for name in table if name in text} >= known
    unknown = "decode.wait.CUDA0"  # nobody waits on this machine
    assert unknown in table and unknown not in text
    assert "2 runs failed: on CUDA1" in text
    assert "profile: /p.json" in text
    assert ("| placement" in text) is markdown


def test_the_json_is_the_profile_and_more(sweep: Sweep, learned: Learned) -> None:
    """It can be written as JSON as it stands, and has the contract's keys."""
    answer = json.loads(json.dumps(bench_to_json(learned, sweep, None), allow_nan=False))
    for key in ("schema_version", "machine", "llama_cpp", "created", "coefficients", "samples"):
        assert key in answer
    assert answer["profile"] is None
    assert answer["llama_cpp"] == {"build_number": 11434, "build_commit": "abc"}
    assert len(answer["failures"]) == 2


def test_notes_say_what_disturbed(sweep: Sweep, learned: Learned) -> None:
    """Load, throttling, drift and outliers are told of; what is quiet is not."""
    noisy = [dict(s, load=0.5, throttled=[0], outliers=[1]) for s in sweep.samples]
    slow = [s for s in noisy if s["is_anchor"]][-1]
    slow["samples_ns"] = [2 * ns for ns in slow["samples_ns"]]
    text = "\n".join(notes(learned, replace(sweep, samples=noisy)))
    for words in ("other programs used", "heat or power", "stood out", "longer than at its"):
        assert words in text
    quiet = [dict(s, load=0.0, throttled=[], outliers=[]) for s in sweep.samples]
    calm = "\n".join(notes(learned, replace(sweep, samples=quiet, failures=[])))
    for words in ("other programs used", "heat or power", "stood out", "longer than at its"):
        assert words not in calm
    few = replace(sweep, samples=quiet[:8], failures=[], full_s=700.0)
    assert "--time" in "\n".join(notes(learned, few))


def test_more_threads_are_advised_where_they_help(sweep: Sweep, learned: Learned) -> None:
    """A host that decodes a quarter faster with other threads is told of; a hair is not."""
    whole = next(s for s in sweep.samples if s["label"] == "all" and s["n_gen"])
    for factor, is_told in ((0.8, True), (0.99, False)):
        aside = dict(whole, label="all, -t 16", is_aside=True)
        aside["samples_ns"] = [round(ns * factor) for ns in whole["samples_ns"]]
        told = "\n".join(notes(learned, replace(sweep, samples=[*sweep.samples, aside])))
        assert ("-t 16 decodes" in told) is is_told
