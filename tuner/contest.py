"""How fast do placements of one model run, timed in turns so that drift hits all alike?

Each contender is loaded by llama-bench as planned and timed once; when all have had their turn
the next round goes through them backwards, until the time is over. One that fails says so in
its own result, and the rest goes on. [edge]
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from offload.contenders import Contender, Timing
from offload.device import Device
from offload.emit import Launch, make_launch
from offload.errors import LlamaCppError, OffloadError
from offload.placement import Placement
from offload.plan import Plan
from tuner.bench import Progress, Site, probe, virtual_devices, without_names
from tuner.cells import Bench, Cell, Timed
from tuner.runners import Runner

_ROUNDS_MAX: Final = 100
_TRIES_MAX: Final = 2
"""How often a contender may fail before it is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBench(Bench):
    """A bench whose every cell is one plan; with `endpoints`, on RPC cards in the cards' place."""

    plan: Plan
    cards: tuple[Device, ...]
    """The cards that plans are made for, in the order of `devices` that play them."""

    def placement(self, cell: Cell) -> Placement:
        """The plan's."""
        return self.plan.placement

    def launch(self, cell: Cell) -> Launch:
        """The plan's settings, cards by the names that they have here."""
        launch = make_launch(self.plan)
        if not self.endpoints:
            return launch
        played = {card.name: i for i, card in enumerate(self.cards)}
        buffers = {
            card.buffer_type: device.buffer_type
            for card, device in zip(self.cards, self.devices, strict=True)
        }
        names = tuple(f"RPC{played[card.name]}" for card in self.plan.devices)
        rules = (
            replace(rule, buffer_type=buffers.get(rule.buffer_type, rule.buffer_type))
            for rule in launch.rules
        )
        return replace(
            launch, devices=names or ("none",), rpc=",".join(self.endpoints), rules=tuple(rules)
        )


@dataclass(slots=True, kw_only=True)
class _Row:
    decode_s: list[float] = field(default_factory=list)
    prefill_s: list[float] = field(default_factory=list)
    took_s: float = 0.0
    n_failed: int = 0
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class Contest:
    """What a contest gave: a timing for each contender that was run, by name."""

    timings: Mapping[str, Timing] = field(default_factory=dict)
    is_interrupted: bool = False


def run_contest(
    contenders: Sequence[Contender],
    cards: Sequence[Device],
    *,
    runner: Runner,
    time_s: float,
    n_threads: int,
    virtual: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    clock: Callable[[], float] = time.monotonic,
) -> Contest:
    """Time those of `contenders` that fit for about `time_s` seconds.

    `cards` are those the plans are made for; with `virtual` each is played by an RPC server
    of one thread. The first contender is run however short the time is. An interruption ends
    it with what was timed by then.
    """
    running = [one for one in contenders if one.plan.feasible]
    if not running:
        return Contest()
    devices = virtual_devices(len(cards), 1 << 40) if virtual else tuple(cards)
    first = running[0].plan
    bench = PlanBench(
        model=first.model, devices=devices, n_threads=n_threads, plan=first, cards=tuple(cards)
    )
    site = Site(bench=bench, runner=runner, n_cards=len(cards) if virtual else 0)
    turns = _Turns(site=site, contenders=running, clock=clock, deadline_s=clock() + time_s)
    turns.on_progress = on_progress
    is_interrupted = False
    with contextlib.closing(site):
        try:
            turns.take()
        except KeyboardInterrupt:
            is_interrupted = True
    return Contest(timings=turns.timings(), is_interrupted=is_interrupted)


@dataclass(slots=True, kw_only=True)
class _Turns:
    site: Site
    contenders: Sequence[Contender]
    clock: Callable[[], float]
    deadline_s: float
    on_progress: Callable[[Progress], None] = lambda progress: None
    tests: tuple[Timed, ...] = ()
    rows: dict[str, _Row] = field(default_factory=dict)

    def take(self) -> None:
        """Rounds over all contenders, every other one backwards."""
        for round_ in range(_ROUNDS_MAX):
            n_made = 0
            for one in self.contenders[:: -1 if round_ % 2 else 1]:
                row = self.rows.setdefault(one.name, _Row())
                if row.n_failed < _TRIES_MAX and self._has_time(row):
                    self._run(one, row)
                    n_made += 1
            if not n_made:
                return

    def _has_time(self, row: _Row) -> bool:
        known = [other.took_s for other in self.rows.values() if other.took_s]
        if not known:
            return True
        return self.clock() + (row.took_s or max(known)) <= self.deadline_s

    def _run(self, one: Contender, row: _Row) -> None:
        bench = self.site.bench
        assert isinstance(bench, PlanBench)
        self.site.bench = replace(bench, plan=one.plan)
        try:
            if not self.tests:
                sizes = probe(self.site, self.clock).sizes()
                self.tests = (Timed(n_prompt=sizes.n_prompt), Timed(n_gen=sizes.n_gen))
            start_s = self.clock()
            self._time(one, row)
            row.error = None
            row.took_s = self.clock() - start_s
        except OffloadError as error:
            row.n_failed += 1
            row.error = without_names(str(error), [one.plan.model.path], self.site.bench.endpoints)
            with contextlib.suppress(LlamaCppError):
                self.site.renew()
        self.on_progress(
            Progress(
                n_done=sum(len(r.decode_s) for r in self.rows.values()),
                n_failed=sum(r.n_failed for r in self.rows.values()),
                label=one.name,
                left_s=max(0.0, self.deadline_s - self.clock()),
            )
        )

    def _time(self, one: Contender, row: _Row) -> None:
        cell = Cell(
            label=one.name,
            counts=(),
            host_layers=(),
            n_ubatch=one.plan.context.n_ubatch,
            tests=self.tests,
        )
        # both or none, so that an interruption leaves no half turn
        seconds = {
            timed: min(record["samples_ns"]) / 1e9 for record, timed in self.site.run(cell, 1)
        }
        if len(seconds) < len(self.tests):
            raise LlamaCppError("llama-bench ended without an answer for every test")
        prompt, generated = self.tests
        row.prefill_s.append(seconds[prompt] / prompt.n_prompt)
        row.decode_s.append(seconds[generated] / generated.n_gen)

    def timings(self) -> dict[str, Timing]:
        """What was timed, tokens per second in the order of the rounds."""
        return {
            name: Timing(
                decode_t_s=tuple(1 / s for s in row.decode_s),
                prefill_t_s=tuple(1 / s for s in row.prefill_s),
                n_prompt=self.tests[0].n_prompt if self.tests else 0,
                n_gen=self.tests[1].n_gen if self.tests else 0,
                error=row.error,
            )
            for name, row in self.rows.items()
            if row.decode_s or row.error is not None
        }
