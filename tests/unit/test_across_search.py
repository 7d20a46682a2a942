"""Experts on other cards: laid out as the clock and the memory referee see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload import across_search
from offload.across_search import may_cross, search_across
from offload.clock import Clock, make_clock
from offload.device import parse_device
from offload.fastest.across import AcrossAnswer, AcrossProblem, solve_across
from offload.machine import Host
from offload.model import make_model
from offload.options import PlanOptions, Strategy
from offload.plan import make_plan, resolve_context
from offload.source import read_header
from offload.speeds import Speeds
from offload.strategy import Problem, solve_strategy
from offload.time_search import Candidate, Search
from offload.units import GIB
from tuner.synth import write_shape

SPEEDS = Speeds(host=Host(bandwidth_bytes_per_s=80 * 10**9))
FAST, SLOW = "24GiB:1TB/s:25GB/s", "24GiB:346GB/s:6GB/s"


def laid_out(tmp_path: Path, *texts: str, endpoint: str = "") -> tuple[Search, Clock, Candidate]:
    """A search, its clock and the even spread for gpt-oss-120b on these cards."""
    model = make_model(read_header(write_shape("gpt-oss-120b", tmp_path / "m.gguf")))
    names = [f"RPC{d}[{endpoint}{d}]" if endpoint else f"CUDA{d}" for d in range(len(texts))]
    cards = [parse_device(f"{name}:{text}") for name, text in zip(names, texts, strict=True)]
    context = resolve_context(model, PlanOptions(n_ctx=8192))
    free = tuple(card.memory_free_bytes for card in cards)
    problem = Problem(
        model=model,
        context=context,
        backends=tuple(card.backend for card in cards),
        room_bytes=tuple(n - GIB for n in free),
        free_bytes=free,
        host_free_bytes=None,
        op_offload=True,
        n_gpu_layers=None,
        tensor_split=None,
        user_placed={},
        has_user_rules=False,
    )
    clock = make_clock(model, cards, context, SPEEDS)
    priced = solve_strategy(problem, Strategy.EVEN)
    even = Candidate("even", priced, clock.seconds(priced.placement))
    return Search(problem, clock), clock, even


@pytest.mark.parametrize(
    "texts", [(FAST, SLOW), (FAST, SLOW, SLOW), (SLOW, FAST, "12GiB:200GB/s:3GB/s")]
)
def test_what_the_solver_adds_up_is_what_the_clock_says(
    tmp_path: Path, texts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds of the answer, and the constant ones, are those of its placement, to rounding."""
    search, clock, even = laid_out(tmp_path, *texts)
    said: list[AcrossAnswer] = []

    def spied(problem: AcrossProblem, best_s: float, enough_s: float, ways: object) -> AcrossAnswer:
        said.append(solve_across(problem, best_s, enough_s, ways))  # type: ignore[arg-type]
        return said[-1]

    monkeypatch.setattr(across_search, "solve_across", spied)

    found = search_across(search, clock, even, even.priced.memory)

    assert found.candidate is not None and found.candidate.priced.fits
    assert found.candidate.priced.placement.crossed
    totals = [answer.seconds + search.constant_s for answer in said]
    assert any(found.candidate.turn_s == pytest.approx(total, rel=1e-9) for total in totals)
    assert found.bound_s <= found.candidate.turn_s


def test_no_search_where_nothing_can_be_gained(tmp_path: Path) -> None:
    """One card, cards that are alike and full, and cards across a network nobody measured."""
    for texts, endpoint, wanted in (
        ((FAST,), "", False),
        ((FAST, FAST), "", False),
        ((FAST, "24GiB:1TB/s:1GB/s"), "", False),
        ((FAST, SLOW), "192.0.2.7:5005", False),
        ((FAST, SLOW), "", True),
    ):
        search, clock, even = laid_out(tmp_path, *texts, endpoint=endpoint)
        assert may_cross(search, clock, even) is wanted, (texts, endpoint)


def test_the_users_rules_end_it(tmp_path: Path) -> None:
    """Who places tensors by rules of their own gets no rule that they did not ask for."""
    model = make_model(read_header(write_shape("gpt-oss-120b", tmp_path / "m.gguf")))
    cards = [parse_device(f"CUDA{d}:{text}") for d, text in enumerate((FAST, SLOW, SLOW))]
    plan = make_plan(model, cards, PlanOptions(n_ctx=8192, n_cpu_moe=1), speeds=SPEEDS)
    assert plan.choice is not None and plan.choice.name != "across"
    assert not plan.placement.crossed
