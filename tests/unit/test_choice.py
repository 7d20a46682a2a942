"""The placement whose turn is shortest: never slower than others, within memory, and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from offload.clock import clock_of_plan
from offload.contenders import make_contenders
from offload.device import Device, parse_device
from offload.machine import Host
from offload.model import Model, make_model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.rules import parse_overrides, replay
from offload.source import read_header
from offload.speeds import Speeds
from offload.split import HOST
from offload.time_search import SAME_SHARE
from offload.turn import Turn
from offload.units import GIB
from tuner.synth import write_shape

OPTIONS = PlanOptions(n_ctx=8192)
ROOMY = PlanOptions(n_ctx=16384, n_parallel=1)
SPEEDS = Speeds(host=Host(bandwidth_bytes_per_s=80 * 10**9))
FAST, SLOW = "24GiB:936GB/s:25GB/s", "24GiB:100GB/s:6GB/s"
MACHINES = (
    ("24GiB:936GB/s:25GB/s", "24GiB:936GB/s:25GB/s"),
    ("24GiB:936GB/s:25GB/s", "12GiB:360GB/s:6GB/s"),
    ("12GiB:360GB/s:2GB/s", "24GiB:936GB/s:25GB/s"),
    ("24GiB:1TB/s:25GB/s", "24GiB:346GB/s:6GB/s", "16GiB:320GB/s:6GB/s"),
)


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """Models by the name of their shape."""
    folder, known = tmp_path_factory.mktemp("shapes"), dict[str, Model]()

    def model(name: str) -> Model:
        if name not in known:
            path: Path = write_shape(name, folder / f"{name}.gguf")
            known[name] = make_model(read_header(path))
        return known[name]

    return model


def cards(*texts: str) -> tuple[Device, ...]:
    """CUDA cards of these sizes and rates."""
    return tuple(parse_device(f"CUDA{d}:{text}") for d, text in enumerate(texts))


def planned(
    model: Model, devices: tuple[Device, ...], options: PlanOptions = OPTIONS, **more: object
) -> Plan:
    """The plan of the shortest turn."""
    speeds = SPEEDS._replace(**more)  # type: ignore[arg-type]
    return make_plan(model, devices, options, host_free_bytes=512 * GIB, speeds=speeds)


def seconds(plan: Plan) -> float:
    """What the clock says of a plan's turn."""
    return clock_of_plan(plan, SPEEDS).seconds(plan.placement)


@pytest.mark.parametrize("name", ["gpt-oss-120b", "glm-4.5-air", "deepseek-v3"])
@pytest.mark.parametrize("machine", MACHINES)
def test_never_slower_than_what_people_use(
    shape: Callable[[str], Model], name: str, machine: tuple[str, ...]
) -> None:
    """Planned apart and priced by the same clock, no placement that fits is 1 % shorter."""
    model, devices = shape(name), cards(*machine)
    plan = planned(model, devices)
    assert plan.feasible and plan.choice is not None
    assert plan.choice.turn_s == pytest.approx(seconds(plan))
    others = [
        one.turn.seconds
        for one in make_contenders(
            model, devices, OPTIONS, host_free_bytes=512 * GIB, speeds=SPEEDS, own=plan
        )
        if one.plan.feasible and one.turn is not None
    ]
    assert seconds(plan) <= (1 + SAME_SHARE) * min(others) * (1 + 1e-9)
    assert plan.choice.bound_s is None or plan.choice.bound_s <= plan.choice.turn_s


@pytest.mark.parametrize("name", ["gpt-oss-120b", "glm-4.5-air"])
def test_bounds_of_baselines_are_below_them(shape: Callable[[str], Model], name: str) -> None:
    """What is only said to take at least so long does take so long when it is planned."""
    model, devices = shape(name), cards(*MACHINES[3])
    plan = planned(model, devices)
    real = {
        one.name: one.turn.seconds
        for one in make_contenders(
            model, devices, OPTIONS, host_free_bytes=512 * GIB, speeds=SPEEDS, own=plan
        )
        if one.plan.feasible and one.turn is not None
    }
    assert plan.choice is not None
    bounds = {one.name: one.turn_s for one in plan.choice.baselines if one.is_bound}
    assert bounds
    for baseline, least_s in bounds.items():
        assert least_s is not None
        assert baseline not in real or least_s <= real[baseline] * (1 + 1e-9)


