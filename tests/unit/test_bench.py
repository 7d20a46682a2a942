"""A whole sweep on a machine of known costs, and all that can go wrong in it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offload.engine.targets import n_cores
from offload.errors import LlamaCppError, UsageError
from tests.bench_fakes import FakeRunner, cards, planted_seconds, subject
from tuner.bench import Progress, Sweep, choose_runner, run_sweep, sweep_key, virtual_devices
from tuner.cells import ANCHOR
from tuner.profile import Profile, read_profile
from tuner.runners import InProcess, LlamaBench
from tuner.samples import sample_seconds
from tuner.store import SampleLog, read_samples
from tuner.times import time_machine


def _sweep(path: Path, runner: FakeRunner, time_s: float = 600.0, **more: Any) -> Sweep:
    with SampleLog(path) as log:
        return run_sweep(
            subject(), cards(), runner=runner, log=log, time_s=time_s, n_threads=4,
            clock=runner.clock, **more,
        )  # fmt: skip


def test_a_sweep_fills_its_time(tmp_path: Path) -> None:
    """It ends in time, has used most of it, and every sample is on the disk."""
    runner = FakeRunner()
    start_s = runner.clock()
    seen: list[Progress] = []
    sweep = _sweep(tmp_path / "log.jsonl", runner, on_progress=seen.append)
    assert 0.9 * 600 < runner.clock() - start_s <= 1.02 * 600
    rows = [row for row in read_samples(tmp_path / "log.jsonl") if row["kind"] == "sample"]
    assert rows == json.loads(json.dumps(sweep.samples))
    assert seen[-1].n_done == len(sweep.samples) and seen[0].left_s > seen[-1].left_s
    assert len({row["label"] for row in rows}) == sweep.n_candidates
    assert next(label for label in runner.made if label != "probe") == ANCHOR


def test_samples_say_what_they_are(tmp_path: Path) -> None:
    """Amounts of work, placement, place in the sweep, load; no path of this machine."""
    sweep = _sweep(tmp_path / "log.jsonl", FakeRunner())
    for i, sample in enumerate(sweep.samples):
        assert sample["order"] == i
        assert sample_seconds(sample) == pytest.approx(planted_seconds(sample["work"]), rel=1e-3)
        assert 0 <= sample["load"] <= 1
        assert sample["model"]["n_layer_source"] == 48
    layers = {s["model"]["n_layer"] for s in sweep.samples if "fewer layers" in s["label"]}
    assert layers == {4}
    anchors = [s for s in sweep.samples if s["is_anchor"]]
    assert len(anchors) > 4 and {s["label"] for s in anchors} == {ANCHOR}


def test_a_short_time_still_gives_the_ends(tmp_path: Path) -> None:
    """None and all are timed however little time there is, and nothing else."""
    sweep = _sweep(tmp_path / "log.jsonl", FakeRunner(load_s=60.0), time_s=90.0)
    assert [s["label"] for s in sweep.samples][::3] == ["none", "all"]


def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    """What was done is not done again, its time is counted, the probe is not repeated."""
    path = tmp_path / "log.jsonl"
    with pytest.raises(KeyboardInterrupt):
        _sweep(path, FakeRunner(stop_after=6))
    n_before = len(read_samples(path))
    told: list[str] = []
    runner = FakeRunner()
    start_s = runner.clock()
    sweep = _sweep(path, runner, tell=told.append)
    assert "going on with an interrupted sweep: 15 samples" in told[0]
    assert "probe" not in runner.made
    assert len(read_samples(path)) > n_before
    made = [(s["label"], s["repetition"], s["is_anchor"], s["n_prompt"]) for s in sweep.samples]
    assert len(made) == len(set(made))
    assert runner.clock() - start_s < 600 - 6 * 2


def test_samples_of_yesterday_are_not_gone_on_with(tmp_path: Path) -> None:
    """After half a day a sweep starts anew."""
    path = tmp_path / "log.jsonl"
    with pytest.raises(KeyboardInterrupt):
        _sweep(path, FakeRunner(stop_after=6))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["created_s"] -= 13 * 3600
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    runner = FakeRunner()
    _sweep(path, runner)
    assert runner.made[0] == "probe"


def test_one_cell_that_fails_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    """It is tried twice, told once each, kept in the log without a path, and left alone."""
    told: list[str] = []
    runner = FakeRunner(fails=frozenset(["on CUDA1"]))
    sweep = _sweep(tmp_path / "log.jsonl", runner, time_s=2000.0, tell=told.append)
    assert runner.made.count("on CUDA1") == 2
    assert [f["label"] for f in sweep.failures] == ["on CUDA1"] * 2
    assert sweep.failures[0]["exit_code"] == 134
    assert "'on CUDA1' failed, the rest goes on" in told[0]
    assert len({s["label"] for s in sweep.samples}) == sweep.n_candidates - 1


def test_a_machine_where_nothing_runs(tmp_path: Path) -> None:
    """The first failure is the answer: llama.cpp's own words."""
    with pytest.raises(LlamaCppError, match=r"llama\.cpp died"):
        _sweep(tmp_path / "log.jsonl", FakeRunner(fails=frozenset(["probe"])))


def test_a_log_that_is_full(tmp_path: Path) -> None:
    """The user is told once; the sweep goes on in memory."""
    told: list[str] = []
    sweep = _sweep(Path("/dev/full"), FakeRunner(), tell=told.append)
    assert len([text for text in told if "could not be kept" in text]) == 1
    assert len({s["label"] for s in sweep.samples}) == sweep.n_candidates


