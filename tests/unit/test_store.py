"""Samples that survive whatever ends a sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offload.errors import OffloadError, UsageError
from tuner.store import SampleLog, read_samples


def _row(i: int) -> dict[str, object]:
    return {"schema_version": 1, "kind": "sample", "i": i}


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    """What was appended is read, by the writer and by others."""
    path = tmp_path / "deep" / "er" / "log.jsonl"
    with SampleLog(path) as log:
        log.append(_row(1))
        log.append(_row(2))
        assert [row["i"] for row in log.rows()] == [1, 2]
    assert [row["i"] for row in read_samples(path)] == [1, 2]


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    """Cut at every byte of the last line, only that line is lost, and appending goes on."""
    path = tmp_path / "log.jsonl"
    rows = (_row(0), _row(1), _row(2) | {"fill": "longer than what comes in its place" * 2})
    whole = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        assert [row["i"] for row in read_samples(path)] == [0, 1]
        with SampleLog(path) as log:
            log.append(_row(7))
        assert [row["i"] for row in read_samples(path)] == [0, 1, 7]


def test_kill_9_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    """However a writer dies, every row it saw kept is there and the file is whole."""
    path = tmp_path / "log.jsonl"
    program = (
        "import sys\n"
        "from tuner.store import SampleLog\n"
        "with SampleLog(sys.argv[1]) as log:\n"
        "    for i in range(10**6):\n"
        "        log.append({'schema_version': 1, 'i': i, 'fill': 'x' * 3000})\n"
        "        print(i, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as writer:  # fmt: skip
        assert writer.stdout is not None
        assert writer.stdout.readline() == "0\n"
        time.sleep(0.1)
        os.kill(writer.pid, signal.SIGKILL)
        told = [0, *map(int, writer.stdout.read().split())]
    kept = [row["i"] for row in read_samples(path)]
    assert kept == list(range(len(kept)))
    assert len(kept) >= len(told)
    with SampleLog(path) as log:
        assert len(log.rows()) == len(kept)


def test_a_full_disk_is_one_clear_error() -> None:
    """/dev/full takes nothing: the error says what happened and what to do."""
    with SampleLog("/dev/full") as log, pytest.raises(OffloadError, match=r"No space left.*free"):
        log.append(_row(1))


def test_a_file_that_cannot_grow_keeps_its_rows(tmp_path: Path) -> None:
    """A row that did not fit leaves no half of it behind."""
    path = tmp_path / "log.jsonl"
    program = (
        "import resource, signal, sys\n"
        "from tuner.store import SampleLog\n"
        "from offload.errors import OffloadError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "with SampleLog(sys.argv[1]) as log:\n"
        "    log.append({'schema_version': 1, 'i': 0})\n"
        "    try: log.append({'schema_version': 1, 'fill': 'x' * 9000})\n"
        "    except OffloadError as error: print(error)\n"
        "    log.append({'schema_version': 1, 'i': 1})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert "could not be kept: File too large" in done.stdout, done.stderr
    assert [row["i"] for row in read_samples(path)] == [0, 1]


def test_two_sweeps_do_not_share_a_file(tmp_path: Path) -> None:
    """The second one is told who has it."""
    with (
        SampleLog(tmp_path / "log.jsonl"),
        pytest.raises(UsageError, match="another offload bench"),
    ):
        SampleLog(tmp_path / "log.jsonl")


@pytest.mark.parametrize(
    ("text", "what"),
    [("no json\n", "line 1: no JSON object"), ("[1]\n", "line 1: no JSON object"),
     ('{"schema_version": 9}\n', "another version")],
)  # fmt: skip
def test_other_files_are_refused(text: str, what: str, tmp_path: Path) -> None:
    """A file that holds something else is named with the line, and left alone."""
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=what):
        read_samples(path)
    assert path.read_text() == text


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    """A folder in the place of the file, and no file, are errors of one line."""
    with pytest.raises(UsageError, match="samples cannot be kept"):
        SampleLog(tmp_path)
    with pytest.raises(UsageError, match="no samples to read"):
        read_samples(tmp_path / "none")


def test_clearing_and_removing(tmp_path: Path) -> None:
    """Old rows can be forgotten, and the file goes when it has served."""
    with SampleLog(tmp_path / "log.jsonl") as log:
        log.append(_row(1))
        log.clear()
        log.append(_row(2))
        assert [row["i"] for row in log.rows()] == [2]
        log.remove()
    assert not (tmp_path / "log.jsonl").exists()