def test_equal_cards_keep_the_even_spread(shape: Callable[[str], Model]) -> None:
    """Where nothing is 1 % shorter, plans are those without speeds."""
    model, devices = shape("gpt-oss-120b"), cards(FAST, FAST)
    plan = planned(model, devices)
    even = make_plan(model, devices, OPTIONS, host_free_bytes=512 * GIB)
    assert plan.choice is not None and plan.choice.name == "even"
    assert plan.placement == even.placement and plan.rules == even.rules
    asked = planned(model, devices, replace(OPTIONS, strategy=Strategy.EVEN))
    assert asked.choice is None and asked.placement == even.placement


def test_a_slow_card_that_only_costs_is_left_out(shape: Callable[[str], Model]) -> None:
    """What fits on the fast card alone stays there, and the plan says so."""
    model, devices = shape("gpt-oss-20b"), cards(FAST, SLOW)
    plan = planned(model, devices)
    assert plan.choice is not None and plan.choice.left_out == ("CUDA1",)
    assert "card-left-out" in {advice.code for advice in plan.advice}
    even = make_plan(model, devices, OPTIONS, host_free_bytes=512 * GIB)
    assert seconds(plan) < 0.9 * seconds(even)
    kept = planned(model, devices, may_drop_cards=False)
    assert [d.name for d in kept.devices] == ["CUDA0", "CUDA1"]


@pytest.mark.parametrize(
    ("name", "texts", "left"),
    [
        (
            "qwen3-235b-a22b",
            ("24GiB:346GB/s:1GB/s", "24GiB:346GB/s:1GB/s", *(FAST,) * 2),
            {"CUDA0", "CUDA1"},
        ),
        (
            "gpt-oss-120b",
            (FAST, "24GiB:20GB/s:1GB/s", "24GiB:1008GB/s:25GB/s", "24GiB:20GB/s:1GB/s"),
            {"CUDA1", "CUDA3"},
        ),
        ("gpt-oss-120b", ("16GiB:320GB/s:1GB/s", FAST, "16GiB:30GB/s:1GB/s", FAST), {"CUDA2"}),
    ],
)
def test_any_cards_that_only_cost_are_left_out(
    shape: Callable[[str], Model], name: str, texts: tuple[str, ...], left: set[str]
) -> None:
    """Of all subsets, each planned as a machine of its own, none is 1 % shorter."""
    model, devices = shape(name), cards(*texts)

    plan = planned(model, devices)

    assert plan.choice is not None and set(plan.choice.left_out) == left
    assert {d.name for d in plan.devices} == {d.name for d in devices} - left
    note = next(a.text for a in plan.advice if a.code == "card-left-out")
    assert all(one in note for one in left)
    assert ("--settings auto" in note) == ("CUDA0" in left)
    for n in range(1, len(devices)):
        for some in combinations(devices, n):
            other = planned(model, some, may_drop_cards=False)
            if other.feasible:
                assert seconds(plan) <= seconds(other) * (1 + SAME_SHARE)


def test_experts_go_to_a_slower_card_where_that_is_faster(
    shape: Callable[[str], Model],
) -> None:
    """What every token reads stays on the fast card; the slow one holds experts and no layer."""
    plan = planned(shape("glm-4.5-air"), cards("24GiB:1TB/s:25GB/s", *("24GiB:346GB/s:6GB/s",) * 2))

    assert plan.feasible and plan.choice is not None and plan.choice.name == "across"
    assert plan.placement.crossed and plan.guests(1) and not plan.choice.left_out
    assert set(plan.guests(1)) <= set(plan.experts_elsewhere(0))
    placed = replay(plan.rules, plan.model.tensor_names)
    names = {HOST: "CPU", 0: "CUDA0", 1: "CUDA1", 2: "CUDA2"}
    assert placed == {name: names[d] for name, d in plan.placement.placed.items()}
    others = [
        one.turn_s
        for one in plan.choice.baselines
        if one.name != "across" and one.feasible and one.turn_s is not None
    ]
    assert plan.choice.turn_s < min(others) / (1 + SAME_SHARE)
    assert plan.choice.bound_s is not None and plan.choice.bound_s <= plan.choice.turn_s


