"""`offload check` with the real llama.cpp, and the documented CI examples as they stand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from benchmarks.speed_check_trials import slower_library
from offload.engine.binaries import find_binary
from offload.engine.verify import find_judge
from offload.source import read_header
from tests.missing import missing
from tuner.check.baseline import baseline_text, read_baseline, write_baseline
from tuner.synth import write_random, write_shape

pytestmark = pytest.mark.usefixtures("llama_cpp_python")

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's folder with its model and what was recorded of it, and `offload` on a path."""
    folder = tmp_path_factory.mktemp("check")
    for name in ("offload.toml", "check.sh"):
        shutil.copy(EXAMPLES / name, folder)
    (folder / "models").mkdir()
    write_shape("mistral-small-4-119b", folder / "models" / "119b.gguf")
    (folder / "bin").mkdir()
    program = folder / "bin" / "offload"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m offload "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    done = shell("offload check --update", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def shell(
    script: str, folder: Path, *args: str | Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run as a CI service does: in bash, stopping at the first failure."""
    environment = os.environ | variables | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(EXAMPLES.parents[1])
    return subprocess.run(
        ["bash", "-e", "-c", script, "bash", *map(str, args)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def plant(folder: Path, factor: float) -> str:
    """Record that the second card needed less than it does; the text that stood there."""
    path = folder / "offload.baseline" / "mistral-small-4.json"
    before = path.read_text(encoding="utf-8")
    baseline = read_baseline(path, str(folder / "models" / "119b.gguf"))
    assert baseline.memory is not None
    devices = dict(baseline.memory.devices)
    memory = devices["CUDA1"]
    devices["CUDA1"] = replace(memory, model_bytes=int(memory.model_bytes / factor))
    changed = replace(baseline, memory=replace(baseline.memory, devices=devices))
    write_baseline(path, baseline_text(changed, "test"))
    return before


def test_as_recorded(recorded: Path) -> None:
    """The same build needs the same bytes; JSON says who was asked."""
    done = shell("offload check -o json", recorded)
    said = json.loads(done.stdout)
    assert done.returncode == 0 == said["exit_code"] and done.stderr == ""
    assert {one["check"]: one["verdict"] for one in said["checks"]} == {
        "model": "ok", "plan": "ok", "memory": "ok", "prediction": "ok",
    }  # fmt: skip
    assert isinstance(said["llama_build"], int)


def test_three_percent_more(recorded: Path) -> None:
    """3 % more than recorded on one card, by llama.cpp's own word: exit code 1, card named."""
    before = plant(recorded, 1.03)
    try:
        done = shell("offload check --only memory -o json", recorded)
    finally:
        (recorded / "offload.baseline" / "mistral-small-4.json").write_text(before)
    memory = next(one for one in json.loads(done.stdout)["checks"] if one["check"] == "memory")
    assert done.returncode == 1 and memory["verdict"] == "changed"
    assert {finding["device"] for finding in memory["findings"]} == {"CUDA1"}


def test_another_build(recorded: Path) -> None:
    """A llama-server given is the one that is asked."""
    server = find_binary("llama-server")
    if server is None:
        missing("llama-server is not on PATH")
    done = shell('offload check --only memory --llama-server "$1" -o json', recorded, server)
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["llama_build"] is not None


def test_a_build_that_is_not_there(recorded: Path) -> None:
    """One line and exit code 2."""
    done = shell("offload check --llama-server nowhere/llama-server", recorded)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("changed", [False, True])
