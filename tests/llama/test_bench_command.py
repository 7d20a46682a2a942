"""`offload bench` with the real llama.cpp on virtual cards, and what may go wrong meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from offload.engine.binaries import find_binary
from tests.cli.test_plan_command import offload
from tests.missing import missing
from tuner.bench import run_sweep, virtual_devices
from tuner.cells import Bench, Cell, Timed
from tuner.profile import read_profile
from tuner.runners import InProcess, LlamaBench, timed_of
from tuner.store import SampleLog, read_samples
from tuner.subject import own_model
from tuner.synth import write_random

pytestmark = pytest.mark.usefixtures("llama_cpp_python")


@pytest.fixture(autouse=True)
def _homes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tiny_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So small that a run takes a second."""
    path = tmp_path_factory.mktemp("tiny") / "moe.gguf"
    return write_random(path, arch="qwen3moe", n_layer=8, n_vocab=512)


@pytest.fixture(scope="module")
def llama_bench() -> Path:
    """A `llama-bench`."""
    return find_binary("llama-bench") or missing("llama-bench is not here")


def _bench(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return offload("bench", *args, "--virtual", "2")


@pytest.mark.usefixtures("llama_bench")
def test_a_profile_of_virtual_cards(tiny_moe: Path, tmp_path: Path) -> None:
    """stdout is the profile as JSON, the file says the same, and no folder is named in it."""
    path = tmp_path / "p.json"
    done = _bench(tiny_moe, "--time", "20s", "--profile", path, "-o", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema_version"] == 1
    labels = {sample["label"] for sample in answer["samples"]}
    assert {"none", "all"} <= labels
    for sample in answer["samples"]:
        assert sample["samples_ns"] and sample["work"] and sample["test_time"]
    names = {c["name"] for c in answer["coefficients"]}
    assert any(name.startswith("decode.read.CPU") for name in names)
    assert any(name.startswith("decode.read.RPC1") for name in names)
    text = path.read_text()
    assert str(tmp_path) not in text and str(tiny_moe.parent) not in text
    assert "127.0.0.1" not in text
    assert len(read_profile(path).samples) == len(answer["samples"])
    assert list(tmp_path.glob("*.jsonl")) == []


def test_in_process_where_there_is_no_llama_bench(tiny_moe: Path, tmp_path: Path) -> None:
    """llama-cpp-python gives the same fields for the same tests."""
    devices = virtual_devices(2, 1 << 40)
    with own_model(str(tiny_moe), 1 << 40) as subject, SampleLog(tmp_path / "log.jsonl") as log:
        sweep = run_sweep(
            subject, devices, runner=InProcess(build_number=11312), log=log, time_s=5.0,
            n_threads=1, virtual=True,
        )  # fmt: skip
    assert {s["label"] for s in sweep.samples} >= {"none", "all"}
    assert not sweep.failures
    for sample in sweep.samples:
        assert len(sample["samples_ns"]) == 3 and min(sample["samples_ns"]) > 0
        assert sample["avg_ts"] > 0


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen3next", "gemma4"])
def test_depths_in_process(arch: str, tmp_path: Path) -> None:
    """Attention, windows and recurrent states all keep what fills the context.

    A run whose context was read again, and so timed, is an error.
    """
    path = write_random(tmp_path / "m.gguf", arch=arch, n_layer=4)
    tests = (Timed(n_prompt=16, n_depth=300), Timed(n_gen=4, n_depth=300))
    cell = Cell(label="deep", counts=(), host_layers=(), n_ubatch=128, tests=tests)
    with own_model(str(path), 1 << 40) as subject:
        records = list(InProcess().run(Bench(model=subject.model, devices=()), cell, 2))
    assert [timed_of(cell, record) for record in records] == list(tests)
    assert all(len(record["samples_ns"]) == 2 for record in records)


def test_both_ways_use_the_same_words(tiny_moe: Path, llama_bench: Path, tmp_path: Path) -> None:
    """Whatever the session reports is called as llama-bench calls it, and says the same."""
    records: list[dict[str, Any]] = []
    for runner in (InProcess(), LlamaBench(program=llama_bench)):
        log_path = tmp_path / f"{runner.name}.jsonl"
        with own_model(str(tiny_moe), 1 << 40) as subject, SampleLog(log_path) as log:
            sweep = run_sweep(
                subject, virtual_devices(2, 1 << 40), runner=runner, log=log, time_s=1.0,
                n_threads=1, virtual=True,
            )  # fmt: skip
        found = [s for s in sweep.samples if s["label"] == "all" and s["n_gen"]]
        records.append(found[0])
    ours, theirs = records
    assert ours.keys() <= theirs.keys()
    same = ("n_gpu_layers", "tensor_split", "tensor_buft_overrides", "devices", "type_k",
            "split_mode", "n_threads", "load_mode", "no_host", "no_op_offload")  # fmt: skip
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}


@pytest.fixture
def failing_bench(llama_bench: Path, tmp_path: Path) -> Path:
    """A folder with a llama-bench that dies of every run with all experts on the host."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "llama-bench"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "if any(arg.endswith('=CPU') and 'blk' not in arg for arg in sys.argv):\n"
        "    print('error: this run is meant to fail', file=sys.stderr); os.abort()\n"
        f"os.execv({str(llama_bench)!r}, [{str(llama_bench)!r}, *sys.argv[1:]])\n"
    )
    program.chmod(0o755)
    return folder


def test_a_llama_cpp_that_dies_of_one_placement(
    tiny_moe: Path, failing_bench: Path, tmp_path: Path
) -> None:
    """It is told of in one line, stands in the answer, and the others are timed."""
    path = tmp_path / "p.json"
    done = _bench(
        tiny_moe, "--time", "5s", "--llama-server", failing_bench, "--profile", path, "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    assert "'all' failed, the rest goes on: llama-bench was ended by SIGABRT" in done.stderr
    answer = json.loads(done.stdout)
    assert "all" in {failure["label"] for failure in answer["failures"]}
    labels = {sample["label"] for sample in answer["samples"]}
    assert "none" in labels and "all" not in labels


def _children(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """An `offload bench` of the built-in shape that has kept its first samples."""
    with subprocess.Popen(
        [sys.executable, "-m", "offload", "bench", "--virtual", "2", "--time", "60s"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        deadline_s = time.monotonic() + 240
        sweeps = tmp_path / "state" / "offload" / "sweeps"
        while not any(path.read_bytes().count(b'"sample"') for path in sweeps.glob("*.jsonl")):
            assert process.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.05)
        yield process
        process.kill()


@pytest.mark.usefixtures("llama_bench")
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_what_ends_a_bench_ends_everything(
    running: subprocess.Popen[str], sign: signal.Signals, tmp_path: Path
) -> None:
    """No server, no program, no half sample is left; after Ctrl-C no model either."""
    children = _children(running)
    assert len(children) >= 3
    running.send_signal(sign)
    _, stderr = running.communicate(timeout=60)
    gone, alive = psutil.wait_procs(children, timeout=20)
    assert not alive and len(gone) == len(children)
    (log,) = (tmp_path / "state" / "offload" / "sweeps").glob("*.jsonl")
    assert read_samples(log)
    models = list((tmp_path / "cache").rglob("*.gguf"))
    if sign == signal.SIGINT:
        assert running.returncode == 130
        assert "what was timed is kept" in stderr
        assert models == []
    else:
        assert models  # the next bench removes it, see tests/unit/test_scale_model.py


@pytest.mark.usefixtures("llama_bench")
def test_too_little_memory_for_any_cut() -> None:
    """Exit code 2, and how much there should be."""
    done = _bench("--host-ram", "700MiB", "--time", "20s")
    assert done.returncode == 2
    assert "room for" in done.stderr and done.stderr.count("\n") == 1


def test_what_cannot_be_meant(tiny_moe: Path) -> None:
    """Exit code 2 and one line for each."""
    for args, words in (
        ((tiny_moe, "--like", tiny_moe), "not both"),
        ((tiny_moe, "--keep"), "stays anyway"),
        (("--time", "soon"), "write it like"),
        (("--time", "0s"), "from a second"),
        (("no-such.gguf",), "no such file"),
        (("--like", "no-such.gguf"), "no such file"),
    ):
        done = _bench(*args)
        assert done.returncode == 2, args
        assert words in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert done.stdout == ""
