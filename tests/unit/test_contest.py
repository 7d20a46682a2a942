"""Placements timed in turns, whatever goes wrong meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from offload.contenders import Contender, make_contenders
from offload.options import PlanOptions
from offload.render.contenders import contenders_to_json, render_contenders
from offload.units import GIB
from tests.bench_fakes import FakeRunner, cards, model
from tuner.contest import Contest, PlanBench, run_contest


def contenders() -> list[Contender]:
    """Placements of a cut of a real MoE on two cards; all of them fit."""
    return list(make_contenders(model(), cards(), PlanOptions(), host_free_bytes=90 * GIB))


def contest(runner: FakeRunner, time_s: float = 600.0) -> Contest:
    """All of them by a runner whose clock is its own."""
    return run_contest(
        contenders(), cards(), runner=runner, time_s=time_s, n_threads=1, clock=runner.clock
    )


def test_turns_are_interleaved() -> None:
    """Each has its turn before any has its second, which comes in the other order."""
    runner = FakeRunner()
    found = contest(runner)
    names = [one.name for one in contenders()]
    made = [name for name in runner.made if name != "probe"]
    assert made[: 2 * len(names)] == [*names, *names[::-1]]
    runs = [len(timing.decode_t_s) for timing in found.timings.values()]
    assert max(runs) - min(runs) <= 1 and min(runs) >= 2


def test_time_is_kept() -> None:
    """A second round is not begun that cannot be ended; the first contender always runs."""
    runner = FakeRunner(load_s=10.0)
    contest(runner, time_s=65.0)
    assert runner.clock.now_s <= 1000.0 + 65.0 and len(runner.made) > 3
    runner = FakeRunner(load_s=10.0)
    found = contest(runner, time_s=1.0)
    assert list(found.timings) == ["own"]


def test_one_that_fails_says_so_and_the_rest_goes_on() -> None:
    """Its row holds the error without the path, the others are timed, and it is not tried on."""
    runner = FakeRunner(fails=frozenset(("first",)))
    found = contest(runner)
    error = found.timings["first"].error
    assert error is not None and error.startswith("llama.cpp died of")
    assert found.timings["first"].decode_t_s == () and runner.made.count("first") == 2
    assert len(found.timings["all"].decode_t_s) >= 2
    rows = [(one, None) for one in contenders()]
    table = render_contenders(rows, measured=found.timings)
    assert [line.split()[0] for line in table.splitlines() if "failed: llama" in line] == ["first"]


def test_an_interruption_keeps_what_was_timed() -> None:
    """Ctrl-C in the third run: two rows are timed, and the table says so of the others."""
    found = contest(FakeRunner(stop_after=3))  # one of them finds out how long tests must be
    assert found.is_interrupted
    assert list(found.timings) == ["own", "first"]
    lines = render_contenders(
        [(one, None) for one in contenders()], measured=found.timings
    ).splitlines()
    assert [line.split()[0] for line in lines if "no time" in line][:2] == ["last", "all"]


def test_json_has_measured_beside_predicted() -> None:
    """`measured` is there only when asked for: medians under the keys of `prediction`, and runs."""
    rows = [(one, None) for one in contenders()]
    assert all("measured" not in one for one in contenders_to_json(rows)["placements"])
    found = contest(FakeRunner(noise=0.05))
    placements = json.loads(json.dumps(contenders_to_json(rows, measured=found.timings)))
    own = placements["placements"][0]["measured"]
    assert own["decode_low_t_s"] < own["decode_t_s"] < own["decode_high_t_s"]
    assert own["n_runs"] == len(own["prefill_samples_t_s"]) and own["error"] is None
    assert own["n_depth"] == 0 and own["n_prompt"] > 0


def test_played_cards_have_other_names() -> None:
    """On RPC cards devices and rules name the cards that play, wherever the plan's were."""
    alone = contenders()[-1]
    assert alone.name == "CUDA1 alone"
    played = tuple(
        replace(card, name=f"RPC{i}", endpoint=f"127.0.0.1:{i}", buffer_type=f"RPC{i}[x]")
        for i, card in enumerate(cards())
    )
    bench = PlanBench(
        model=model(),
        devices=played,
        endpoints=("127.0.0.1:0", "127.0.0.1:1"),
        plan=alone.plan,
        cards=cards(),
    )
    cell = pytest.importorskip("tuner.cells").Cell(
        label="x", counts=(), host_layers=(), n_ubatch=512, tests=()
    )
    launch = bench.launch(cell)
    assert launch.devices == ("RPC1",) and launch.rpc == "127.0.0.1:0,127.0.0.1:1"
    assert replace(bench, endpoints=()).launch(cell).devices == ("CUDA1",)
