"""What holds for all tests: how hypothesis searches, and where llama.cpp's own programs are.

`python3 -m dev setup` leaves the programs in the folder llama.cpp of the virtual environment;
OFFLOAD_LLAMA_BIN_DIR names another build's folder. Either goes first on PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.missing import missing

# this machine may be busy with other things: no example has a time limit of its own
settings.register_profile("here", deadline=None)
# in CI the same examples every time: luck must not decide what lands
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

LLAMA_BIN_DIR = os.environ.get("OFFLOAD_LLAMA_BIN_DIR") or f"{sys.prefix}/llama.cpp"
if Path(LLAMA_BIN_DIR).is_dir():
    os.environ["PATH"] = os.pathsep.join((LLAMA_BIN_DIR, os.environ["PATH"]))
if Path(f"{sys.prefix}/llama.cpp-vulkan").is_dir():
    os.environ.setdefault("OFFLOAD_VULKAN_LIBRARIES", f"{sys.prefix}/llama.cpp-vulkan")


@pytest.fixture(scope="session")
def archs_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One small model per architecture that llama.cpp knows, as its test-llama-archs writes them.

    They take 900 MB and six seconds, so they are made for each session and not kept;
    OFFLOAD_TEST_ARCHS_DIR names a folder that has them.
    """
    if given := os.environ.get("OFFLOAD_TEST_ARCHS_DIR"):
        yield Path(given)
        return
    program = shutil.which("test-llama-archs")
    if program is None:
        missing("test-llama-archs is not on PATH; `python3 -m dev setup` builds it")
    folder = tmp_path_factory.mktemp("archs")
    subprocess.run([program, "-o", folder], capture_output=True, timeout=300, check=True)
    yield folder
    shutil.rmtree(folder)
