"""How does one cell become timed tests: by llama-bench where it is, else in process?

Both give one record per test, as soon as it is done, under llama-bench's own field names
(tools/llama-bench/llama-bench.cpp, `test::get_fields`, b11434) with every repetition's
nanoseconds. Without paths, host names and addresses. [edge]
"""

from __future__ import annotations

import functools
import json
import os
import select
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol

from offload.emit import Launch, emit_bench_args
from offload.emit.build import Build
from offload.engine.binaries import read_build
from offload.engine.conversation import nameless_log
from offload.engine.load_options import LoadOptions
from offload.engine.log import last_words, telling_line
from offload.engine.process import Finished, failure, started
from offload.engine.session import Session, load
from offload.errors import LlamaCppError
from offload.rules import render_overrides
from tuner.cells import Bench, Cell, Timed

_PRIVATE: Final = ("model_filename", "cpu_mask")
_SLOWEST_LOAD_BYTES_PER_S: Final = 20e6
_SLOWEST_TOKEN_S: Final = 0.5
_BASE_TIMEOUT_S: Final = 120.0
_CHUNK_BYTES: Final = 1 << 16
_NS: Final = 1_000_000_000


class Runner(Protocol):
    """Makes the runs of a sweep."""

    @property
    def name(self) -> str:
        """`llama-bench` or `in process`."""

    def run(self, bench: Bench, cell: Cell, n_repetitions: int) -> Iterator[dict[str, Any]]:
        """One record per test of the cell, in its order, as each is done.

        Raises LlamaCppError with llama.cpp's last words.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaBench:
    """Runs through the program llama-bench."""

    program: Path

    @property
    def name(self) -> str:
        """As in a profile."""
        return "llama-bench"

    def run(self, bench: Bench, cell: Cell, n_repetitions: int) -> Iterator[dict[str, Any]]:
        """One process per group of tests that llama-bench can be told in one go."""
        for group in _groups(cell.tests):
            yield from self._run_group(bench, cell, group, n_repetitions)

    def _run_group(
        self, bench: Bench, cell: Cell, tests: Sequence[Timed], n_repetitions: int
    ) -> Iterator[dict[str, Any]]:
        argv = self.argv(bench, cell, tests, n_repetitions)
        timeout_s = _silence_s(bench, cell, n_repetitions)
        with (
            nameless_log() as log,
            started(argv, python=False, stdin=False, stderr=log) as process,
        ):
            for line in _lines(process, log, timeout_s):
                if line.startswith(b"{"):
                    yield self._cleaned(json.loads(line), bench.endpoints)

    def _cleaned(self, record: dict[str, Any], endpoints: Sequence[str]) -> dict[str, Any]:
        """Without what names this machine; the build's number where the program lacks it."""
        kept = {key: value for key, value in record.items() if key not in _PRIVATE}
        if endpoints:  # what it says of RPC cards is their addresses
            kept.pop("gpu_info", None)
        return kept | {"build_number": _build_of(self.program).number or kept["build_number"]}

    def argv(
        self, bench: Bench, cell: Cell, tests: Sequence[Timed], n_repetitions: int
    ) -> tuple[str, ...]:
        """The command line of one group."""
        build = _build_of(self.program)
        argv = [*emit_bench_args(bench.launch(cell), str(self.program), build)]
        prompts = sorted({t.n_prompt for t in tests if t.n_prompt}) or [0]
        generated = sorted({t.n_gen for t in tests if t.n_gen}) or [0]
        argv += ["-p", _joined(prompts), "-n", _joined(generated)]
        if depths := sorted({t.n_depth for t in tests} - {0}):  # a flag that old builds lack
            argv += ["-d", _joined(depths)]
        argv += [
            "-t",
            str(cell.n_threads or bench.n_threads),
            "-r",
            str(n_repetitions),
            "-o",
            "jsonl",
        ]
        if cell.is_repacked is not None and not bench.pins_host_weights:
            argv += ["--repack", str(int(cell.is_repacked))]
        return tuple(argv)


@functools.cache
def _build_of(program: Path) -> Build:
    """Asked once: nothing else may run while something is timed."""
    return read_build(program)


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _groups(tests: Sequence[Timed]) -> tuple[tuple[Timed, ...], ...]:
    """Tests that differ in depth only by what llama-bench multiplies out anyway."""
    by_depth: dict[int, list[Timed]] = {}
    for test in tests:
        by_depth.setdefault(test.n_depth, []).append(test)
    return tuple(tuple(group) for group in by_depth.values())


def _silence_s(bench: Bench, cell: Cell, n_repetitions: int) -> float:
    """How long llama.cpp may say nothing: a load, and the longest test with its repetitions."""
    n_tokens = max(t.n_prompt + t.n_gen + t.n_depth for t in cell.tests)
    load_s = bench.model_of(cell).size_bytes / _SLOWEST_LOAD_BYTES_PER_S
    return _BASE_TIMEOUT_S + load_s + n_tokens * (n_repetitions + 1) * _SLOWEST_TOKEN_S


