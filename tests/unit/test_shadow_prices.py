"""What one thing more or less would change is what planning again says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.speed_cases import model_of
from offload.clock import clock_of_plan
from offload.cost import Coefficients
from offload.cost.coefficients import Coefficient
from offload.device import Device, parse_device
from offload.ggml import TYPES_BY_NAME
from offload.machine import Host
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.priors import link_bytes_per_s
from offload.question import Answered, Question, answered, planned, question_of
from offload.shadow_prices import ShadowPrice, changes_of, shadow_prices, with_wider_link
from offload.speeds import Measured, Speeds
from offload.units import GIB

MODEL = model_of("gpt-oss-120b", "Q4_K_M")
HOST = Host(bandwidth_bytes_per_s=100 * 10**9)
CARDS = ("CUDA0:24GiB:936GB/s", "CUDA1:12GiB:360GB/s")


def base(*cards: str, options: PlanOptions | None = None) -> Answered:
    """A plan of the 120B on these cards, the turn's depth settled."""
    question = Question(
        model=MODEL,
        devices=tuple(parse_device(card) for card in cards or CARDS),
        options=PlanOptions(n_ctx=16384) if options is None else options,
        host_free_bytes=100 * GIB,
        speeds=Speeds(host=HOST),
    )
    return planned(question_of(planned(question).plan, question.speeds))


@pytest.fixture(scope="module")
def two_cards() -> Answered:
    """Two unequal cards, experts on the host."""
    return base()


@pytest.fixture(scope="module")
def prices(two_cards: Answered) -> dict[str, ShadowPrice]:
    """Its prices by code."""
    return {price.change.code: price for price in shadow_prices(two_cards)}


def test_everything_asked_for_has_a_price(prices: dict[str, ShadowPrice]) -> None:
    """Memory and absence of each card, the link that streams, batch, cache and context."""
    assert list(prices) == [
        "memory:CUDA0", "memory:CUDA1", "link:CUDA0", "ubatch", "kv-q8_0", "half-context",
        "without:CUDA0", "without:CUDA1",
    ]  # fmt: skip
    assert all(price.difference is not None for price in prices.values())


def test_prices_are_plans_made_again(two_cards: Answered, prices: dict[str, ShadowPrice]) -> None:
    """Each price is the turn of `make_plan` with that one thing different, less the turn now."""
    question = two_cards.question
    first, second = question.devices
    q8 = TYPES_BY_NAME["Q8_0"]
    options = question.options
    asked: dict[str, tuple[tuple[Device, ...], PlanOptions]] = {
        "memory:CUDA1": (
            (first, replace(second, memory_free_bytes=13 * GIB)), options,
        ),
        "link:CUDA0": (
            (replace(first, link_bytes_per_s=round(2 * link_bytes_per_s(first))), second), options,
        ),
        "ubatch": ((first, second), replace(options, n_ubatch=2048)),
        "kv-q8_0": ((first, second), replace(options, type_k=q8, type_v=q8)),
        "without:CUDA1": ((first,), replace(options, device_names=("CUDA0",))),
    }  # fmt: skip
    now_s = clock_of_plan(two_cards.plan, question.speeds).seconds(two_cards.plan.placement)
    for code, (devices, changed) in asked.items():
        plan = make_plan(MODEL, devices, changed, host_free_bytes=100 * GIB, speeds=question.speeds)
        then_s = clock_of_plan(plan, question.speeds).seconds(plan.placement)
        found = prices[code].difference
        assert found is not None
        assert found.seconds == pytest.approx(then_s - now_s, abs=1e-9), code
        assert found.low_s <= found.seconds <= found.high_s


def test_the_plan_that_is_compared_is_the_one_that_is_there(two_cards: Answered) -> None:
    """Prices count from the given plan, also where planning again would not make it."""
    worse = make_plan(
        MODEL, two_cards.question.devices, replace(two_cards.question.options, cpu_moe=True),
        host_free_bytes=100 * GIB,
    )  # fmt: skip
    from_worse = answered(two_cards.question, worse)
    more = next(iter(shadow_prices(from_worse)))
    assert more.difference is not None and more.difference.seconds < 0


