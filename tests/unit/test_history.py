"""A history that many runs append to, and where its levels change."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from offload.errors import OffloadError, UsageError
from tuner.history import (
    HistoryEntry,
    append_history,
    change_points,
    draw_history,
    history_markdown,
    read_history,
)


def _entry(i: int, **changes: object) -> HistoryEntry:
    values = {"decode_t_s": 50.0 + i, "memory_bytes": 1 << 30}
    fields = {
        "name": "small",
        "build": f"b{11000 + i}",
        "created": f"2026-12-01T10:{i:02d}:00Z",
        "machine": "m1",
        "values": values,
        "intervals": {"decode_t_s": (49.0, 52.0 + i)},
        "verdicts": {"decode_t_s": "same"},
    }
    return HistoryEntry(**(fields | changes))  # type: ignore[arg-type]


def test_results_come_back(tmp_path: Path) -> None:
    """What was appended is read, in its order, with everything it said."""
    path = tmp_path / "deep" / "er" / "history.jsonl"
    append_history(path, _entry(1))
    append_history(path, [_entry(2), _entry(3, machine="", intervals={}, verdicts={})])
    append_history(path, [])
    assert read_history(path) == (
        _entry(1),
        _entry(2),
        _entry(3, machine="", intervals={}, verdicts={}),
    )


def test_a_torn_last_line_loses_only_itself(tmp_path: Path) -> None:
    """Cut anywhere in its last line, a history keeps all other lines and grows on."""
    path = tmp_path / "history.jsonl"
    append_history(path, [_entry(1), _entry(2)])
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert read_history(path) == (_entry(1),), end
        append_history(path, _entry(3))
        assert read_history(path) == (_entry(1), _entry(3)), end


def test_a_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    """An editor that leaves out the last newline loses nothing."""
    path = tmp_path / "history.jsonl"
    append_history(path, [_entry(1), _entry(2)])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert read_history(path) == (_entry(1), _entry(2))
    append_history(path, _entry(3))
    assert read_history(path) == (_entry(1), _entry(2), _entry(3))


_WRITER = """
import sys
from tuner.history import HistoryEntry, append_history
path, name = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
for i in range(25):
    append_history(path, HistoryEntry(name=name, build=f"b{i}", created="2026", values={"i": i}))
"""


def test_runs_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Four processes that append at once: every line is there, each writer's in order."""
    path = tmp_path / "history.jsonl"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), f"w{i}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for i in range(4)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.communicate("go\n", timeout=300)
            assert writer.returncode == 0
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    entries = read_history(path)
    assert len(entries) == 100
    for i in range(4):
        mine = [entry.values["i"] for entry in entries if entry.name == f"w{i}"]
        assert mine == list(range(25))


def test_a_file_replaced_while_one_waits_gets_the_line(tmp_path: Path) -> None:
    """A checkout that puts another file there while the lock is waited for loses no result."""
    import fcntl
    import threading

    path, other = tmp_path / "history.jsonl", tmp_path / "other.jsonl"
    append_history(path, _entry(1))
    append_history(other, _entry(2))
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        waiting = threading.Thread(target=append_history, args=(path, _entry(3)))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        os.replace(other, path)
        fcntl.flock(holder, fcntl.LOCK_UN)
    waiting.join(60)
    assert read_history(path) == (_entry(2), _entry(3))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "line 2: no JSON object"),
        ("[1]", "line 2: no JSON object"),
        ('{"schema_version": 9}', "line 2: schema_version 9, this offload reads 1"),
        ('{"schema_version": 1, "name": "x"}', "line 2: 'values' is missing"),
    ],
)
def test_a_foreign_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    """A line that is none of ours is an error that says which it is."""
    path = tmp_path / "history.jsonl"
    append_history(path, _entry(1))
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UsageError, match=said):
        read_history(path)


@pytest.mark.parametrize("key", ["name", "build", "values", "created"])
def test_a_wrong_type_is_named(tmp_path: Path, key: str) -> None:
    """A hand-edited line with a wrong value is an error that names the key or the line."""
    path = tmp_path / "history.jsonl"
    append_history(path, _entry(1))
    row = json.loads(path.read_text()) | {key: {"decode_t_s": "fast"} if key == "values" else 3}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UsageError, match="line 1"):
        read_history(path)


def test_what_is_no_number_is_not_written(tmp_path: Path) -> None:
    """NaN would make a file that others cannot read."""
    with pytest.raises(UsageError, match="numbers that are none"):
        append_history(tmp_path / "h.jsonl", _entry(1, values={"decode_t_s": float("nan")}))


