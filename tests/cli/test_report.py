"""`offload report` from a shell: files, stdout, one line of error, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report_profiles import swept_profile, with_samples
from tuner.bench import Sweep
from tuner.bench_text import render_bench
from tuner.history import HistoryEntry, append_history
from tuner.learn import learn
from tuner.profile import profile_to_json, write_profile


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with one profile, without samples and so soon reported."""
    folder = tmp_path_factory.mktemp("bare")
    bare = with_samples(swept_profile(time_s=130.0), [])
    write_profile(bare, folder / "offload" / "profiles" / "machine.json")
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with one profile, where offload bench puts it."""
    folder = tmp_path_factory.mktemp("state")
    write_profile(swept_profile(time_s=130.0), folder / "offload" / "profiles" / "machine.json")
    return folder


def _report(where: Path, state: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run in the folder `where`."""
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-m", "offload", "report", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=where,
        env={**os.environ, "XDG_STATE_HOME": str(state), "PYTHONPATH": root},
        timeout=120,
        check=False,
    )


def _machine(state: Path) -> Path:
    return state / "offload" / "profiles" / "machine.json"


def test_a_profile_becomes_a_report(swept: Path, tmp_path: Path) -> None:
    """stdout has the first table, the sentence and where the report is; pictures lie beside it."""
    done = _report(tmp_path, swept, _machine(swept), "--out", "out")
    assert done.returncode == 0 and done.stderr == ""
    assert "0 of 8" in done.stdout and "With qwen3moe, 8 of 48 layers" in done.stdout
    assert done.stdout.splitlines()[-1] == "report: out/report.md"
    names = sorted(os.listdir(tmp_path / "out"))
    assert "report.md" in names and "host-layers-1.png" in names


def test_without_a_name_it_is_the_profile_of_this_machine(state: Path, tmp_path: Path) -> None:
    """The newest there is where none knows the cards, and stderr says which."""
    done = _report(tmp_path, state)
    assert done.returncode == 0
    assert f"profile: {_machine(state)}" in done.stderr
    assert (tmp_path / "offload-report" / "report.md").is_file()
    none = _report(tmp_path, tmp_path / "empty")
    assert none.returncode == 2
    assert "no profile there; offload bench makes one, or name a file" in none.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"schema_version": 1}', "not a JSON object"),
        ("old", "not a profile of schema version 1"),
    ],
)
def test_what_is_no_profile_is_one_line(state: Path, tmp_path: Path, text: str, said: str) -> None:
    """A cut, foreign or old file: exit code 2, what and what to try, and nothing is written."""
    path = tmp_path / "p.json"
    if text == "old":
        text = json.dumps(profile_to_json(swept_profile(time_s=130.0)) | {"schema_version": 0})
    path.write_text(text)
    done = _report(tmp_path, state, path, "--out", "out")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert said in line and "p.json" in line and "offload bench" in line
    assert not (tmp_path / "out").exists()


def test_the_users_files_stay(state: Path, tmp_path: Path) -> None:
    """A report.md of another origin is kept, with exit code 2 and one line."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.md").write_text("mine")
    done = _report(tmp_path, state, _machine(state), "--out", "out")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "not made by offload report, and it is kept" in line
    assert (tmp_path / "out" / "report.md").read_text() == "mine"
    assert os.listdir(tmp_path / "out") == ["report.md"]


def test_a_folder_nobody_may_write_to(state: Path, tmp_path: Path) -> None:
    """Exit code 2 and one line that names the folder."""
    where: Path = Path("/proc/self/none") if os.getuid() == 0 else tmp_path / "locked"
    if os.getuid():
        where.mkdir(mode=0o500)
    done = _report(tmp_path, state, _machine(state), "--out", where)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert str(where) in line and "give another --out" in line


def test_a_history_alone_and_beside_a_profile(state: Path, tmp_path: Path) -> None:
    """With --history alone no profile is needed; an empty, a missing and a broken one are told."""
    history = tmp_path / "h.jsonl"
    history.write_text("")
    done = _report(tmp_path, tmp_path / "empty", "--history", history, "--out", "out")
    assert done.returncode == 0 and done.stdout == "report: out/history.md\n"
    assert "No results yet." in (tmp_path / "out" / "history.md").read_text()
    append_history(
        history,
        HistoryEntry(name="m", build="b1", created="2026-12-01", values={"decode_t_s": 5.0}),
    )
    both = _report(tmp_path, state, _machine(state), "--history", history, "--out", "out")
    assert both.returncode == 0
    assert both.stdout.endswith("report: out/history.md\nreport: out/report.md\n")
    for name, said in (("none.jsonl", "No such file"), ("machine.json", "no JSON object")):
        path = tmp_path / name if name == "none.jsonl" else _machine(state)
        wrong = _report(tmp_path, state, "--history", path, "--out", "out")
        assert wrong.returncode == 2 and said in wrong.stderr
        assert len(wrong.stderr.splitlines()) == 1


def test_bench_points_to_it() -> None:
    """The table of offload bench ends with the command that reports its profile."""
    profile = swept_profile(time_s=130.0)
    sweep = Sweep()
    sweep.samples = [dict(sample) for sample in profile.samples]
    learned = learn(sweep.samples, profile.hardware)
    text = render_bench(learned, sweep, Path("/a folder/p.json"), markdown=False)
    assert text.endswith("with pictures: offload report '/a folder/p.json'")
