"""`python3 -m dev` builds once, tells how far it is, and leaves nothing half done."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dev import cache, environment, llama_cpp, progress

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setattr(cache, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def builder(calls: list[Path], *, delay_s: float = 0.0) -> Callable[[Path, Path], None]:
    """A build that takes its time, leaves one file and says that it was called."""

    def build(work: Path, _log: Path) -> None:
        calls.append(work)
        (work / "product").mkdir()
        time.sleep(delay_s)
        (work / "product" / "file").write_text("whole")

    return build


def entries(folder: Path) -> list[str]:
    """What is in the cache but locks and logs."""
    return sorted(p.name for p in folder.iterdir() if p.suffix not in (".lock", ".log"))


def test_a_product_is_built_once(folder: Path) -> None:
    """The second clone finds what the first one built; another key is another product."""
    calls: list[Path] = []
    first = cache.cached("thing-1.0", "k1", builder(calls))
    assert cache.cached("thing-1.0", "k1", builder(calls)) == first
    assert len(calls) == 1
    assert (first / "file").read_text() == "whole"
    other = cache.cached("thing-1.0", "k2", builder(calls))
    assert entries(folder) == [first.name, other.name]


def test_clones_do_not_build_the_same_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two that start together one builds, and the other waits, says so, and uses that."""
    calls: list[Path] = []
    found: list[Path] = []
    build = builder(calls, delay_s=0.3)
    threads = [
        threading.Thread(target=lambda: found.append(cache.cached("thing", "k", build)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert found == [folder / "thing-k"] * 2
    assert capsys.readouterr().err.count("waiting") == 1


def test_what_fails_leaves_nothing(folder: Path) -> None:
    """After a failed or killed build the cache is as before, and the next one starts clean."""

    def fail(work: Path, _log: Path) -> None:
        (work / "product").mkdir()
        sys.exit("no")

    with pytest.raises(SystemExit):
        cache.cached("thing", "k", fail)
    assert entries(folder) == []
    (folder / ".thing-k-left0ver").mkdir()
    cache.cached("thing", "k", builder([]))
    assert entries(folder) == ["thing-k"]


def test_builds_that_differ_have_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags, ours or the user's, and the processor make another product; nothing else does."""
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    keys = [llama_cpp.build_key(), llama_cpp.build_key("target"), llama_cpp.build_key()]
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=ON")
    assert llama_cpp.cmake_args() == "-DGGML_CUDA=ON -DGGML_RPC=ON"
    keys.append(llama_cpp.build_key())
    monkeypatch.setattr(llama_cpp, "features", lambda: ("flags: avx1024",))
    keys.append(llama_cpp.build_key())
    assert keys[0] == keys[2]
    assert len(set(keys)) == 4


def test_the_processor_is_known() -> None:
    """On Linux the key really holds what the processor can do."""
    if not sys.platform.startswith("linux"):
        pytest.skip("read from /proc")
    (line,) = llama_cpp.features()
    assert len(line.split()) > 10


def test_no_compiler_is_said_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a C++ compiler nothing is downloaded; the message says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    for build in (llama_cpp.kept_wheel, lambda: llama_cpp.kept_source_build(llama_cpp.PROGRAMS)):
        with pytest.raises(SystemExit, match=r"C\+\+ compiler: install"):
            build()
    assert entries(folder) == []


def test_builds_leave_memory_for_their_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many jobs as cores, fewer where memory is short; the user's word goes first."""
    monkeypatch.delenv("CMAKE_BUILD_PARALLEL_LEVEL", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 4 << 18}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert llama_cpp.build_env(tmp_path)["CMAKE_BUILD_PARALLEL_LEVEL"] == "4"
    monkeypatch.setenv("CMAKE_BUILD_PARALLEL_LEVEL", "7")
    assert llama_cpp.build_env(tmp_path)["CMAKE_BUILD_PARALLEL_LEVEL"] == "7"


def script(tmp_path: Path, text: str) -> tuple[str, str]:
    """A small program to follow."""
    path = tmp_path / "step.py"
    path.write_text(text)
    return sys.executable, str(path)


def test_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ninja's and make's counts are passed on with the time; the rest goes to the log."""
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    log = tmp_path / "thing-1.0-key.log"
    lines = "print('hello'); print('  [3/40] c++ a.cpp'); print('[ 7%] Building')"
    progress.follow(script(tmp_path, lines), log=log, env=os.environ)
    assert capsys.readouterr().err.splitlines() == ["thing-1.0: 3/40, 0:00", "thing-1.0: 7%, 0:00"]
    assert log.read_text().splitlines()[0] == "hello"


def test_a_failed_step_shows_why(tmp_path: Path) -> None:
    """The last lines, the exit code and the log's place are in the message."""
    log = tmp_path / "thing-1.0-key.log"
    with pytest.raises(SystemExit) as ended:
        progress.follow(
            script(tmp_path, "print('c++: out of memory'); raise SystemExit(3)"),
            log=log,
            env=os.environ,
        )
    for part in ("c++: out of memory", "exit code 3", str(log), "CMAKE_BUILD_PARALLEL_LEVEL"):
        assert part in str(ended.value)


def test_a_terminated_build_takes_its_compilers_along(tmp_path: Path) -> None:
    """SIGTERM to us ends the whole tree below it within moments."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    compiler = f"exec 3>{fifo}; echo up >&3; sleep 60"
    step = script(tmp_path, f"import subprocess; subprocess.run(['sh', '-c', {compiler!r}])")
    text = (
        "import os, signal, sys; from pathlib import Path; from dev.progress import follow;"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143));"
        f"follow({step!r}, log=Path({str(tmp_path / 'a-b.log')!r}), env=os.environ)"
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

    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(environment, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(environment, "run", note)
    for args in (("a",), ("a",), ("b",)):
        environment.install("thing", *args)
    environment.install("thing", "b", state="changed")
    assert len(asked) == 3


def test_an_installed_clone_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each set-up leaves bytecode of what the sources say, even where Python writes none."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(environment, "install", lambda *_args, **_kwargs: None)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    (tmp_path / "pyproject.toml").touch()
    sources = [tmp_path / "offload" / "cli" / "app.py", tmp_path / "tuner" / "fit.py"]
    for source in sources:
        source.parent.mkdir(parents=True)
    for text in ("x = 1", "x = 'longer'"):
        for source in sources:
            source.write_text(text)
            os.utime(source, (len(text), len(text)))
        environment.install_project("")
        for source in sources:
            compiled = Path(importlib.util.cache_from_source(source)).read_bytes()
            # a header of 16 bytes ends with the size of the source it was made from
            assert int.from_bytes(compiled[12:16], "little") == len(text)


@pytest.mark.parametrize("command", ["demo", "lint", "setup"])
def test_stray_arguments_are_refused(command: str) -> None:
    """Only `test` passes arguments on; elsewhere they are a mistake."""
    ended = subprocess.run(
        [sys.executable, "-m", "dev", command, "-x"], cwd=ROOT, capture_output=True, check=False
    )
    assert ended.returncode == 2
    assert b"takes no arguments" in ended.stderr