def test_alike_cards_do_not_ask_for_experts_elsewhere(
    shape: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is gained there, so that a plan does not take longer."""

    def never(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr("offload.across_search.search_across", never)
    for texts in ((FAST, FAST), (FAST, "24GiB:936GB/s:1GB/s"), ("20GiB:936GB/s:25GB/s", FAST)):
        assert planned(shape("gpt-oss-120b"), cards(*texts)).feasible
    alone = planned(shape("gpt-oss-120b"), cards(FAST))
    assert alone.feasible and not alone.placement.crossed


def test_alike_cards_pool_what_each_has_left(shape: Callable[[str], Model]) -> None:
    """Where matrices are so large that much of every card is left, some fit another's rest."""
    plan = planned(shape("llama-4-scout"), cards(*("12GiB:360GB/s:6GB/s",) * 6), ROOMY)

    assert plan.feasible and plan.choice is not None and plan.choice.name == "across"
    assert plan.placement.crossed and all(plan.headroom_bytes(d) >= 0 for d in range(6))


def test_the_faster_card_holds_more(shape: Callable[[str], Model]) -> None:
    """Of two cards of one size the faster one is filled first, where both have room."""
    model = shape("gpt-oss-120b")
    plan = planned(model, cards("48GiB:936GB/s:25GB/s", "48GiB:300GB/s:25GB/s"))
    swapped = planned(model, cards("48GiB:300GB/s:25GB/s", "48GiB:936GB/s:25GB/s"))
    first, second = plan.split.counts(2)
    assert first > second
    first, second = swapped.split.counts(2)
    assert first < second


def test_what_the_user_set_is_kept(shape: Callable[[str], Model]) -> None:
    """-ts, -ngl and -ot are planned around, not changed."""
    model, devices = shape("gpt-oss-120b"), cards(FAST, SLOW)
    shares = planned(model, devices, replace(OPTIONS, tensor_split=(1.0, 3.0)))
    counts = shares.split.counts(2)
    assert counts[1] > 2 * counts[0] and len(shares.devices) == 2
    partial = planned(model, devices, replace(OPTIONS, n_gpu_layers=20))
    assert partial.split.n_gpu_layers == 20
    mine = parse_overrides(r"blk\.3\.ffn_.*_exps=CUDA1,blk\.4\.ffn_.*_exps=CPU")
    ruled = planned(model, devices, replace(OPTIONS, override_rules=mine))
    places = ruled.placement.placed
    assert ruled.feasible
    assert {
        places[n] for n in model.tensor_names if n.startswith("blk.3.ffn_") and "exps" in n
    } == {1}
    assert {
        places[n] for n in model.tensor_names if n.startswith("blk.4.ffn_") and "exps" in n
    } == {HOST}


def test_rules_say_what_is_placed(shape: Callable[[str], Model]) -> None:
    """Emitted rules, replayed, place exactly what was priced."""
    model = shape("deepseek-v3")
    plan = planned(model, cards(*MACHINES[3]))
    index = {d.buffer_type: i for i, d in enumerate(plan.devices)} | {"CPU": HOST}
    placed = {k: index[v] for k, v in replay(plan.rules, model.tensor_names).items()}
    assert placed == dict(plan.placement.placed)


def test_the_turn_decides(shape: Callable[[str], Model]) -> None:
    """A turn that is all reading may want another placement than one that is all writing."""
    model, devices = shape("gpt-oss-120b"), cards("12GiB:360GB/s:2GB/s", FAST)
    reads = planned(model, devices, turn=Turn(16384, 1, 0))
    writes = planned(model, devices, turn=Turn(1, 2048, 0))
    assert reads.choice is not None and writes.choice is not None
    for mine, other in ((reads, writes), (writes, reads)):
        clock = clock_of_plan(other, SPEEDS._replace(turn=mine.choice.turn))  # type: ignore[union-attr]
        theirs = clock.seconds(other.placement)
        assert mine.choice is not None and mine.choice.turn_s <= theirs * (1 + SAME_SHARE)
    assert reads.devices != writes.devices or reads.placement != writes.placement


def test_nothing_fits(shape: Callable[[str], Model]) -> None:
    """Then it is the even spread's shortage that is told, and nothing was chosen."""
    plan = make_plan(
        shape("deepseek-v3"), cards("4GiB:900GB/s"), OPTIONS, host_free_bytes=GIB, speeds=SPEEDS
    )
    assert not plan.feasible and plan.choice is None and plan.advice


def test_no_cards_and_dense_models(shape: Callable[[str], Model]) -> None:
    """Without cards there is nothing to choose; without experts there are whole layers."""
    assert planned(shape("gpt-oss-20b"), ()).choice is None
    dense = planned(shape("qwen3-14b"), cards("8GiB:936GB/s:25GB/s", "6GiB:200GB/s:6GB/s"))
    assert dense.feasible and dense.choice is not None
