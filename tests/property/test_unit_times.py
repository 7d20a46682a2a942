"""Are the tables a solver reads the clock's own seconds, whatever the placement?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.speed_cases import model_of
from offload.clock import Clock, make_clock
from offload.device import device_by_name, parse_device
from offload.memory import expert_stem
from offload.model import Model
from offload.options import PlanOptions
from offload.placement import Placement
from offload.plan import resolve_context
from offload.speeds import Speeds
from offload.split import HOST, split_by_counts
from offload.turn import Turn
from offload.unit_times import TurnTimes, turn_times

SHAPES = ("qwen3-30b-a3b", "gpt-oss-120b", "glm-4.5-air", "deepseek-v3", "qwen3-next-80b-a3b")
CARDS = ("CUDA0:24GiB:900GB/s:25GB/s", "CUDA1:12GiB:400GB/s:3GB/s", "Vulkan0:16GiB:1TB/s:12GB/s")


def summed(model: Model, times: TurnTimes, placement: Placement, fixed: Mapping[str, int]) -> float:
    """The tables' seconds of a placement, as a solver adds them up."""
    owners = placement.split.owners
    total = times.constant_s + times.once_s * len(set(owners) - {HOST})
    for unit, owner in enumerate(owners):
        if owner == HOST:
            total += times.host[unit]
            continue
        time = times.cards[owner][unit]
        gone = [
            name
            for name in (t.name for t in model.expert_tensors if t.il == unit)
            if placement.placed.get(name) == HOST and name not in fixed
        ]
        total += time.base_s + (time.crossing_s if gone else 0.0)
        total += sum(
            # matrices with a bias and scales move together
            time.away_s[expert_stem(name)]
            for name in gone
            if name.endswith(".weight")
        )
    return total


@st.composite
def cells(draw: st.DrawFn) -> tuple[Clock, Placement, dict[str, int]]:
    """A model, cards, options and a placement of it, some of it fixed by the user."""
    model = model_of(draw(st.sampled_from(SHAPES)), "Q4_K_M")
    names = draw(st.lists(st.sampled_from(CARDS), min_size=1, max_size=3, unique=True))
    cards = [parse_device(name) for name in names]
    if draw(st.integers(0, 4)) == 0:
        cards = [device_by_name(f"RPC{i}", 1 << 30) for i in range(len(cards))]
    options = PlanOptions(
        n_ctx=8192,
        n_ubatch=draw(st.sampled_from((128, 512, 2048))),
        no_host=draw(st.booleans()),
        op_offload=draw(st.booleans()),
        offload_kqv=draw(st.booleans()),
    )
    turn = Turn(draw(st.integers(1, 3000)), draw(st.integers(1, 600)), draw(st.integers(0, 9999)))
    clock = make_clock(
        model, cards, resolve_context(model, options), Speeds(turn=turn),
        op_offload=options.op_offload,
    )  # fmt: skip
    n_units = model.n_layer + 1
    n_mtp = model.n_layer_nextn
    cuts = sorted(draw(st.lists(
        # a card that owns nothing but MTP blocks is entered in the tables, not in the clock
        st.integers(0, n_units).filter(lambda n: not n_units - 1 - n_mtp < n < n_units),
        min_size=len(cards), max_size=len(cards),
    )))  # fmt: skip
    split = split_by_counts(model.n_layer, [b - a for a, b in pairwise((*cuts, n_units))])
    rng = draw(st.randoms(use_true_random=False))
    stems = [
        (t.il, expert_stem(t.name)) for t in model.expert_tensors if split.owners[t.il or 0] != HOST
    ]
    gone = {key for key in dict.fromkeys(stems) if rng.random() < 0.3}
    places = (HOST, *range(len(cards)))
    held = {key: rng.choice(places) for key in dict.fromkeys(stems) if rng.random() < 0.1}
    by_key = {t.name: (t.il, expert_stem(t.name)) for t in model.expert_tensors}
    fixed = {name: held[key] for name, key in by_key.items() if key in held}
    placed = {name: HOST for name, key in by_key.items() if key in gone} | fixed
    if not any(place == HOST for place in placed.values()):
        # without a rule that sends something to the host its weights are mapped
        name = next(n for n, key in by_key.items() if n.endswith(".weight"))
        fixed[name] = placed[name] = HOST
    return clock, Placement(split=split, placed=placed, has_rules=True), fixed


@given(cells())
@settings(max_examples=60, deadline=None)
def test_tables_add_up_to_the_clock(cell: tuple[Clock, Placement, dict[str, int]]) -> None:
    """The linear part of a turn is the same to rounding, in whole and in pieces.

    What RPC cards are sent again depends on all layers of a card and is in no table.
    """
    clock, placement, fixed = cell
    times = turn_times(clock, fixed)
    found = summed(clock.model, times, placement, fixed)
    amounts = clock.work(placement).amounts
    resent_s = sum(amounts[name] * clock.value(name) for name in amounts if ".resend." in name)
    assert resent_s > 0 or not any(".resend." in name for name in amounts)
    assert found == pytest.approx(clock.seconds(placement) - resent_s, rel=1e-9)


def test_a_slow_link_makes_experts_on_the_host_dear() -> None:
    """Experts of every card's layers cross the first card's link, and only that one's."""
    model = model_of("gpt-oss-120b", "Q4_K_M")

    def away_s(first: str, second: str) -> float:
        cards = [
            parse_device(f"CUDA0:24GiB:900GB/s:{first}"),
            parse_device(f"CUDA1:24GiB::{second}"),
        ]
        context = resolve_context(model, PlanOptions(n_ctx=8192))
        times = turn_times(make_clock(model, cards, context, Speeds()), {})
        return sum(times.cards[1][5].away_s.values())

    assert away_s("4GB/s", "25GB/s") > 1.5 * away_s("25GB/s", "25GB/s")
    assert away_s("25GB/s", "4GB/s") == pytest.approx(away_s("25GB/s", "25GB/s"))