def test_a_place_that_takes_nothing_is_said(tmp_path: Path) -> None:
    """No folder, no file: one error each, and a full disk leaves the file as it was."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be kept"):
        append_history(tmp_path / "file" / "h.jsonl", _entry(1))
    with pytest.raises(UsageError, match="no history to read"):
        read_history(tmp_path / "none.jsonl")
    if os.path.exists("/dev/full"):
        with pytest.raises(OffloadError):
            append_history("/dev/full", _entry(1))


def _noisy(levels: list[tuple[int, float]], seed: int, noise: float = 0.02) -> list[float]:
    generator = random.Random(seed)
    return [level * generator.gauss(1, noise) for n, level in levels for _ in range(n)]


def test_steps_are_found_where_they_are() -> None:
    """Two steps of 15 % in noise of 2 %: found at their first result, none besides, mostly."""
    right = 0
    for seed in range(20):
        found = change_points(_noisy([(12, 50.0), (12, 42.0), (12, 49.0)], seed))
        right += [c.index for c in found] == [12, 24]
    assert right >= 16


def test_noise_alone_is_no_step() -> None:
    """Of 100 histories without a step at most a few per cent show one."""
    alarms = sum(bool(change_points(_noisy([(20, 50.0)], 100 + seed))) for seed in range(100))
    assert alarms <= 5


def test_one_wild_result_is_no_step() -> None:
    """A run beside a busy neighbour changes no level."""
    values = _noisy([(20, 50.0)], 3)
    values[9] = 10.0
    assert change_points(values) == ()


def test_few_results_tell_nothing() -> None:
    """With six results no order of them is unlikely enough."""
    assert change_points([50.0, 50.1, 49.9, 30.0, 30.1, 29.9]) == ()
    assert change_points([]) == change_points([1.0]) == ()


def test_in_exact_series_every_change_counts() -> None:
    """Bytes have no noise."""
    (change,) = change_points([100, 100, 103], is_exact=True)
    assert (change.index, change.before, change.after, change.ratio) == (2, 100, 103, 1.03)


def test_the_text_says_what_changed_and_where(tmp_path: Path) -> None:
    """A build that lost a third of decode and one that took 509 MiB more are both named."""
    path = tmp_path / "history.jsonl"
    decode = _noisy([(10, 50.0), (10, 33.0)], 1)
    for i, t_s in enumerate(decode):
        memory = (2048 + (509 if i >= 5 else 0)) << 20
        values = {"decode_t_s": t_s, "memory_bytes": memory}
        append_history(path, _entry(i, values=values, intervals={}, name="a|b"))
    text = history_markdown(path)
    assert "## a\\|b on m1" in text
    assert "| b11005 | 1 |" in text
    assert "- memory (MiB): +24.9% from b11005" in text
    assert "- decode (t/s): -3" in text and "from b11010" in text


def test_old_builds_timed_later_stand_where_they_belong(tmp_path: Path) -> None:
    """Builds with numbers are ordered by them, others by time."""
    path = tmp_path / "history.jsonl"
    append_history(path, [_entry(5), _entry(2, created="2027-01-01T00:00:00Z")])
    text = history_markdown(path)
    assert text.index("b11002") < text.index("b11005")
    path.unlink()
    append_history(path, [_entry(5, build="main"), _entry(2, build="b1")])
    text = history_markdown(path)
    assert text.index("b1 ") < text.index("main")


def test_an_empty_history_is_said(tmp_path: Path) -> None:
    """Nothing to show is no error in text, and one for pictures."""
    path = tmp_path / "history.jsonl"
    path.write_text("")
    assert history_markdown(path) == "No results yet.\n"
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match="nothing to draw"):
        draw_history(path, tmp_path)


def test_a_picture_per_name_and_machine(tmp_path: Path) -> None:
    """PNG files, under names that are files' names and unlike each other."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "history.jsonl"
    for name in ("a/b", "a b"):
        append_history(path, [_entry(i, name=name) for i in range(3)])
    files = draw_history(path, tmp_path / "pictures")
    assert [file.name for file in files] == ["a-b-m1.png", "a-b-m1-2.png"]
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing drawing library is an error that names what to install."""
    append_history(tmp_path / "h.jsonl", _entry(1))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match="matplotlib"):
        draw_history(tmp_path / "h.jsonl", tmp_path)