def test_the_workflow(recorded: Path, tmp_path: Path, changed: bool) -> None:
    """Its steps, but for the installing, run as they stand and end as what they found."""
    folder = tmp_path / "repo"
    shutil.copytree(recorded, folder, ignore=shutil.ignore_patterns("models"))
    (folder / "models").mkdir()
    whole = recorded / "models" / "119b.gguf"
    with open(whole, "rb") as file:  # what a repository can hold
        header = file.read(read_header(whole).data_offset_bytes)
    (folder / "models" / "119b.gguf").write_bytes(header)
    if changed:
        with open(folder / "offload.toml", encoding="utf-8") as file:
            text = file.read().replace("ctx-size = 8192", "ctx-size = 32768")
        (folder / "offload.toml").write_text(text, encoding="utf-8")
    workflow = yaml.safe_load((EXAMPLES / "offload-check.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["check"]["steps"]
    scripts = [s["run"] for s in steps if "run" in s and s["name"] != "Install"]
    assert [script.split()[0] for script in scripts] == ["truncate", "offload"]
    summary = folder / "summary.md"
    codes = [shell(s, folder, GITHUB_STEP_SUMMARY=str(summary)).returncode for s in scripts]
    assert codes == [0, int(changed)]
    assert summary.read_text(encoding="utf-8").startswith("## offload check\n\n| model | check |")
    suites = ElementTree.parse(folder / "offload-junit.xml").getroot()
    assert suites.get("failures") == str(int(changed)) and suites.get("tests") == "4"


def test_the_shell_script(recorded: Path) -> None:
    """It runs from anywhere, with a build or without, and its exit code is the check's."""
    script = f'"{recorded}/check.sh"'
    assert shell(script, recorded).returncode == 0
    assert shell(f"{script} nowhere", recorded).returncode == 2
    before = plant(recorded, 1.03)
    try:
        assert shell(script, recorded).returncode == 1
    finally:
        (recorded / "offload.baseline" / "mistral-small-4.json").write_text(before)


def test_updates_at_once(recorded: Path) -> None:
    """Four updates at once leave one whole file and nothing beside it."""
    done = shell(
        "for i in 1 2 3 4; do offload check --update & pids+=($!); done;"
        ' for pid in "${pids[@]}"; do wait "$pid"; done; offload check',
        recorded,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = [path.name for path in (recorded / "offload.baseline").iterdir()]
    assert names == ["mistral-small-4.json"]


SMALL = """
[machine]
gpus = 0
host-ram = "8GiB"
[options]
ctx-size = 512
parallel = 1
[check]
speed-time-s = 2
threads = 1
[[model]]
path = "small.gguf"
"""


@pytest.fixture
def small(recorded: Path, tmp_path: Path) -> Path:
    """A folder with a model that runs."""
    write_random(tmp_path / "small.gguf", arch="qwen3moe", n_layer=3, n_expert=8, quant="Q8_0")
    (tmp_path / "offload.toml").write_text(SMALL, encoding="utf-8")
    shutil.copytree(recorded / "bin", tmp_path / "bin")
    return tmp_path


def test_a_build_beside_itself(small: Path) -> None:
    """The same program as old and new needs the same memory, and both are really timed."""
    server = find_binary("llama-server")
    if server is None:
        missing("llama-server is not on PATH")
    script = 'offload check --builds "$1" "$1" --only memory,speed -o json'
    done = shell(script, small, server)
    said = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert said["memory"]["verdict"] == "ok" and said["memory"]["findings"] == []
    assert said["speed"]["verdict"] != "error"
    assert any("pairs of" in note for note in said["speed"]["notes"])
    done = shell('offload check --update --builds "$1" "$1"', small, server)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_a_build_with_slower_kernels(small: Path) -> None:
    """Each graph takes a tenth more processor time in the new build: slower, exit code 1."""
    server = find_binary("llama-server")
    if server is None or sys.platform != "linux" or shutil.which("cc") is None:
        missing("llama-server, Linux and a C compiler are needed")
    write_random(
        small / "larger.gguf", arch="qwen3moe", n_layer=12, n_embd=256, n_expert=32,
        n_ff_exp=256, quant="Q8_0",
    )  # fmt: skip
    config = SMALL.replace("small.gguf", "larger.gguf").replace("speed-time-s = 2", "")
    (small / "offload.toml").write_text(config, encoding="utf-8")
    with slower_library() as library:
        slow = small / "slow" / "llama-server"
        slow.parent.mkdir()
        slow.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec {server} "$@"\n', encoding="utf-8")
        slow.chmod(0o755)
        done = shell(f'offload check --builds "$1" {slow} --only speed -o json', small, server)
    (said,) = json.loads(done.stdout)["checks"]
    assert (done.returncode, said["verdict"]) == (1, "changed"), done.stdout
    assert {finding["code"] for finding in said["findings"]} <= {"decode-slower", "prefill-slower"}
    assert said["findings"]


def test_the_embedded_build_beside_a_server(small: Path) -> None:
    """`llama-cpp-python` names the llama.cpp inside it, whatever llama-server is on PATH."""
    server = find_binary("llama-server")
    if server is None:
        missing("llama-server is not on PATH")
    script = 'offload check --builds llama-cpp-python "$1" --only memory -o json'
    done = shell(script, small, server)
    (said,) = json.loads(done.stdout)["checks"]
    assert done.returncode in (0, 1), done.stderr
    assert said["check"] == "memory" and said["verdict"] in ("ok", "changed")
    builds = {find_judge(Path("llama-cpp-python")).build, find_judge(server).build}
    (note,) = [note for note in said["notes"] if note.startswith("llama.cpp: ")] or [""]
    assert all(f"b{build}" in note for build in builds) or len(builds) == 1
    swapped = shell(script.replace('llama-cpp-python "$1"', '"$1" llama-cpp-python'), small, server)
    assert swapped.returncode in (0, 1), swapped.stderr


def test_recorded_times_that_were_better(small: Path) -> None:
    """Recorded times of which each was a third: found to be slower, with today's beside them."""
    assert shell("offload check --update --only plan,speed", small).returncode == 0
    path = small / "offload.baseline" / "small.json"
    baseline = read_baseline(path, str(small / "small.gguf"))
    assert baseline.speed is not None
    blocks = tuple(
        replace(block, seconds={test: s / 3 for test, s in block.seconds.items()})
        for block in baseline.speed.blocks
    )
    better = replace(baseline, speed=replace(baseline.speed, blocks=blocks))
    write_baseline(path, baseline_text(better, "test"))
    # others' load may spoil a run of two seconds
    script = "sed -i 's/speed-time-s = 2/speed-time-s = 12/' offload.toml; offload check"
    done = shell(f"{script} --only plan,speed -o json", small)
    checks = json.loads(done.stdout)["checks"]
    speed = next(one for one in checks if one["check"] == "speed")
    assert done.returncode == 1 and speed["verdict"] == "changed"
    assert {one["code"] for one in speed["findings"]} >= {"decode-slower"}