def test_half_the_context_is_compared_at_a_depth_that_both_have(
    prices: dict[str, ShadowPrice],
) -> None:
    """A shallower turn is faster by itself; that is no merit of the smaller context."""
    price = prices["half-context"]
    assert price.after is not None
    assert price.before.clock.prompt_depth == price.after.clock.prompt_depth == 8192 - 2560
    assert prices["ubatch"].before.clock.prompt_depth == 8192


def test_memory_is_worth_something_and_a_lost_card_costs(prices: dict[str, ShadowPrice]) -> None:
    """The signs that nobody would doubt; only more memory may put an expert on the other card.

    That takes crossings, whose price is a guess here, so that its sign cannot be told.
    """
    for code in ("memory:CUDA0", "memory:CUDA1", "link:CUDA0"):
        price = prices[code]
        assert price.difference is not None and price.difference.seconds < 0, code
        crossed = price.after is not None and price.after.plan.placement.crossed
        assert price.difference.is_told or crossed, code
    told = prices["link:CUDA0"].difference
    assert told is not None and told.is_told
    lost = prices["without:CUDA0"].difference
    assert lost is not None and lost.seconds > 0


def test_cards_that_are_alike_are_taken_away_once() -> None:
    """Of three equal cards the first, over which experts are streamed, and one of the others."""
    three = base("CUDA0:16GiB:600GB/s", "CUDA1:16GiB:600GB/s", "CUDA2:16GiB:600GB/s")
    codes = [change.code for change in changes_of(three)]
    assert [code for code in codes if code.startswith("without")] == [
        "without:CUDA0", "without:CUDA2",
    ]  # fmt: skip


def test_margins_stay_with_their_cards() -> None:
    """A card taken away takes its margin with it."""
    options = PlanOptions(n_ctx=8192, margin_bytes=(GIB, 3 * GIB))
    fewer = [c for c in changes_of(base(options=options)) if c.code == "without:CUDA0"]
    assert fewer[0].question.options.margin_bytes == (3 * GIB,)
    assert [d.name for d in fewer[0].question.devices] == ["CUDA1"]


def test_a_users_shares_keep_all_cards() -> None:
    """With -ts nothing is said of fewer cards, which -ts could not mean."""
    codes = [c.code for c in changes_of(base(options=PlanOptions(tensor_split=(2.0, 1.0))))]
    assert not any(code.startswith("without") for code in codes)


def test_what_does_not_fit_has_no_price() -> None:
    """Two cards hold it, one alone does not, and the host is too small for the rest."""
    question = base().question._replace(host_free_bytes=55 * GIB)
    small = planned(question)
    assert small.plan.feasible
    found = {p.change.code: p for p in shadow_prices(small)}
    lost = found["without:CUDA0"]
    assert lost.after is not None and not lost.after.plan.feasible and lost.difference is None


def test_what_llama_cpp_refuses_is_said() -> None:
    """A change that cannot be planned at all has a reason instead of a price."""
    two = base(options=PlanOptions(n_ctx=8192, margin_bytes=(GIB, GIB)))
    broken = two._replace(
        question=two.question._replace(
            options=replace(two.question.options, margin_bytes=(1, 2, 3))
        )
    )
    price = next(iter(shadow_prices(broken)))
    assert price.after is None and "--margin" in price.refused


def test_a_measured_link_is_widened_with_its_doubt() -> None:
    """A profile's seconds per streamed byte halve; what else it says stays."""
    table = {
        name: Coefficient(name, 2.0, "s/byte", 0.5)
        for name in ("prefill.stream.CUDA3", "prefill.stream_mmap.CUDA3", "prefill.read.CUDA3")
    }
    pair = ("prefill.read.CUDA3", "prefill.stream.CUDA3")
    known = Coefficients(table, {pair: 0.1}, {}, "measured")
    question = base().question
    speeds = question.speeds._replace(measured=Measured(known, {"CUDA0": "CUDA3"}))
    wider = with_wider_link(question._replace(speeds=speeds), 0, 2.0).speeds.measured
    assert wider is not None
    values = {name: one.value for name, one in wider.coefficients.table.items()}
    assert values == {
        "prefill.stream.CUDA3": 1.0, "prefill.stream_mmap.CUDA3": 2.0, "prefill.read.CUDA3": 2.0,
    }  # fmt: skip
    assert wider.coefficients.table["prefill.stream.CUDA3"].standard_error == 0.25
    assert wider.coefficients.covariance == {pair: 0.05}
