"""What does one build of llama.cpp need for a plan that was made for another?

Each real shape is planned for the newer build on one machine; both builds are asked in a dry run
of exactly that placement.

    python -m benchmarks.two_builds OLD NEW [--gpu 24GiB:936GB/s --gpu ...]

OLD and NEW are llama-servers or their folders, or `llama-cpp-python`. Prints a row per shape
and card where compute buffers differ, and how many plans the older one could not load.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.fastest_cells import HOST, HOST_BYTES, OPTIONS
from offload.device import Device, parse_device
from offload.engine.verify import Judge, find_judge
from offload.errors import OffloadError
from offload.model import make_model
from offload.plan import make_plan
from offload.source import read_header
from offload.speeds import Speeds
from offload.units import MIB
from tuner.synth import write_shape

SHAPES: Final = (
    "mistral-small-4-119b", "gpt-oss-120b", "qwen3-235b-a22b", "glm-4.5-air", "deepseek-v3",
    "kimi-k2", "minimax-m2", "qwen3-next-80b-a3b", "qwen3.5-35b-a3b", "gemma-4-26b-a4b",
    "llama-4-scout", "llama-4-maverick", "glm-5", "hunyuan-a13b", "ernie-4.5-300b-a47b",
)  # fmt: skip
CARDS: Final = ("24GiB:936GB/s:25GB/s", "24GiB:936GB/s:12GB/s")


def rows_of(shape: str, cards: Sequence[Device], old: Judge, new: Judge) -> Iterator[str]:
    """A table row for each device whose compute buffer differs."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(read_header(write_shape(shape, Path(folder) / "shape.gguf")))
        options = replace(OPTIONS, llama_build=new.build)
        speeds = Speeds(host=HOST)
        plan = make_plan(model, cards, options, host_free_bytes=HOST_BYTES, speeds=speeds)
        was, now = old(plan), new(plan)
    for before, after in zip((*was.devices, was.host), (*now.devices, now.host), strict=True):
        first, second = before.actual.compute_bytes, after.actual.compute_bytes
        if first != second:
            free = before.free_bytes or before.actual.total_bytes
            over = max(before.actual.total_bytes - free, 0) / MIB
            yield (
                f"| {shape} | {before.name} | {first / MIB:.0f} | {second / MIB:.0f}"
                f" | {(second - first) / MIB:+.0f} | {f'{over:.0f}' if over else ''} |"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_builds")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--gpu", action="append")
    asked = parser.parse_args(argv)
    old, new = find_judge(asked.old), find_judge(asked.new)
    cards = [parse_device(f"CUDA{d}:{text}") for d, text in enumerate(asked.gpu or CARDS)]
    print(
        f"compute buffers in MiB, b{old.build} and b{new.build}, placement planned for the second"
    )
    print("| shape | device | old | new | difference | old beyond the card's memory |")
    print("|---|---|--:|--:|--:|--:|")
    for shape in SHAPES:
        for row in rows_of(shape, cards, old, new):
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OffloadError as error:
        sys.exit(f"two_builds: {error}")
