"""Two arms in turns, with a clock and a machine that are made up."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from offload.errors import LlamaCppError, UsageError
from tuner.paired import (
    Sizes,
    SpeedBaseline,
    SpeedCheck,
    SpeedOptions,
    Verdict,
    check_to_json,
    compare_builds,
    compare_recorded,
    describe_check,
    record_baseline,
)
from tuner.paired.processors import share_processors
from tuner.paired.recorded import Block, machine_drift
from tuner.paired.result import Repetition, value_ratios
from tuner.paired.run import compare_builds_with_pairs
from tuner.paired.server import seconds_of


@dataclass
class _Machine:
    """Time passes when something runs; `mood` says how slow everything is just then."""

    now_s: float = 0.0
    noise: float = 0.03
    generator: random.Random = field(default_factory=lambda: random.Random(1))
    trace: list[str] = field(default_factory=list)
    open_arms: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def mood(self) -> float:
        return 1.5 if int(self.now_s * 4) % 4 == 0 else 1.0


@dataclass(frozen=True)
class _Arm:
    """`factor` times as slow as the other one in decode; takes `load_s` to load."""

    machine: _Machine
    name: str = "arm"
    factor: float = 1.0
    load_s: float = 0.05
    build: str = "b1"
    model_bytes: int = 1
    uses_cards: bool = False
    n_threads: int | None = None
    pid: int | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[_Arm]:
        self.machine.now_s += self.load_s
        self.machine.trace.append(f"open {self.name}")
        self.machine.open_arms.append(self.name)
        try:
            yield self
        finally:
            self.machine.open_arms.remove(self.name)

    def time(self, sizes: Sizes) -> dict[str, float]:
        self.machine.trace.append(self.name)
        slow = self.machine.mood()
        noise = 1 + self.machine.generator.gauss(0, self.machine.noise)
        decode = 1e-3 * self.factor * slow * noise
        prefill = 5e-4 * slow * (1 + self.machine.generator.gauss(0, self.machine.noise))
        self.machine.now_s += decode * sizes.n_gen + prefill * sizes.n_prompt
        return {"decode": decode, "prefill": prefill}


def _check(
    factor: float = 1.0, options: SpeedOptions | None = None, load_s: float = 0.05
) -> SpeedCheck:
    machine = _Machine()
    a = _Arm(machine, "a", factor, load_s)
    b = _Arm(machine, "b", 1.0, load_s)
    options = options or SpeedOptions(seed=1, is_together=True)
    return compare_builds(a, b, options, clock=machine.clock)


def test_equal_builds_are_the_same_and_it_ends_early() -> None:
    """Moods of the whole machine fall on both; a clear case does not take all of the time."""
    check = _check()
    assert check.verdict is Verdict.SAME
    assert check.spent_s < check.time_s
    assert check.n_pairs >= 9


def test_a_slower_build_is_found_in_the_test_it_is_slower_in() -> None:
    """12 % in decode: decode is slower, prefill is the same, the check says slower."""
    check = _check(1.12)
    assert check.verdict is Verdict.SLOWER
    decode, prefill = check.results
    assert (decode.test, decode.comparison.verdict) == ("decode", Verdict.SLOWER)
    assert (prefill.test, prefill.comparison.verdict) == ("prefill", Verdict.SAME)
    assert decode.comparison.low < 1.12 < decode.comparison.high
    assert decode.seconds_a / decode.seconds_b == pytest.approx(1.12, rel=0.05)


def test_turns_are_balanced_and_drawn() -> None:
    """Every two pairs are A B B A or B A A B, both happen, and both are started anew."""
    machine = _Machine(noise=0.3)
    options = SpeedOptions(seed=1, is_together=True, sizes=Sizes(n_prompt=40, n_gen=80))
    check, pairs = compare_builds_with_pairs(
        _Arm(machine, "a"), _Arm(machine, "b"), options, clock=machine.clock
    )
    turns: list[str] = []
    for step in machine.trace:
        if step.startswith("open"):
            turns += [] if turns[-1:] == [""] else [""]
        else:
            turns[-1] += step
    rounds = [turn[2:] for turn in turns]  # two warm up
    fours = [turn[i : i + 4] for turn in rounds for i in range(0, len(turn), 4)]
    assert set(fours) == {"abba", "baab"}
    assert check.n_starts == len(rounds) > 2
    assert check.n_pairs == len(pairs) == 2 * len(fours)
    assert {a.start for a, _ in pairs} == set(range(1, check.n_starts + 1))


def test_slow_loads_are_not_repeated() -> None:
    """Where loading takes a good part of the time, one start serves."""
    check = _check(load_s=2.0)
    assert check.n_starts == 1


@pytest.mark.parametrize("is_together", [True, False])
def test_a_load_that_takes_all_the_time(is_together: bool) -> None:
    """Something is timed all the same, and the answer is that nobody can tell."""
    options = SpeedOptions(seed=1, is_together=is_together, time_s=1.0)
    check = _check(options=options, load_s=3.0)
    assert check.n_pairs >= 1 and check.n_starts == 1
    assert check.verdict is Verdict.CANNOT_TELL
    assert all(result.seconds_a > 0 for result in check.results)


def test_models_too_large_for_two_take_turns_in_memory() -> None:
    """Never both in memory; each pair is a visit of each; it is said."""
    machine = _Machine()
    options = SpeedOptions(seed=1, is_together=False, time_s=30.0)
    seen: list[int] = []

    class _Watching(_Arm):
        def time(self, sizes: Sizes) -> dict[str, float]:
            seen.append(len(self.machine.open_arms))
            return super().time(sizes)

    a, b = _Watching(machine, "a", 1.3), _Watching(machine, "b")
    check = compare_builds(a, b, options, clock=machine.clock)
    assert set(seen) == {1}
    assert check.verdict is Verdict.SLOWER
    assert "not in memory at once" in check.notes[0]


def test_different_programs_are_said() -> None:
    """A server against a session is no comparison of builds alone."""
    machine = _Machine()
    a, b = _Arm(machine, "llama-server b2"), _Arm(machine, "llama-cpp-python b1")
    options = SpeedOptions(seed=1, is_together=True, time_s=2.0)
    check = compare_builds(a, b, options, clock=machine.clock)
    assert "different programs" in check.notes[0]
    assert not compare_builds(a, a, options, clock=machine.clock).notes


def test_the_time_is_kept() -> None:
    """What cannot be told ends with the time, and says how much more it would take."""
    machine = _Machine(noise=0.3)
    options = SpeedOptions(seed=1, is_together=True, time_s=1.0)
    check = compare_builds(_Arm(machine), _Arm(machine), options, clock=machine.clock)
    assert check.verdict is Verdict.CANNOT_TELL
    assert check.spent_s <= 1.0
    text = "\n".join(describe_check(check))
    assert "cannot tell" in text and "--time" in text
    needed = [r.needed_s for r in check.results if r.needed_s is not None]
    assert needed and min(needed) > 1.0


def test_both_processes_end_when_one_fails() -> None:
    """An error of llama.cpp is passed on, and nothing stays in memory."""
    machine = _Machine()

    class _Dying(_Arm):
        def time(self, sizes: Sizes) -> dict[str, float]:
            if self.machine.now_s > 1:
                raise LlamaCppError("it died")
            return super().time(sizes)

    with pytest.raises(LlamaCppError, match="it died"):
        compare_builds(
            _Dying(machine, "a"),
            _Arm(machine, "b"),
            SpeedOptions(is_together=True),
            clock=machine.clock,
        )
    assert machine.open_arms == []


def test_json_holds_plain_numbers() -> None:
    """Also where an interval is open."""
    import json

    check = _check(options=SpeedOptions(seed=1, is_together=True, time_s=0.3))
    assert check.n_pairs < 9
    row = json.loads(json.dumps(check_to_json(check), allow_nan=False))
    assert row["verdict"] == "cannot tell"
    assert row["results"][0]["comparison"]["low"] in (None, 0.0)
    assert row["results"][0]["comparison"]["high"] is None
    assert list(describe_check(check))


def test_a_server_that_read_less_is_no_measurement() -> None:
    """A prompt from the cache, an answer cut short, or no timings at all are errors."""
    read = {"prompt_n": 40, "prompt_ms": 20.0, "predicted_n": 1, "predicted_ms": 0.1}
    written = {"prompt_n": 1, "prompt_ms": 1.0, "predicted_n": 81, "predicted_ms": 80.0}
    sizes = Sizes(n_prompt=40, n_gen=80)
    assert seconds_of(read, written, sizes) == {"decode": 1e-3, "prefill": 5e-4}
    with pytest.raises(LlamaCppError, match="asked for"):
        seconds_of(read | {"prompt_n": 1}, written, sizes)
    with pytest.raises(LlamaCppError, match="asked for"):
        seconds_of(read, written | {"predicted_n": 4}, sizes)
    with pytest.raises(LlamaCppError, match="no timings"):
        seconds_of({}, written, sizes)


def test_both_are_told_to_use_the_same_processors() -> None:
    """With fewer threads than processors: two processes, one processor, drawn anew."""
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors and a system that says where threads run")
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        coin, seen = random.Random(1), set()
        for _ in range(20):
            share_processors([sleeper.pid for sleeper in sleepers], 1, coin)
            one, other = (os.sched_getaffinity(sleeper.pid) for sleeper in sleepers)
            assert one == other and len(one) == 1
            seen |= one
        assert len(seen) > 1
        before = os.sched_getaffinity(sleepers[0].pid)
        share_processors([sleepers[0].pid, None], None, coin)
        share_processors([sleepers[0].pid], len(os.sched_getaffinity(0)), coin)
        assert os.sched_getaffinity(sleepers[0].pid) == before
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def _recorded(factor: float, moved: float = 1.0) -> SpeedCheck:
    """Recorded, then held against a build `factor` as slow on a machine `moved` as slow."""
    machine = _Machine(noise=0.02)
    machine.mood = lambda: 1.0  # type: ignore[method-assign]
    options = SpeedOptions(seed=1, time_s=6.0)
    with pytest.MonkeyPatch.context() as patch:
        work = {"copy": 1.0, "hash": 1.0}
        # the fixed work is timed by the real clock; here it is as steady as can be
        patch.setattr("tuner.paired.recorded.Calibration.seconds", lambda self: dict(work))
        baseline = record_baseline(_Arm(machine, "b"), options, clock=machine.clock)
        work |= {"copy": moved, "hash": moved}
        arm = _Arm(machine, "a", factor)
        return compare_recorded(arm, baseline, options, clock=machine.clock)


def test_recorded_times_serve_where_the_machine_is_the_same() -> None:
    """The same build is the same, one 15 % slower is slower."""
    assert _recorded(1.0).results[0].comparison.verdict is Verdict.SAME
    check = _recorded(1.15)
    assert check.results[0].comparison.verdict is Verdict.SLOWER
    assert check.kind == "recorded" and not check.notes


def test_a_machine_that_has_slowed_down_is_no_alarm() -> None:
    """Everything 15 % slower, the fixed work too: cannot tell, and why."""
    check = _recorded(1.15, moved=1.15)
    assert check.results[0].comparison.verdict is Verdict.CANNOT_TELL
    assert check.machine_drift["copy"] == pytest.approx(0.15)
    assert "not as it was" in check.notes[0]
    assert "not as it was" in "\n".join(describe_check(check))


def _baseline() -> SpeedBaseline:
    block = Block(
        seconds={"decode": 1e-3, "prefill": 5e-4}, calibration={"copy": 1e-2, "hash": 1e-3}
    )
    return SpeedBaseline(
        name="llama-server b1",
        build="b1",
        created="2026-12-01T10:00:00Z",
        sizes=Sizes(n_prompt=40, n_gen=80),
        blocks=(block, block),
    )


def test_four_neighbours_make_one_value() -> None:
    """The least of each arm, never across a start; what is left over is left out."""

    def pair(a: float, b: float, start: int) -> tuple[Repetition, Repetition]:
        return tuple(  # type: ignore[return-value]
            Repetition(seconds={"decode": s}, start=start, at_s=0.0) for s in (a, b)
        )

    pairs = [pair(a, b, 1) for a, b in ((3, 2), (9, 4), (4, 9), (5, 5), (0.1, 1))]
    pairs += [pair(a, 1, 2) for a in (7, 8, 6, 9)]
    assert value_ratios(pairs, "decode") == [3 / 2, 6.0]
    assert value_ratios(pairs[:3], "decode") == []
    assert value_ratios(pairs[:2], "decode", 1) == [3 / 2, 9 / 4]


def test_recorded_times_survive_a_file() -> None:
    """What is written is read."""
    import json

    again = SpeedBaseline.from_json(json.loads(json.dumps(_baseline().to_json())), "x.json")
    assert again == _baseline()
    assert machine_drift(again.blocks, again.blocks) == {"copy": 0.0, "hash": 0.0}


@pytest.mark.parametrize(
    "edit",
    [
        {"blocks": []},
        {"blocks": [{"seconds": {"decode": 1.0}}]},
        {"blocks": [{"seconds": {"decode": -1, "prefill": 1}, "calibration": {}}]},
        {"sizes": {"n_prompt": 0, "n_gen": 3}},
        {"sizes": None},
        {"blocks": 3},
    ],
)
def test_hand_edited_times_are_refused(edit: dict[str, object]) -> None:
    """With the file's name and what to do."""
    with pytest.raises(UsageError, match=r"x\.json: .*--update"):
        SpeedBaseline.from_json(_baseline().to_json() | edit, "x.json")
    others: tuple[object, ...] = (None, [], 3)
    for other in others:
        with pytest.raises(UsageError, match=r"x\.json"):
            SpeedBaseline.from_json(other, "x.json")
