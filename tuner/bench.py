"""How is a machine timed within so many minutes, whatever goes wrong meanwhile?

A short first run tells how fast the machine is, and so how long tests must be; then the
runs that teach most are made one after another (tuner/sweep.py), each sample forced to
the disk (tuner/store.py), until the time is over. A run that fails is noted and the rest
goes on; a sweep that was interrupted goes on where it ended. [edge]
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from offload.device import Device, device_by_name
from offload.engine.binaries import find_binary
from offload.engine.virtual_cards import BINARY, IN_PROCESS, virtual_cards
from offload.errors import LlamaCppError, OffloadError
from tuner.cells import ANCHOR, Bench, Cell, Sizes, Timed, candidate_cells, even_counts
from tuner.quiet import LoadMeter, cpu_mhz, throttled_cards
from tuner.runners import InProcess, LlamaBench, Runner, timed_of
from tuner.samples import make_sample
from tuner.store import SCHEMA_VERSION, SampleLog
from tuner.subject import Subject
from tuner.sweep import MUST, Speeds, Step, order_cells, steps

N_REPETITIONS: Final = 3
_TRIES_MAX: Final = 2
"""How often a cell may fail before it is left alone."""

_RESUME_MAX_S: Final = 12 * 3600.0
"""Samples older than this are from another state of the machine."""

_PROBE: Final = (Timed(n_prompt=32), Timed(n_gen=4))
_LONG_PROBE: Final = (Timed(n_prompt=512),)
_LONG_PROBE_S: Final = 0.25
"""A machine that reads 32 tokens faster than this is asked again: its costs per batch tell more."""

_PROBE_REPETITIONS: Final = 1

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """After each run: how many are done, and when the sweep ends at the latest."""

    n_done: int
    n_failed: int
    label: str
    left_s: float


@dataclass(slots=True, kw_only=True)
class Sweep:
    """What a sweep gave: samples and failures in the order they came."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    spent_s: float = 0.0
    sizes: Sizes | None = None
    speeds: Speeds | None = None
    n_candidates: int = 0
    full_s: float = 0.0
    """About how long every candidate once would take."""

    def take(self, row: Mapping[str, Any]) -> None:
        """Sort in one row of the log."""
        {"sample": self.samples, "failure": self.failures}.get(row["kind"], []).append(dict(row))
        self.spent_s += row.get("wall_s", 0.0)
        if row["kind"] == "sweep":
            self.sizes, self.speeds = Sizes(**row["sizes"]), Speeds(**row["speeds"])
            self.n_candidates, self.full_s = row["n_candidates"], row["full_s"]

    def is_done(self, step: Step) -> bool:
        """Whether this very step was made, by us or before an interruption."""
        wanted = (step.cell.label, step.repetition, step.is_anchor)
        n_tests = len(step.cell.tests)
        made = [(s["label"], s["repetition"], s["is_anchor"]) for s in self.samples]
        return made.count(wanted) >= n_tests

    def n_failures(self, label: str) -> int:
        """How often a cell failed."""
        return sum(row["label"] == label for row in self.failures)


def virtual_devices(n: int, free_bytes: int) -> tuple[Device, ...]:
    """What virtual cards are called; their endpoints come with the cards."""
    return tuple(
        replace(
            device_by_name(f"RPC{d}", free_bytes),
            memory_total_bytes=None,
            description="virtual card (one thread of the processor)",
        )
        for d in range(n)
    )


def choose_runner(llama_server: str | None) -> Runner:
    """llama-bench beside the named program or on PATH, else llama-cpp-python."""
    from offload.engine.library_build import library_build

    program = find_binary("llama-bench", Path(llama_server) if llama_server else None)
    if program is not None:
        return LlamaBench(program=program)
    return InProcess(build_number=library_build() or 0)


def sweep_key(subject: Subject, devices: Sequence[Device], runner: Runner, n_threads: int) -> str:
    """The same for sweeps whose samples belong together."""
    cards = [[d.name, d.description, d.memory_total_bytes] for d in devices]
    what = [SCHEMA_VERSION, subject.digest, cards, runner.name, n_threads]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def run_sweep(
    subject: Subject,
    devices: Sequence[Device],
    *,
    runner: Runner,
    log: SampleLog,
    time_s: float,
    n_threads: int,
    virtual: bool = False,
    tell: Tell = lambda text: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    clock: Callable[[], float] = time.monotonic,
) -> Sweep:
    """Time `subject` on `devices` for about `time_s` seconds.

    Raises LlamaCppError where not even the first run can be made, and what ended a run
    that was no fault of llama.cpp's (KeyboardInterrupt among them); what `log` holds by
    then is found again by the next call.
    """
    start_s = clock()
    with ExitStack() as stack:
        bench = Bench(
            model=subject.model,
            short_model=subject.short_model,
            devices=tuple(devices),
            endpoints=tuple(dict.fromkeys(d.endpoint for d in devices if d.endpoint)),
            n_threads=n_threads,
        )
        site = Site(bench=bench, runner=runner, n_cards=len(devices) if virtual else 0)
        stack.callback(site.close)
        keeper = _Keeper(log=log, tell=tell)
        sweep = keeper.resumed()
        if sweep.sizes is None or sweep.speeds is None:
            _begin(site, keeper, sweep, clock)
        worker = _Worker(
            site=site,
            keeper=keeper,
            sweep=sweep,
            subject=subject,
            tell=tell,
            on_progress=on_progress,
            clock=clock,
            deadline_s=start_s + max(time_s - sweep.spent_s, 0.0),
        )
        worker.work()
    return sweep


