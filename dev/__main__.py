"""How does a fresh clone become a demo or a test run?

    python3 -m dev demo      what this project does, shown on this machine
    python3 -m dev test      linters, types, layers and all tests (arguments go to pytest)
    python3 -m dev lint      only the first three
    python3 -m dev setup     only the environment for all of the above, in .venv

llama.cpp is compiled with RPC on, which is what makes virtual cards: as llama-cpp-python for the
demo and, from a newer source, as programs that judge us in the tests. Results are kept for all
clones in ${XDG_CACHE_HOME:-~/.cache}/offload, one folder per version, flags and processor; each
appears there whole or not at all, and the folder may be deleted at any time. CMAKE_ARGS adds
flags (-DGGML_CUDA=ON); CMAKE_BUILD_PARALLEL_LEVEL says how many files to compile at once.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from collections.abc import Sequence

if sys.version_info < (3, 11):  # noqa: UP036  what runs it is not chosen by pyproject.toml
    sys.exit(f"offload needs Python 3.11 or newer, this is {platform.python_version()}")
if sys.platform == "win32":
    sys.exit("this runs on Linux and macOS; on Windows use WSL, or pip install . to plan only")

from dev.environment import PYTHON, VENV, install, install_project, run
from dev.llama_cpp import PROGRAMS, VULKAN_CPU, kept_source_build, kept_wheel

DEMO = ("-m", "benchmarks.case_study")


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
    builds = [PROGRAMS]
    if sys.platform == "linux" and platform.machine() == "x86_64":
        builds.append(VULKAN_CPU)
    for build in builds:
        link = VENV / build.link
        link.unlink(missing_ok=True)
        link.symlink_to(kept_source_build(build))
    return 0


def install_llama_cpp_python() -> None:
    """Install the wheel that is compiled here once."""
    install("llama-cpp-python", "--force-reinstall", str(kept_wheel()))  # pip sees only versions


def main() -> None:
    """Parse the command line and end with the command's exit code."""
    commands = {"demo": demo, "test": test, "lint": lint, "setup": setup}
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python3 -m dev",
        description=summary,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
