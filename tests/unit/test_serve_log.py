"""A server's output is drained whatever happens to its file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from offload.engine.serving.server_log import LogFile, LogPump
from offload.errors import UsageError


def pumped(file: LogFile, data: bytes) -> LogPump:
    """A pump through which `data` has gone."""
    pump = LogPump(file)
    assert pump.write_fd is not None
    writer = os.dup(pump.write_fd)
    pump.started()
    while data:
        data = data[os.write(writer, data) :]
    os.close(writer)
    pump.close()
    return pump


def test_all_is_written_and_the_last_lines_are_kept(tmp_path: Path) -> None:
    """The file has every byte, memory the last 4000 lines."""
    told: list[str] = []
    path = tmp_path / "server.log"
    data = b"".join(b"line %d\n" % i for i in range(9000)) + b"cut \xff"
    file = LogFile(path, told.append)
    pump = pumped(file, data)
    file.close()
    assert path.read_bytes() == data
    assert pump.n_lines == 9000
    assert pump.lines()[-2:] == ["line 8999", "cut \N{REPLACEMENT CHARACTER}"]
    assert len(pump.lines()) == 4001
    assert not told


def test_a_full_disk_is_told_once_and_blocks_nothing() -> None:
    """Megabytes go to /dev/full; the reader keeps up and says so in one sentence."""
    told: list[str] = []
    file = LogFile(Path("/dev/full"), told.append)
    pump = pumped(file, b"word\n" * 500_000)
    assert len(told) == 1 and "No space left on device" in told[0]
    assert pump.n_lines == 500_000


def test_a_log_that_can_be_written_again_is_said(tmp_path: Path) -> None:
    """Space was freed: the log goes on and the user knows that there is a gap."""
    told: list[str] = []
    file = LogFile(Path("/dev/full"), told.append)
    file.write(b"lost\n")
    with (tmp_path / "log").open("wb") as other:
        os.dup2(other.fileno(), file._fd or -1)
    file.write(b"found\n")
    file.close()
    assert (tmp_path / "log").read_bytes() == b"found\n"
    assert len(told) == 2 and "again" in told[1]


def test_a_line_without_end_takes_bounded_memory(tmp_path: Path) -> None:
    """A binary that writes megabytes without a newline is cut into pieces."""
    file = LogFile(tmp_path / "log", lambda _: None)
    pump = pumped(file, b"x" * (4 << 20))
    assert max(map(len, pump.lines())) <= 16 << 10


@pytest.mark.parametrize("name", ["", "missing/server.log"])
def test_a_log_that_cannot_be_opened_is_refused(tmp_path: Path, name: str) -> None:
    """A directory, or a folder that is not there: one clear error before anything starts."""
    with pytest.raises(UsageError, match="--log"):
        LogFile(tmp_path / name, lambda _: None)


@pytest.mark.parametrize("start", [b"GGUF\x03\0\0\0", b'{\n "schema_version": 1,'])
def test_a_model_or_a_plan_is_no_log(tmp_path: Path, start: bytes) -> None:
    """`--log model.gguf` would make a broken model of a good one; so would a link to it."""
    path = tmp_path / "m.gguf"
    path.write_bytes(start)
    link = tmp_path / "link.log"
    link.symlink_to(path)
    for named in (path, link):
        with pytest.raises(UsageError, match="is a model or a plan"):
            LogFile(named, print)
    assert path.read_bytes() == start
    path.write_bytes(b'{"text": "a log of JSON lines"}')
    LogFile(path, print).close()


def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    """Opening it would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="--log"):
        LogFile(tmp_path / "pipe", lambda _: None)


def test_the_file_of_our_own_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts may end up in it: nobody else may read it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = LogFile(None, lambda _: None)
    assert file.path is not None and file.path.parent == tmp_path
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.close()


def test_without_room_for_a_file_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder for temporary files: said, and the lines are in memory."""
    told: list[str] = []
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    file = LogFile(None, told.append)
    assert file.path is None and len(told) == 1
    assert pumped(file, b"word\n").lines() == ["word"]


def test_lines_since_a_moment(tmp_path: Path) -> None:
    """What a server said after it was ready, even where the older lines are forgotten."""
    file = LogFile(tmp_path / "log", lambda _: None)
    pump = pumped(file, b"".join(b"line %d\n" % i for i in range(5000)))
    assert pump.lines(4998) == ["line 4998", "line 4999"]
    assert pump.lines(5000) == []
    assert len(pump.lines(10)) == 4000


def test_an_empty_file_of_our_own_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary file nobody wrote to would only litter; the user's own stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    LogFile(None, lambda _: None).close()
    LogFile(tmp_path / "mine.log", lambda _: None).close()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.log"]