_KILLED = """
import sys, time
from pathlib import Path
from tests.bench_fakes import FakeRunner, cards, subject
from tuner.bench import run_sweep
from tuner.store import SampleLog

class Slow(FakeRunner):
    def run(self, *args):
        for record in super().run(*args):
            time.sleep(0.02)
            yield record

runner = Slow()
with SampleLog(sys.argv[1]) as log:
    run_sweep(subject(), cards(), runner=runner, log=log, time_s=600, n_threads=4,
              clock=runner.clock, on_progress=lambda p: print(p.n_done, flush=True))
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_whatever_ends_it_only_the_run_in_progress_is_lost(
    sign: signal.Signals, tmp_path: Path
) -> None:
    """Each sample that was told of is there after a kill, and the sweep can be ended later."""
    path = tmp_path / "log.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(4)]
        time.sleep(0.03)
        process.send_signal(sign)
        told += [int(line) for line in process.stdout]
    kept = [row for row in read_samples(path) if row["kind"] == "sample"]
    assert len(kept) >= told[-1]
    runner = FakeRunner()
    sweep = _sweep(path, runner)
    assert sweep.samples[: len(kept)] == kept
    assert len({s["label"] for s in sweep.samples}) == sweep.n_candidates


def test_the_costs_of_the_machine_are_found(tmp_path: Path) -> None:
    """A fit of the sweep predicts a placement that was not in it, at half a percent of noise."""
    from offload.cost import Work, predict
    from tuner.cells import Bench, Cell, Timed

    runner = FakeRunner(noise=0.005)
    result = time_machine(
        subject(), cards(), runner=runner, time_s=900.0, profile=tmp_path / "p.json",
        clock=runner.clock,
    )  # fmt: skip
    bench = Bench(model=subject().model, devices=cards())
    cell = Cell(
        label="held out", counts=(6, 3), host_layers=(1, 2, 6), n_ubatch=512,
        tests=(Timed(n_gen=64, n_depth=100), Timed(n_prompt=1024)),
    )  # fmt: skip
    for timed in cell.tests:
        work = bench.work(cell, timed)
        found = predict(Work(amounts=dict(work.amounts)), result.learned.profile.coefficients)
        assert found is not None
        truth_s = planted_seconds(work.amounts)
        assert found.seconds == pytest.approx(truth_s, rel=0.05)
        assert found.low_s < truth_s < found.high_s


def test_a_profile_is_written_and_the_log_goes(tmp_path: Path) -> None:
    """The profile can be read again; samples of an earlier model stay in it."""
    path = tmp_path / "p.json"
    result = _time(path)
    assert result.path == path and result.error is None
    assert list(tmp_path.iterdir()) == [path]
    n_first = len(read_profile(path).samples)
    assert n_first == len(result.sweep.samples)
    again = _time(path, digest="another")
    # the models are the same, so the new samples take the place of the old ones
    assert len(read_profile(path).samples) == len(again.sweep.samples)


def _time(path: Path, *, digest: str = "") -> Any:
    runner = FakeRunner()
    what = replace(subject(), digest=digest or subject().digest)
    return time_machine(
        what, cards(), runner=runner, time_s=300.0, profile=path, clock=runner.clock
    )


def test_a_profile_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is there all the same, with the reason; the samples stay for the next time."""

    def full(profile: Profile, path: Path) -> None:
        raise UsageError(f"{path}: No space left on device; give another --profile")

    monkeypatch.setattr("tuner.times.write_profile", full)
    result = _time(tmp_path / "p.json")
    assert result.path is None
    assert isinstance(result.error, UsageError)
    assert result.learned.profile.coefficients.table
    assert len(list(tmp_path.glob("sweep-*.jsonl"))) == 1


@pytest.mark.parametrize("name", ["", "/dev/full"])
def test_a_profile_that_is_no_file(name: str, tmp_path: Path) -> None:
    """Before anything is timed, and without putting a file in the place of a device."""
    where = Path(name or tmp_path)
    kind = where.stat().st_mode
    with pytest.raises(UsageError, match="not a file; give another --profile"):
        _time(where)
    assert where.stat().st_mode == kind


def test_no_file_of_the_user_becomes_a_profile(tmp_path: Path) -> None:
    """Whatever is not a profile is kept, and said so before anything is timed."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF precious")
    with pytest.raises(UsageError, match="no profile, and it is kept"):
        _time(path)
    assert path.read_bytes() == b"GGUF precious"


def test_sweeps_are_told_apart() -> None:
    """Other cards, another model, another runner: not the same sweep."""
    runner, what = FakeRunner(), subject()
    keys = {
        sweep_key(what, cards(), runner, 4),
        sweep_key(what, cards(1), runner, 4),
        sweep_key(what, cards(), InProcess(), 4),
        sweep_key(what, cards(), runner, 2),
        sweep_key(replace(what, digest="x"), cards(), runner, 4),
        sweep_key(what, virtual_devices(2, 1 << 30), runner, 4),
    }
    assert len(keys) == 6
    assert n_cores() >= 1


def test_llama_bench_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program beside the named llama-server is used; without any, llama-cpp-python."""
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "llama-server").write_text("")
    assert choose_runner(str(tmp_path / "llama-server")) == LlamaBench(program=program)
    monkeypatch.setattr("tuner.bench.find_binary", lambda name, given=None: None)
    with contextlib.suppress(LlamaCppError):
        assert isinstance(choose_runner(None), InProcess)
