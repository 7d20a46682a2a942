"""dev.py builds once, tells how far it is, and leaves nothing half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dev

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a virtual environment that needs no making."""
    monkeypatch.setattr(dev, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    return tmp_path / "cache"


def builder(calls: list[Path], *, delay_s: float = 0.0) -> Callable[[Path, Path], None]:
    """A build that takes its time, leaves one file and says that it was called."""

    def build(work: Path, _log: Path) -> None:
        calls.append(work)
        (work / "product").mkdir()
        time.sleep(delay_s)
        (work / "product" / "file").write_text("whole")

    return build


def entries(cache: Path) -> list[str]:
    """What is in the cache but locks and logs."""
    return sorted(p.name for p in cache.iterdir() if p.suffix not in (".lock", ".log"))


def test_a_product_is_built_once(cache: Path) -> None:
    """The second clone finds what the first one built."""
    calls: list[Path] = []
    first = dev.kept("thing-1.0", ("flag",), builder(calls))
    assert dev.kept("thing-1.0", ("flag",), builder(calls)) == first
    assert len(calls) == 1
    assert (first / "file").read_text() == "whole"
    assert entries(cache) == [first.name]


def test_flags_and_versions_are_kept_apart(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build with other flags, ours or the user's, is another product."""
    calls: list[Path] = []
    places = {dev.kept("thing-1.0", (), builder(calls))}
    places.add(dev.kept("thing-1.1", (), builder(calls)))
    places.add(dev.kept("thing-1.0", ("flag",), builder(calls)))
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=ON")
    places.add(dev.kept("thing-1.0", (), builder(calls)))
    assert len(places) == len(calls) == 4
    assert dev.cmake_args() == "-DGGML_CUDA=ON -DGGML_RPC=ON"


def test_clones_do_not_build_the_same_at_once(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two that start together one builds, and the other waits, says so, and uses that."""
    calls: list[Path] = []
    found: list[Path] = []
    build = builder(calls, delay_s=0.3)
    threads = [
        threading.Thread(target=lambda: found.append(dev.kept("thing", (), build)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert found[0] == found[1]
    assert capsys.readouterr().err.count("waiting") == 1


def test_what_fails_leaves_nothing(cache: Path) -> None:
    """After a failed or killed build the cache is as before, and the next one starts clean."""

    def fail(work: Path, _log: Path) -> None:
        (work / "product").mkdir()
        sys.exit("no")

    with pytest.raises(SystemExit):
        dev.kept("thing", (), fail)
    assert entries(cache) == []
    killed = cache / f".thing-{dev.build_key((dev.cmake_args(),))}-x1y2"
    killed.mkdir()
    calls: list[Path] = []
    place = dev.kept("thing", (), builder(calls))
    assert entries(cache) == [place.name]


def test_no_compiler_is_said_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C++ compiler nothing is downloaded; the message says what to install."""
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SystemExit, match="C\\+\\+ compiler: install"):
        dev.kept("thing", (), lambda _work, _log: pytest.fail("was built"))


def script(tmp_path: Path, text: str) -> tuple[str, str]:
    """A small program to follow."""
    path = tmp_path / "step.py"
    path.write_text(text)
    return sys.executable, str(path)


def test_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ninja's and make's counts are passed on with the time; the rest goes to the log."""
    monkeypatch.setattr(dev, "QUIET_S", 0.0)
    log = tmp_path / "thing-1.0-key.log"
    lines = "print('hello'); print('  [3/40] c++ a.cpp'); print('[ 7%] Building')"
    dev.follow(script(tmp_path, lines), log=log)
    assert capsys.readouterr().err.splitlines() == ["thing-1.0: 3/40, 0:00", "thing-1.0: 7%, 0:00"]
    assert log.read_text().splitlines()[0] == "hello"


def test_a_failed_step_shows_why(tmp_path: Path) -> None:
    """The last lines, the exit code and the log's place are in the message."""
    log = tmp_path / "thing-1.0-key.log"
    with pytest.raises(SystemExit) as ended:
        dev.follow(script(tmp_path, "print('c++: out of memory'); raise SystemExit(3)"), log=log)
    for part in ("c++: out of memory", "exit code 3", str(log), "CMAKE_BUILD_PARALLEL_LEVEL"):
        assert part in str(ended.value)


def test_a_terminated_build_takes_its_compilers_along(tmp_path: Path) -> None:
    """SIGTERM to dev.py ends the whole tree below it within moments."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    compiler = f"exec 3>{fifo}; echo up >&3; sleep 60"
    step = script(tmp_path, f"import subprocess; subprocess.run(['sh', '-c', {compiler!r}])")
    text = (
        "import signal, sys; from pathlib import Path; import dev;"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143));"
        f"dev.follow({step!r}, log=Path({str(tmp_path / 'a-b.log')!r}))"
    )
    child = subprocess.Popen([sys.executable, "-c", text], cwd=ROOT)
    with fifo.open() as alive:
        assert alive.readline() == "up\n"
        start_s = time.monotonic()
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 143
        assert alive.read() == ""  # only when no process has the other end open any more
    assert time.monotonic() - start_s < 30


def test_pip_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known to be installed is not asked for again; other arguments are."""
    asked: list[tuple[object, ...]] = []

    def note(*argv: object) -> int:
        asked.append(argv)
        return 0

    monkeypatch.setattr(dev, "VENV", tmp_path)
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(dev, "run", note)
    for args in (("a",), ("a",), ("b",)):
        dev.install("thing", *args)
    dev.install("thing", "b", state="changed")
    assert len(asked) == 3


@pytest.mark.parametrize("command", ["demo", "lint", "setup"])
def test_stray_arguments_are_refused(command: str) -> None:
    """Only `test` passes arguments on; elsewhere they are a mistake."""
    ended = subprocess.run(
        [sys.executable, "dev.py", command, "-x"], cwd=ROOT, capture_output=True, check=False
    )
    assert ended.returncode == 2
    assert b"takes no arguments" in ended.stderr
