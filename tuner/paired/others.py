"""How is a build timed that is no llama-server: llama-cpp-python in process, or llama-bench?

A session of llama-cpp-python stays loaded in a child of ours, as a server does. llama-bench
loads anew each time; it is for models that a server cannot run. [edge]
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offload.emit import emit_bench_args
from offload.engine.binaries import read_build
from offload.engine.library_build import library_build
from offload.engine.process import failure, run_program
from offload.engine.session import Session, load
from offload.errors import LlamaCppError
from tuner.paired.arm import LaunchArm, Loaded, Sizes, build_name

PYTHON: Final = "llama-cpp-python"
_BENCH_REPETITIONS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionArm(LaunchArm):
    """llama-cpp-python in a child of ours."""

    @property
    def build(self) -> str:
        """The build that the installed version embeds."""
        number = library_build()
        return "unknown" if number is None else f"b{number}"

    @property
    def name(self) -> str:
        """As in reports."""
        return f"{PYTHON} {self.build}"

    @contextlib.contextmanager
    def open(self) -> Iterator[Loaded]:
        """Load it in a child."""
        endpoints = tuple(filter(None, (self.launch.rpc or "").split(",")))
        with load(self.launch, endpoints=endpoints, n_threads=self.n_threads) as session:
            yield _InSession(session=session, arm=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InSession:
    session: Session
    arm: SessionArm

    @property
    def pid(self) -> int | None:
        """The child's."""
        return self.session.pid

    def time(self, sizes: Sizes) -> dict[str, float]:
        """The child's own seconds; the answer is written from the cached prompt."""
        prompt = self.arm.prompt(sizes)
        read = self.session.generate(prompt, n_predict=1)
        said = self.session.generate(prompt, n_predict=sizes.n_gen + 1, cache_prompt=True)
        if len(said.tokens) != sizes.n_gen + 1:
            raise LlamaCppError(f"only {len(said.tokens)} tokens came, {sizes.n_gen + 1} wanted")
        return {
            "decode": said.decode_s / sizes.n_gen,
            "prefill": read.prompt_s / sizes.n_prompt,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArm(LaunchArm):
    """llama-bench, which loads anew for each repetition."""

    program: Path

    @property
    def build(self) -> str:
        """By its `--version`, or what the package says."""
        return build_name(read_build(self.program))

    @property
    def name(self) -> str:
        """As in reports."""
        return f"llama-bench {self.build}"

    @property
    def pid(self) -> int | None:
        """A new one each time."""
        return None

    @contextlib.contextmanager
    def open(self) -> Iterator[Loaded]:
        """Nothing stays loaded."""
        yield self

    def time(self, sizes: Sizes) -> dict[str, float]:
        """The median of a few repetitions of one process."""
        argv = [*emit_bench_args(self.launch, str(self.program), read_build(self.program))]
        argv += ["-p", str(sizes.n_prompt), "-n", str(sizes.n_gen), "-o", "jsonl"]
        argv += ["-r", str(_BENCH_REPETITIONS)]
        argv += [] if self.n_threads is None else ["-t", str(self.n_threads)]
        timeout_s = self.load_timeout_s + _BENCH_REPETITIONS * sizes.patience_s
        ended = run_program(argv, timeout_s=timeout_s)
        if ended.exit_code:
            raise failure(ended, "llama-bench")
        rows = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith(b"{")]
        found = {}
        for row in rows:
            test, n_tokens = ("decode", "n_gen") if row["n_gen"] else ("prefill", "n_prompt")
            found[test] = statistics.median(row["samples_ns"]) / 1e9 / row[n_tokens]
        return found
