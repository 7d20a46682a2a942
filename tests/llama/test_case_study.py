"""The case this project was born from, to the MiB, with llama.cpp beside every number."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload.device import devices_from_flags, parse_device
from offload.engine.verify import verify_plan
from offload.model import Model, make_model
from offload.options import PlanOptions, Strategy
from offload.plan import make_plan
from offload.source import read_header
from offload.units import GIB, MIB

CARD_BYTES = 22 * GIB + GIB // 2

# llama-fit-params b11434, -ts 1,1 -c 8192: weights of both cards in whole MiB, rounded down
TABLE = (
    (0, 28310, 25750),
    (8, 16662, 25750),
    (9, 15206, 25750),
    (10, 13750, 25750),
    (11, 12294, 25750),
)


@pytest.fixture(scope="module")
def model(shape_119b: Path) -> Model:
    """The 119B shape."""
    return make_model(read_header(shape_119b))


@pytest.mark.parametrize(("n", "card_0", "card_1"), TABLE)
def test_first_n_relieves_only_the_first_card(
    model: Model, n: int, card_0: int, card_1: int
) -> None:
    """The second card's weights do not move, whatever N: the table of the case study."""
    rpc = [parse_device(f"RPC{i}[127.0.0.1:{50052 + i}]:{CARD_BYTES}") for i in range(2)]
    options = PlanOptions(
        n_ctx=8192, tensor_split=(1.0, 1.0), n_cpu_moe=n or None, strategy=Strategy.NONE
    )
    plan = make_plan(model, rpc, options)
    assert [m.model_bytes // MIB for m in plan.memory.devices] == [card_0, card_1]
    assert not plan.feasible


@pytest.mark.parametrize("n_cards", [2, 3])
def test_the_plan_fits_and_llama_cpp_agrees(
    llama_cpp_python: None, model: Model, n_cards: int
) -> None:
    """Two and three 22 GB cards hold the model by the spread over each card's own layers."""
    plan = make_plan(model, devices_from_flags(n_cards, (CARD_BYTES,)), PlanOptions(n_ctx=8192))
    assert plan.feasible
    assert bool(plan.rules) is (n_cards == 2)
    verification = verify_plan(plan)
    assert verification.places_equal
    assert verification.fits
    for device in range(n_cards):
        own = set(plan.split.layers_of(device))
        assert own.issuperset(plan.experts_on_host(device))


def test_first_n_fits_only_when_it_reaches_the_second_card(model: Model) -> None:
    """The smallest N that fits relieves layers of both cards and leaves more on the host."""
    cards = devices_from_flags(2, (CARD_BYTES,))
    first = make_plan(model, cards, PlanOptions(n_ctx=8192, strategy=Strategy.FIRST))
    own = make_plan(model, cards, PlanOptions(n_ctx=8192))
    assert first.feasible
    assert first.experts_on_host(1)
    assert first.memory.host.model_bytes > 2 * own.memory.host.model_bytes