def _begin(site: Site, keeper: _Keeper, sweep: Sweep, clock: Callable[[], float]) -> None:
    """Find out how fast the machine is, and so how long tests must be."""
    before_s = clock()
    speeds = probe(site, clock)
    cells = candidate_cells(site.bench, speeds.sizes())
    keeper.keep(
        sweep,
        {
            "kind": "sweep",
            "created_s": time.time(),
            "sizes": asdict(speeds.sizes()),
            "speeds": asdict(speeds),
            "n_candidates": len(cells),
            "full_s": round(sum(speeds.step_seconds(c, N_REPETITIONS) for c in cells)),
            "wall_s": round(clock() - before_s, 3),
        },
    )
    # this time is on the clock of this very process
    sweep.spent_s = 0.0


def probe(site: Site, clock: Callable[[], float]) -> Speeds:
    """One short run, to be forgotten."""
    bench = site.bench
    cell = Cell(
        label="probe",
        counts=even_counts(bench.model.n_layer + 1, len(bench.devices)),
        host_layers=(),
        n_ubatch=512,
        tests=_PROBE,
    )
    start_s = clock()
    records = [record for record, _ in site.run(cell, _PROBE_REPETITIONS)]
    wall_s = clock() - start_s
    seconds = {r["n_prompt"] > 0: min(r["samples_ns"]) / 1e9 for r in records}
    prompt_s, decode_s = seconds[True], seconds[False]
    # longer prompts are faster per token: this is on the safe side
    prompt_t_s = _PROBE[0].n_prompt / prompt_s
    if prompt_s < _LONG_PROBE_S:
        for record, timed in site.run(replace(cell, tests=_LONG_PROBE), _PROBE_REPETITIONS):
            prompt_t_s = max(prompt_t_s, timed.n_prompt * 1e9 / min(record["samples_ns"]))
    return Speeds(
        load_s=max(wall_s - 2 * prompt_s - decode_s, 0.1),
        prompt_t_s=prompt_t_s,
        decode_t_s=_PROBE[1].n_gen / decode_s,
    )


@dataclass(slots=True, kw_only=True)
class Site:
    """Where cells run: the runner and, where cards are virtual, the cards."""

    bench: Bench
    runner: Runner
    n_cards: int
    _cards: ExitStack = field(default_factory=ExitStack)

    def run(self, cell: Cell, n_repetitions: int) -> Iterator[tuple[dict[str, Any], Timed]]:
        """The records of a cell; virtual cards are started when first needed."""
        if self.n_cards and not self.bench.endpoints:
            self._start_cards()
        for record in self.runner.run(self.bench, cell, n_repetitions):
            timed = timed_of(cell, record)
            if timed is not None:
                yield record, timed

    def renew(self) -> None:
        """After a failure: a virtual card may have died with it."""
        self.close()
        if self.n_cards:
            self.bench = replace(self.bench, endpoints=())

    def close(self) -> None:
        """End the virtual cards."""
        self._cards.close()

    def _start_cards(self) -> None:
        program = None
        if isinstance(self.runner, LlamaBench):  # cards of the same build, where it has them
            program = find_binary(BINARY, self.runner.program.parent)
        backend = BINARY if program else IN_PROCESS
        cards = self._cards.enter_context(
            virtual_cards(self.n_cards, backend=backend, program=program)
        )
        endpoints = tuple(card.endpoint for card in cards)
        devices = tuple(
            replace(device, endpoint=card.endpoint, buffer_type=card.buffer_type)
            for device, card in zip(self.bench.devices, cards, strict=True)
        )
        self.bench = replace(self.bench, devices=devices, endpoints=endpoints)


