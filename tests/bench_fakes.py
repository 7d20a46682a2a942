"""A machine for the tests of timing: runs take the seconds that known costs make of them."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offload.device import Device, device_by_name
from offload.errors import LlamaCppError
from offload.model import Model
from offload.units import GIB
from tuner.cells import Bench, Cell
from tuner.scale_model import make_scale_model_of_shape
from tuner.shapes import SHAPES
from tuner.subject import Subject, model_digest

COSTS: Mapping[str, float] = {
    "const": 2e-3, "ubatch": 1e-3, "layer": 1e-4, "hop": 6e-5, "context": 1e-10, "carry": 1e-10,
    "flops": 1e-11, "attention": 1e-11, "stream": 1e-10,
}  # fmt: skip
READS: Mapping[str, float] = {"CUDA0": 2e-11, "CUDA1": 4e-11, "CPU": 2e-10, "CPU_REPACK": 1e-10}


def planted_seconds(amounts: Mapping[str, float]) -> float:
    """Seconds of some work on the machine of these tests."""
    total = 0.0
    for name, amount in amounts.items():
        _, kind, *place = name.split(".")
        cost = READS[place[0]] if kind == "read" else COSTS[kind]
        total += amount * cost * (1.3 if name.endswith("Q6_K") else 1.0)
    return total


@dataclass(slots=True)
class Clock:
    """A clock that stands still until somebody works."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


@dataclass(slots=True)
class FakeRunner:
    """Runs that end at once, on a clock of their own; `fails` are labels that never succeed."""

    clock: Clock = field(default_factory=Clock)
    noise: float = 0.0
    fails: frozenset[str] = frozenset()
    load_s: float = 2.0
    made: list[str] = field(default_factory=list)
    stop_after: int | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """As in a profile."""
        return "fake"

    def run(self, bench: Bench, cell: Cell, n_repetitions: int) -> Iterator[dict[str, Any]]:
        """One record per test."""
        if self.stop_after is not None and len(self.made) >= self.stop_after:
            raise KeyboardInterrupt
        self.made.append(cell.label)
        self.clock.now_s += self.load_s
        if cell.label in self.fails:
            path = bench.model_of(cell).path
            raise LlamaCppError(f"llama.cpp died of {path}", exit_code=134)
        rng = random.Random(f"{self.seed} {len(self.made)}")
        for timed in cell.tests:
            seconds = planted_seconds(bench.work(cell, timed).amounts)
            samples = [
                round(1e9 * seconds * (1 + self.noise * rng.gauss(0, 1)))
                for _ in range(n_repetitions)
            ]
            self.clock.now_s += sum(samples) / 1e9
            yield {
                "n_prompt": timed.n_prompt,
                "n_gen": timed.n_gen,
                "n_depth": timed.n_depth,
                "n_ubatch": cell.n_ubatch,
                "samples_ns": samples,
                "build_number": 11434,
                "build_commit": "abc",
            }


def cards(n: int = 2) -> tuple[Device, ...]:
    """Real-looking cards with room for everything."""
    return tuple(device_by_name(f"CUDA{i}", 24 * GIB) for i in range(n))


@functools.cache
def model(n_layer: int = 8) -> Model:
    """A cut of a real MoE."""
    return make_scale_model_of_shape(SHAPES["qwen3-30b-a3b"], n_layer=n_layer).model


def subject() -> Subject:
    """It, as something to time."""
    found = model()
    return Subject(
        path=Path(found.path),
        model=found,
        kind="cut",
        n_layer_source=48,
        digest=model_digest(found),
        short_model=model(4),
    )
