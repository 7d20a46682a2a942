"""Which servers RPC cards are on, and that names of cards stay theirs."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from benchmarks.speed_cases import model_of
from offload.contenders import make_contenders
from offload.device import Device, device_by_name, rpc_servers
from offload.emit import make_launch
from offload.machine import Host
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.speeds import Speeds

GIB = 1 << 30
FREE = (4 * GIB, 24 * GIB, 24 * GIB)
BANDWIDTH = (20 * 10**9, 936 * 10**9, 936 * 10**9)


def rpc_cards() -> tuple[Device, ...]:
    """One that only costs, and two good ones."""
    return tuple(
        replace(
            device_by_name(f"RPC{d}", FREE[d]),
            bandwidth_bytes_per_s=BANDWIDTH[d],
            endpoint=f"127.0.0.1:{50000 + d}",
        )
        for d in range(3)
    )


def meant(rpc: str | None, names: tuple[str, ...]) -> list[str]:
    """Which servers llama.cpp takes for these names: it numbers them as `--rpc` lists them."""
    servers = (rpc or "").split(",")
    return [servers[int(name.removeprefix("RPC"))] for name in names]


def test_numbers_are_places_in_the_list() -> None:
    """Whatever the order of the cards."""
    cards = rpc_cards()
    for order in permutations(cards):
        assert rpc_servers(order) == tuple(card.endpoint for card in cards)
    assert rpc_servers([device_by_name("CUDA0", GIB)]) == ()


def test_a_card_that_is_left_out_keeps_its_number() -> None:
    """`-dev` names the cards of the plan, on the servers they are on."""
    model, cards = model_of("qwen3-30b-a3b", "Q4_K_M"), rpc_cards()
    speeds = Speeds(host=Host(bandwidth_bytes_per_s=80 * 10**9))
    plan = make_plan(model, cards, PlanOptions(), host_free_bytes=64 * GIB, speeds=speeds)
    launch = make_launch(plan)
    assert "RPC0" not in launch.devices and launch.devices
    assert meant(launch.rpc, launch.devices) == [card.endpoint for card in plan.devices]


def test_each_card_alone_is_on_its_own_server() -> None:
    """What `compare` lays beside ours can be run as it is."""
    model, cards = model_of("qwen3-30b-a3b", "Q4_K_M"), rpc_cards()
    alone = [
        one.plan
        for one in make_contenders(model, cards, PlanOptions(), host_free_bytes=64 * GIB)
        if one.name.endswith(" alone")
    ]
    assert len(alone) == 3
    for card, plan in zip(cards, alone, strict=True):
        launch = make_launch(plan)
        assert meant(launch.rpc, launch.devices) == [card.endpoint]