@dataclass(slots=True, kw_only=True)
class _Keeper:
    """Puts rows into the log; when it can take no more, they are kept in memory only."""

    log: SampleLog
    tell: Tell
    is_broken: bool = False

    def resumed(self) -> Sweep:
        """What an interrupted sweep left, if it is not too old."""
        sweep = Sweep()
        rows = self.log.rows()
        if rows and time.time() - rows[0].get("created_s", 0.0) > _RESUME_MAX_S:
            self.log.clear()
            rows = ()
        for row in rows:
            sweep.take(row)
        if sweep.samples:
            self.tell(f"going on with an interrupted sweep: {len(sweep.samples)} samples are there")
        return sweep

    def keep(self, sweep: Sweep, row: dict[str, Any]) -> None:
        """Into the log and into the sweep."""
        row = {"schema_version": SCHEMA_VERSION, **row}
        sweep.take(row)
        if self.is_broken:
            return
        try:
            self.log.append(row)
        except OffloadError as error:
            self.is_broken = True
            self.tell(f"{error}; going on, but an interruption would lose what comes now")


@dataclass(slots=True, kw_only=True)
class _Worker:
    """Makes steps until the time is over."""

    site: Site
    keeper: _Keeper
    sweep: Sweep
    subject: Subject
    tell: Tell
    on_progress: Callable[[Progress], None]
    clock: Callable[[], float]
    deadline_s: float
    _slowness: list[float] = field(default_factory=list)
    _took_s: dict[str, float] = field(default_factory=dict)

    def work(self) -> None:
        """Every cell in the order of what it teaches, as long as it fits the time left."""
        sizes, speeds = self.sweep.sizes, self.sweep.speeds
        assert sizes is not None and speeds is not None
        bench = self.site.bench
        cells = candidate_cells(bench, sizes)
        costs_s = {c.label: speeds.step_seconds(c, N_REPETITIONS) for c in cells}
        n_skipped = 0
        for step in steps(order_cells(bench, cells, costs_s)):
            if n_skipped > 2 * len(cells):
                return
            if self.sweep.is_done(step):
                continue
            given_up = self.sweep.n_failures(step.cell.label) >= _TRIES_MAX
            if given_up or not self._has_time(step, costs_s[step.cell.label]):
                n_skipped += 1
                continue
            n_skipped = 0
            self._make(step, costs_s[step.cell.label])

    def _has_time(self, step: Step, cost_s: float) -> bool:
        # without these there is nothing to fit at all
        if step.cell.label in MUST and step.repetition == 0:
            return True
        slowness = sorted(self._slowness)[len(self._slowness) // 2] if self._slowness else 1.0
        needed_s = self._took_s.get(step.cell.label, cost_s * slowness)
        return self.clock() + needed_s <= self.deadline_s

    def _make(self, step: Step, cost_s: float) -> None:
        start_s = before_s = self.clock()
        meter = LoadMeter()
        try:
            for record, timed in self.site.run(step.cell, N_REPETITIONS):
                now_s = self.clock()
                seen = {
                    "order": len(self.sweep.samples),
                    "load": meter.read(),
                    "cpu_mhz": cpu_mhz(),
                    "throttled": list(throttled_cards()),
                    "runner": self.site.runner.name,
                    "wall_s": round(now_s - before_s, 3),
                }
                before_s = now_s
                sample = make_sample(self.site.bench, self.subject, step, timed, record, seen)
                self.keeper.keep(self.sweep, sample)
        except LlamaCppError as error:
            self._note_failure(step, error, self.clock() - before_s)
        self._took_s[step.cell.label] = took_s = self.clock() - start_s
        self._slowness.append(took_s / cost_s)
        self.on_progress(
            Progress(
                n_done=len(self.sweep.samples),
                n_failed=len(self.sweep.failures),
                label=step.cell.label,
                left_s=max(0.0, self.deadline_s - self.clock()),
            )
        )

    def _note_failure(self, step: Step, error: LlamaCppError, wall_s: float) -> None:
        bench = self.site.bench
        models = [m for m in (bench.model, bench.short_model) if m is not None]
        text = without_names(str(error), [m.path for m in models], bench.endpoints)
        self.tell(f"the run {step.cell.label!r} failed, the rest goes on: {text}")
        row = {
            "kind": "failure",
            "label": step.cell.label,
            "cell": step.cell.key(),
            "error": text,
            "exit_code": error.exit_code,
            "wall_s": round(wall_s, 3),
        }
        self.keeper.keep(self.sweep, row)
        with contextlib.suppress(LlamaCppError):
            self.site.renew()


def without_names(text: str, paths: Sequence[str], endpoints: Sequence[str]) -> str:
    """Nobody's folders and machines go into a profile."""
    for path in paths:
        text = text.replace(path, Path(path).name)
    for i, endpoint in enumerate(endpoints):
        text = text.replace(endpoint, f"server {i}")
    return text


def usable(sweep: Sweep) -> bool:
    """Whether there is something to fit: the anchor's decode at least."""
    return any(s["label"] == ANCHOR and s["n_gen"] for s in sweep.samples)
