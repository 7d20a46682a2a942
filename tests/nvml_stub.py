"""Builds the stub of NVIDIA's library and runs our probe against it.

nvidia-ml-py loads `libnvidia-ml.so.1` by that name, so a directory with the
stub in LD_LIBRARY_PATH is enough; the loader reads that variable once, at
process start, which is why every probe runs in a child process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
SOURCE = Path(__file__).parent / "fixtures" / "nvml_stub.c"

RTX_3060: dict[str, object] = {
    "name": "NVIDIA GeForce RTX 3060", "uuid": "GPU-0000aaaa-1111", "pci": 1,
    "total": 12288 * MIB, "reserved": 228 * MIB, "free": 11000 * MIB,
    "bus": 192, "mem": 7501, "sm": 2100, "cores": 3584,
    "gen": 4, "width": 4, "maxwidth": 16, "display": 1, "displaymode": 1, "mig": 0,
}  # fmt: skip
RTX_3090: dict[str, object] = {
    "name": "NVIDIA GeForce RTX 3090", "uuid": "GPU-0000bbbb-2222", "pci": 33,
    "total": 24576 * MIB, "reserved": 316 * MIB, "free": 24258 * MIB,
    "bus": 384, "mem": 9751, "sm": 2100, "cores": 10496,
    "gen": 4, "width": 16, "maxwidth": 16, "display": 0, "displaymode": 0, "mig": 0,
}  # fmt: skip
RTX_2080_TI: dict[str, object] = {
    "name": "NVIDIA GeForce RTX 2080 Ti", "uuid": "GPU-1111cccc-3333", "pci": 65,
    "total": 22528 * MIB, "reserved": 260 * MIB, "free": 22266 * MIB,
    "bus": 352, "mem": 7000, "sm": 2100, "cores": 4352,
    "gen": 3, "width": 16, "maxwidth": 16, "display": 0, "displaymode": 0,
}  # fmt: skip
UNEQUAL = (RTX_3060, RTX_3090, RTX_2080_TI)
"""Three unequal cards by PCI address; the first drives a display and sits in a x4 slot."""

_PRINT_CARDS = """
import dataclasses, json, os
from offload.nvml import cuda_order, read_cards
cards, notices = read_cards()
visible, more = cuda_order(cards, os.environ)
plain = lambda things: [dataclasses.asdict(thing) for thing in things]
print(json.dumps({"cards": plain(cards), "visible": [card.name for card in visible],
                  "codes": [n.code for n in (*notices, *more)],
                  "texts": [n.text for n in (*notices, *more)]}))
"""
_PRINT_MACHINE = """
import dataclasses, json, sys
from offload.probe import probe_machine
machine = probe_machine(*sys.argv[1:])
host, warnings = machine.host._asdict(), [notice._asdict() for notice in machine.warnings]
devices = [dataclasses.asdict(device) for device in machine.devices]
print(json.dumps({"devices": devices, "host": host, "warnings": warnings}))
"""


def build_stub(directory: Path, *, is_old: bool = False) -> Path:
    """Compile the stub into `directory` and return that directory; skips without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the NVML stub needs a C compiler on Linux")
    flags = ["-DNVML_STUB_OLD"] if is_old else []
    library = directory / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", *flags, "-o", str(library), str(SOURCE)], check=True
    )
    return directory


def describe(*cards: dict[str, object]) -> str:
    """Cards in the stub's own notation."""
    return "|".join(";".join(f"{key}={value}" for key, value in card.items()) for card in cards)


def _run(script: str, library: Path | None, env: dict[str, str], *argv: str) -> dict[str, Any]:
    dropped = ("CUDA_", "NVML_STUB_", "LD_LIBRARY_PATH")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    if library is not None:
        clean["LD_LIBRARY_PATH"] = str(library)
    child = subprocess.run(
        [sys.executable, "-c", script, *argv],
        env={**clean, **env},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode == 0, child.stderr
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer


def read_stub_cards(library: Path | None, **env: str) -> dict[str, Any]:
    """`read_cards` and `cuda_order` in a child that sees the stub (or no library at all)."""
    return _run(_PRINT_CARDS, library, env)


def probe_stub_machine(library: Path | None, *argv: str, **env: str) -> dict[str, Any]:
    """`probe_machine(*argv)` as plain values, in a child that sees the stub."""
    return _run(_PRINT_MACHINE, library, env, *argv)