def _lines(process: subprocess.Popen[bytes], log: IO[bytes], timeout_s: float) -> Iterator[bytes]:
    """Lines of standard output as they come; LlamaCppError where it ends badly or falls silent."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    unread = b""
    while True:
        if not poll.poll(timeout_s * 1000):
            raise LlamaCppError(
                f"llama-bench said nothing for {timeout_s:.0f} s", last_lines=_words(log)
            )
        chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
        if not chunk:
            break
        *lines, unread = (unread + chunk).split(b"\n")
        yield from lines
    exit_code = process.wait()
    if exit_code:
        lines_of_log = tuple(_log_lines(log))
        ended = Finished(argv=("llama-bench",), exit_code=exit_code, stdout=b"", log=lines_of_log)
        raise failure(ended, "llama-bench")


def _log_lines(log: IO[bytes]) -> list[str]:
    size = os.fstat(log.fileno()).st_size
    return os.pread(log.fileno(), size, 0).decode(errors="replace").splitlines()


def _words(log: IO[bytes]) -> tuple[str, ...]:
    lines = _log_lines(log)
    telling = telling_line(lines)
    return last_words(lines) or ((telling,) if telling else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """Runs through a session of llama-cpp-python, a child of ours, one for each cell."""

    build_number: int = 0
    build_commit: str = ""

    @property
    def name(self) -> str:
        """As in a profile."""
        return "llama-cpp-python"

    def run(self, bench: Bench, cell: Cell, n_repetitions: int) -> Iterator[dict[str, Any]]:
        """Load once, then each test: a warm-up as llama-bench's, and its repetitions."""
        launch = bench.launch(cell)
        options = _load_options(launch, bench, cell)
        with load(options, endpoints=bench.endpoints) as session:
            for test in cell.tests:
                start_s = time.time()
                samples = _timings(session, test, bench.model_of(cell).n_vocab, n_repetitions)
                yield _record(bench, cell, test, launch, samples, start_s) | {
                    "build_number": self.build_number,
                    "build_commit": self.build_commit,
                }


def _load_options(launch: Launch, bench: Bench, cell: Cell) -> LoadOptions:
    repacks = True if cell.is_repacked is None else cell.is_repacked
    return LoadOptions(
        path=launch.model_path,
        n_gpu_layers=launch.n_gpu_layers,
        tensor_split=launch.tensor_split,
        overrides=tuple((rule.pattern, rule.buffer_type) for rule in launch.rules),
        n_ctx=launch.n_ctx,
        n_batch=launch.n_batch,
        n_ubatch=launch.n_ubatch,
        n_seq_max=1,
        op_offload=launch.op_offload,
        no_host=launch.no_host,
        use_extra_bufts=bench.pins_host_weights or repacks,
        load_mode=launch.load_mode,
        n_threads=cell.n_threads or bench.n_threads,
    )


def _timings(session: Session, test: Timed, n_vocab: int, n_repetitions: int) -> list[int]:
    """Nanoseconds of each repetition; the first round warms up and is not counted."""
    tokens = [(i * 7919 + 13) % n_vocab for i in range(test.n_depth + test.n_prompt + 1)]
    found = []
    for _ in range(n_repetitions + 1):
        if test.n_prompt:
            if test.n_depth:
                session.generate(tokens[: test.n_depth], n_predict=1)
            depth = test.n_depth + test.n_prompt
            said = session.generate(tokens[:depth], n_predict=1, cache_prompt=bool(test.n_depth))
            if said.n_reused != test.n_depth:
                raise LlamaCppError("this model forgets its context, so depths cannot be timed")
            seconds = said.prompt_s
        else:
            # the first token comes with the prompt, so one more makes n_gen timed ones
            prompt = tokens[: test.n_depth + 1]
            said = session.generate(prompt, n_predict=test.n_gen + 1, cache_prompt=True)
            seconds = said.decode_s
            if len(said.tokens) <= test.n_gen:
                raise LlamaCppError(f"only {len(said.tokens)} tokens came, {test.n_gen} wanted")
        found.append(round(seconds * _NS))
    return found[1:]


def _record(
    bench: Bench,
    cell: Cell,
    test: Timed,
    launch: Launch,
    samples_ns: Sequence[int],
    start_s: float,
) -> dict[str, Any]:
    n_tokens = test.n_prompt + test.n_gen
    rates = [n_tokens * _NS / ns for ns in samples_ns]
    many = len(samples_ns) > 1
    return {
        "model_type": bench.model_of(cell).name,
        "model_size": bench.model_of(cell).size_bytes,
        "n_batch": launch.n_batch,
        "n_ubatch": launch.n_ubatch,
        "n_threads": cell.n_threads or bench.n_threads,
        "type_k": launch.type_k,
        "type_v": launch.type_v,
        "n_gpu_layers": launch.n_gpu_layers,
        "split_mode": launch.split_mode,
        "flash_attn": -1,
        "devices": "/".join(launch.devices),
        "tensor_split": "/".join(f"{share:.2f}" for share in launch.tensor_split),
        "tensor_buft_overrides": render_overrides(launch.rules, ";") or "none",
        "load_mode": launch.load_mode,
        "no_op_offload": int(not launch.op_offload),
        "no_host": launch.no_host,
        "repack": bench.is_repacked(cell),
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start_s)),
        "avg_ns": round(statistics.fmean(samples_ns)),
        "stddev_ns": round(statistics.stdev(samples_ns)) if many else 0,
        "avg_ts": statistics.fmean(rates),
        "stddev_ts": statistics.stdev(rates) if many else 0.0,
        "samples_ns": list(samples_ns),
        "samples_ts": rates,
    }


def timed_of(cell: Cell, record: Mapping[str, Any]) -> Timed | None:
    """Which of the cell's tests a record is about."""
    found = Timed(
        n_prompt=int(record["n_prompt"]),
        n_gen=int(record["n_gen"]),
        n_depth=int(record.get("n_depth", 0)),
    )
    return found if found in cell.tests else None
