"""How are two builds timed so that the machine's moods fall on both alike?

In turns: A B B A or B A A B, which of them by a coin, both in memory at once where there
is room. Now and then both are started anew, since where a process happens to lie in memory
is a mood too. After 1/16, 1/8, 1/4, 1/2 and all of the time the pairs so far are judged
(tuner/paired/verdict.py), and when decode and prefill are both decided, it is over. [edge]
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from offload.host import probe_host
from tuner.paired.arm import Arm, Loaded, Sizes
from tuner.paired.processors import share_processors
from tuner.paired.result import (
    GROUP,
    Pair,
    Repetition,
    SpeedCheck,
    SpeedOptions,
    TestResult,
    drift,
    spread,
    start_noise,
    value_ratios,
)
from tuner.paired.verdict import N_LOOKS, TOLERANCES, Comparison, compare_pairs, looks_due
from tuner.quiet import LoadMeter

_DECODE_S: Final = 0.008
_PREFILL_S: Final = 0.012
"""Of one repetition: as short as can be. Moods of a machine last longer than this, so A and B
see the same one; on a busy virtual machine pairs of 8 tokens told four times as much in the
same time as pairs of 96."""

_PROBE: Final = Sizes(n_prompt=32, n_gen=8)
_N_PROMPT_MIN, _N_PROMPT_MAX = 16, 512
_N_GEN_MIN, _N_GEN_MAX = 4, 128
_PAIRS_PER_START: Final = 12
START_SHARE: Final = 0.2
"""Processes are started anew once they have been timed for five times as long as starting took."""

_ROOM_SHARE: Final = 0.8
Clock = Callable[[], float]
Progress = Callable[[int, float], None]


def compare_builds(
    a: Arm,
    b: Arm,
    options: SpeedOptions | None = None,
    *,
    on_progress: Progress = lambda n_pairs, left_s: None,
    clock: Clock = time.monotonic,
) -> SpeedCheck:
    """Time A (what is checked) and B (what it is held against) in turns, and judge.

    Raises LlamaCppError when one of them fails.
    """
    options = options or SpeedOptions()
    return compare_builds_with_pairs(a, b, options, on_progress=on_progress, clock=clock)[0]


def compare_builds_with_pairs(
    a: Arm,
    b: Arm,
    options: SpeedOptions,
    *,
    on_progress: Progress = lambda n_pairs, left_s: None,
    clock: Clock = time.monotonic,
) -> tuple[SpeedCheck, tuple[Pair, ...]]:
    """The same, with every pair that was timed."""
    run = _Run(a=a, b=b, options=options, clock=clock, on_progress=on_progress)
    return run.whole(), tuple(run.pairs)


def choose_sizes(loaded: Loaded) -> Sizes:
    """Tokens for a repetition of some milliseconds, by a short run."""
    loaded.time(_PROBE)
    seconds = loaded.time(_PROBE)
    return Sizes(
        n_prompt=_within(_PREFILL_S / seconds["prefill"], _N_PROMPT_MIN, _N_PROMPT_MAX),
        n_gen=_within(_DECODE_S / seconds["decode"], _N_GEN_MIN, _N_GEN_MAX),
    )


def _within(wanted: float, low: int, high: int) -> int:
    return max(low, min(high, round(wanted)))


@dataclass(slots=True, kw_only=True)
class _Run:
    a: Arm
    b: Arm
    options: SpeedOptions
    clock: Clock
    on_progress: Progress
    pairs: list[Pair] = field(default_factory=list)
    decided: dict[str, Comparison] = field(default_factory=dict)
    sizes: Sizes = _PROBE
    n_starts: int = 0
    n_looks: int = 0
    is_together: bool = True

    def whole(self) -> SpeedCheck:
        begin_s = self.clock()
        meter = LoadMeter()
        coin = random.Random(self.options.seed)
        self.is_together = self._is_together()
        rounds = self._rounds_together if self.is_together else self._rounds_apart
        for _ in rounds(begin_s, coin):
            self._look(self.clock() - begin_s)
            if len(self.decided) == len(TOLERANCES):
                break
        spent_s = self.clock() - begin_s
        self._last_look()
        return SpeedCheck(
            name_a=self.a.name,
            name_b=self.b.name,
            results=tuple(self._result(test, spent_s) for test in TOLERANCES),
            sizes=self.sizes,
            n_pairs=len(self.pairs),
            n_starts=self.n_starts,
            spent_s=spent_s,
            time_s=self.options.time_s,
            load=meter.read(),
            notes=self._notes(),
        )

    def _is_together(self) -> bool:
        if self.options.is_together is not None:
            return self.options.is_together
        return is_room_for_both(self.a, self.b)

    def _notes(self) -> tuple[str, ...]:
        programs = {arm.name.partition(" ")[0] for arm in (self.a, self.b)}
        return (() if self.is_together else (_APART_NOTE,)) + (
            (_UNLIKE_NOTE,) if len(programs) > 1 else ()
        )

    def _left_s(self, begin_s: float) -> float:
        return self.options.time_s - (self.clock() - begin_s)

    def _rounds_together(self, begin_s: float, coin: random.Random) -> Iterator[None]:
        """Yield after each two pairs; both processes live for one round of them."""
        pair_s = starting_s = 0.0
        while self._left_s(begin_s) > starting_s + pair_s:
            start_s = self.clock()
            with ExitStack() as stack:
                a, b = self._start(stack, coin)
                self.n_starts += 1
                timed_s, n_before = self.clock(), len(self.pairs)
                starting_s = timed_s - start_s
                # starting may have taken all the time there was; something must be timed
                while not self.pairs or self._left_s(begin_s) > pair_s:
                    before_s = self.clock()
                    self._two_pairs(a, b, coin)
                    pair_s = self.clock() - before_s
                    self.on_progress(len(self.pairs), max(self._left_s(begin_s), 0.0))
                    yield
                    is_long = self.clock() - timed_s > starting_s / START_SHARE
                    if is_long and len(self.pairs) - n_before >= _PAIRS_PER_START:
                        break

    def _start(self, stack: ExitStack, coin: random.Random) -> tuple[Loaded, Loaded]:
        """Both in memory and warm; who comes first is a coin's choice."""
        order = coin.sample((0, 1), 2)
        loaded = {i: stack.enter_context((self.a, self.b)[i].open()) for i in order}
        a, b = loaded[0], loaded[1]
        if not self.n_starts:
            self.sizes = self.options.sizes or choose_sizes(b)
        a.time(self.sizes)
        b.time(self.sizes)
        return a, b

    def _two_pairs(self, a: Loaded, b: Loaded, coin: random.Random) -> None:
        """A B B A, or B A A B, on the same processors."""
        n_threads = [n for n in (self.a.n_threads, self.b.n_threads) if n is not None]
        share_processors((a.pid, b.pid), max(n_threads, default=None), coin)
        order = (0, 1, 1, 0) if coin.random() < 0.5 else (1, 0, 0, 1)
        found = [(i, self._time((a, b)[i])) for i in order]
        for pair in (dict(found[:2]), dict(found[2:])):
            self.pairs.append((pair[0], pair[1]))

    def _time(self, loaded: Loaded) -> Repetition:
        return Repetition(seconds=loaded.time(self.sizes), start=self.n_starts, at_s=self.clock())

    def _rounds_apart(self, begin_s: float, coin: random.Random) -> Iterator[None]:
        """One in memory at a time: the median of a visit of each makes one pair."""
        pair_s = 0.0
        while self._left_s(begin_s) > pair_s:
            before_s = self.clock()
            order = coin.sample((0, 1), 2)
            visits = {i: self._visit((self.a, self.b)[i]) for i in order}
            self.pairs.append((visits[0], visits[1]))
            self.n_starts += 1
            pair_s = self.clock() - before_s
            self.on_progress(len(self.pairs), max(self._left_s(begin_s), 0.0))
            yield

    def _visit(self, arm: Arm) -> Repetition:
        """Load, warm up, and time for about as long as loading took."""
        start_s = self.clock()
        with arm.open() as loaded:
            if not self.n_starts and self.sizes is _PROBE:
                self.sizes = self.options.sizes or choose_sizes(loaded)
            loaded.time(self.sizes)
            timed_s = self.clock()
            found = [self._time(loaded)]
            while self.clock() - timed_s < timed_s - start_s:
                found.append(self._time(loaded))
        middle = {t: statistics.median(r.seconds[t] for r in found) for t in TOLERANCES}
        return Repetition(seconds=middle, start=self.n_starts, at_s=self.clock())

    def _look(self, spent_s: float) -> None:
        """Judge when the next share of the time is over (`LOOKS`)."""
        # time that ran away meanwhile (a machine asleep) does not bring looks back
        if (due := looks_due(spent_s, self.options.time_s)) > self.n_looks:
            self.n_looks = due
            self._judge()

    def _last_look(self) -> None:
        """What has not been judged by now is judged with all there is."""
        if len(self.decided) < len(TOLERANCES) and self.n_looks < N_LOOKS:
            self.n_looks = N_LOOKS
            self._judge()

    def _judge(self) -> None:
        for test in TOLERANCES:
            if test not in self.decided:
                comparison = self._compare(test)
                if comparison.is_decided:
                    self.decided[test] = comparison

    def _compare(self, test: str) -> Comparison:
        return compare_pairs(
            self._values(test),
            tolerance=self.options.tolerance(test),
            alpha=self.options.alpha / N_LOOKS,
        )

    def _values(self, test: str) -> list[float]:
        # a visit is the median of many repetitions already
        return value_ratios(self.pairs, test, GROUP if self.is_together else 1)

    def _result(self, test: str, spent_s: float) -> TestResult:
        comparison = self.decided.get(test) or self._compare(test)
        times = comparison.needed_times
        return TestResult(
            test=test,
            comparison=comparison,
            seconds_a=statistics.median(a.seconds[test] for a, _ in self.pairs),
            seconds_b=statistics.median(b.seconds[test] for _, b in self.pairs),
            noise=spread(self._values(test)),
            start_noise=start_noise(self.pairs, test),
            drift=drift([b.seconds[test] for _, b in self.pairs]),
            needed_s=None if times is None else times * max(spent_s, self.options.time_s),
        )


_UNLIKE_NOTE: Final = (
    "A and B are run by different programs, which have costs of their own for every token: a"
    " difference is of both, not of the builds alone"
)
_APART_NOTE: Final = (
    "both models are not in memory at once, so each was loaded anew for every pair;"
    " a longer --time helps more than elsewhere"
)


def is_room_for_both(a: Arm, b: Arm) -> bool:
    """Whether RAM holds both models; cards are assumed to be full with one."""
    available = probe_host().memory_available_bytes
    if a.uses_cards or b.uses_cards or available is None:
        return False
    return a.model_bytes + b.model_bytes < _ROOM_SHARE * available
