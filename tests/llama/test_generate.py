"""Where a model lies changes neither what it says nor what it takes.

Greedy tokens are equal to the bit as long as every device computes with the same kernels.
Virtual cards are the CPU's plain ones; only repacked host weights (`CPU_REPACK`) have kernels
of their own, which add up in another order, so they are off here and have a test of their own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offload.device import devices_from_flags
from offload.emit import make_launch
from offload.engine.dry_run import dry_run
from offload.engine.load_options import LoadOptions
from offload.engine.session import load
from offload.engine.targets import played_target, real_target
from offload.engine.verify import load_options
from offload.engine.virtual_cards import VirtualCard
from offload.model import Model, make_model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.units import MIB
from tuner.synth import write_random

pytestmark = pytest.mark.usefixtures("llama_cpp_python")

PROMPT = "The quick brown fox jumps over the lazy dog."
N_PREDICT = 16
N_PLACEMENTS = 20
NO_WRITERS = ("llada-moe-moe.gguf", "rnd1-moe.gguf")
"""Diffusion models, which do not write token by token."""
ARCHS = ("qwen3moe", "gpt-oss", "deepseek2", "qwen3next", "gemma4")


@pytest.fixture(scope="module", params=ARCHS)
def model_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a vocabulary; Q4_K_M mixes types that CPUs do repack."""
    folder = tmp_path_factory.mktemp("placed")
    return write_random(folder / "m.gguf", arch=request.param, n_layer=4, quant="Q4_K_M")


def placements(model: Model, seed: int) -> Iterator[LoadOptions]:
    """All on the host, all on cards, then random owners, layers and tensors."""
    rng = random.Random(seed)
    base = LoadOptions(path=model.path, n_ctx=512, use_extra_bufts=False)
    experts = [tensor.name for tensor in model.expert_tensors]
    yield replace(base, n_gpu_layers=0, tensor_split=(1, 1))
    yield replace(base, tensor_split=(1, 1, 1))
    yield replace(base, tensor_split=(1, 1), overrides=(("exps", "CPU"),))
    yield replace(base, tensor_split=(0, 1), overrides=((re.escape(experts[0]), "CPU"),))
    while True:
        n_cards = rng.choice((2, 3))
        split = tuple(float(rng.randint(0, 3)) for _ in range(n_cards))
        rules = [
            (re.escape(name), rng.choice(("CPU", "CPU", *(f"RPC{d}" for d in range(n_cards)))))
            for name in rng.sample(experts, rng.randint(0, len(experts)))
        ]
        if any(split):
            n_gpu_layers = rng.choice((-1, -1, rng.randint(1, model.n_layer)))
            yield replace(
                base, n_gpu_layers=n_gpu_layers, tensor_split=split, overrides=tuple(rules)
            )


def test_same_tokens_wherever_they_are_computed(
    model_path: Path, cards: tuple[VirtualCard, ...]
) -> None:
    """Twenty placements of one model say the same, and every rule was obeyed."""
    model = make_model(read_header(str(model_path)))
    seen = set()
    for _, options in zip(range(N_PLACEMENTS), placements(model, seed=1), strict=False):
        endpoints = [card.endpoint for card in cards[: len(options.tensor_split)]]
        with load(options, endpoints=endpoints) as session:
            run = session.generate(PROMPT, n_predict=N_PREDICT)
            assert run.stop == "length"
            seen.add(run.tokens)
            wanted = {re.escape(name) for name in session.report.overridden}
            assert {rule for rule, _ in options.overrides} - {"exps"} <= wanted
    assert len(seen) == 1
    assert len(seen.pop()) == N_PREDICT


def test_every_moe_architecture(archs_dir: Path, cards: tuple[VirtualCard, ...]) -> None:
    """Models that llama.cpp's own test writes: on the host, and spread with experts left behind.

    They have no vocabulary, so prompt and answer are token ids.
    """
    prompt, wrong, n_equal = [3, 5, 7, 11, 13, 17, 19, 23], [], 0
    for path in sorted(archs_dir.glob("*-moe.gguf")):
        if path.name in NO_WRITERS:
            continue
        on_host = LoadOptions(path=str(path), n_gpu_layers=0, n_ctx=256, use_extra_bufts=False)
        spread = replace(
            on_host, n_gpu_layers=-1, tensor_split=(1, 1), overrides=(("_(up|gate)_exps", "CPU"),)
        )
        with load(on_host) as session:
            one = session.generate(prompt, n_predict=8)
        with load(spread, endpoints=[card.endpoint for card in cards[:2]]) as session:
            other = session.generate(prompt, n_predict=8)
        n_equal += one.tokens == other.tokens
        if one.tokens != other.tokens:
            wrong.append(path.name)
    assert not wrong
    assert n_equal >= 45


def test_repacked_weights_are_the_exception(tmp_path: Path, cards: tuple[VirtualCard, ...]) -> None:
    """Their memory is reported, and what they say is as good, but need not be equal."""
    path = write_random(tmp_path / "m.gguf", arch="qwen3moe", n_layer=4, quant="Q4_K_M")
    options = LoadOptions(
        path=str(path), n_ctx=512, tensor_split=(1, 1), overrides=(("exps", "CPU"),)
    )
    endpoints = [card.endpoint for card in cards[:2]]
    with load(options, endpoints=endpoints) as session:
        if not session.report.extra:
            pytest.skip("this processor repacks no Q4_K")
        assert session.report.extra[0].name == "CPU_REPACK"
        repacked = session.generate(PROMPT, n_predict=N_PREDICT)
    with load(replace(options, use_extra_bufts=False), endpoints=endpoints) as session:
        assert not session.report.extra
        plain = session.generate(PROMPT, n_predict=N_PREDICT)
    assert len(repacked.tokens) == len(plain.tokens)
    # the first token is far from a tie in this model
    assert repacked.tokens[0] == plain.tokens[0]


def plan_for(path: Path, gpus: tuple[str, ...], **options: object) -> Plan:
    """A plan for described cards, with a small context."""
    model = make_model(read_header(str(path)))
    asked = replace(PlanOptions(n_ctx=512, margin_bytes=(0,)), **options)  # type: ignore[arg-type]
    return make_plan(model, devices_from_flags(None, None, gpus, found=()), asked)


@pytest.mark.parametrize(("arch", "n_cards"), [(a, 2 + i % 2) for i, a in enumerate(ARCHS)])
def test_memory_is_the_plans(arch: str, n_cards: int, tmp_path: Path) -> None:
    """A plan's weights and context are allocated to the byte, compute as the dry run said.

    A dry run takes the first of the graphs that a real load reserves one after the other
    (`llama_context::sched_reserve`), so on the card of the output they may differ by a hidden
    state per copy of the graph, up or down.
    """
    path = write_random(tmp_path / "m.gguf", arch=arch, n_layer=6, quant="Q8_0")
    model = make_model(read_header(str(path)))
    roomy = tuple(f"RPC{d}[127.0.0.1:{d + 1}]:1GiB" for d in range(n_cards))
    bare = plan_for(path, roomy, strategy=Strategy.ALL, n_batch=64, n_ubatch=64)
    # room for half of the experts
    room = sum(tensor.n_bytes for tensor in model.expert_tensors) // (2 * n_cards) + MIB // 2
    gpus = tuple(
        f"RPC{d}[127.0.0.1:{d + 1}]:{memory.total_bytes + room}"
        for d, memory in enumerate(bare.memory.devices)
    )
    plan = plan_for(path, gpus, n_batch=64, n_ubatch=64)
    assert plan.feasible and plan.placement.host_tensors
    with load(plan, virtual=True) as session:
        verification = session.check()
        run = session.generate(PROMPT, n_predict=4)
    assert verification is not None
    assert verification.places_equal
    assert len(run.tokens) == 4
    for check in (*verification.devices, verification.host):
        assert check.actual.model_bytes == check.planned.model_bytes
        assert check.actual.context_bytes == check.planned.context_bytes
        assert check.actual.compute_bytes <= check.planned.compute_bytes + 256 * 1024
    dry = dry_run(load_options(plan), n_cards=n_cards)
    real = session.report
    for told, allocated in zip(
        (*dry.devices, dry.host, *dry.extra), (*real.devices, real.host, *real.extra), strict=True
    ):
        assert told.model_bytes == allocated.model_bytes
        assert told.context_bytes == allocated.context_bytes
        difference = abs(told.compute_bytes - allocated.compute_bytes)
        assert difference <= (4 * 64 * 256 * 4 if told is dry.devices[-1] else 0)


def test_repacking_as_on_the_planned_cards(small_moe: Path) -> None:
    """Host weights stay plain where the planned cards pin them, whatever plays the cards."""
    for gpus, no_host, is_repacked in (
        (("CUDA0:1GiB",), False, False),
        (("CUDA0:1GiB",), True, True),
        (("RPC0[127.0.0.1:1]:1GiB",), False, True),
        ((), False, True),
    ):
        plan = plan_for(small_moe, gpus, no_host=no_host)
        played = played_target(plan, ["127.0.0.1:1"] if gpus else [])
        assert played.options.use_extra_bufts == is_repacked
        assert real_target(plan).options.use_extra_bufts


def test_one_card_of_several(small_moe: Path, cards: tuple[VirtualCard, ...]) -> None:
    """`-sm none` uses the card of `-mg`, in a plan, a launch and on virtual cards alike."""
    gpus = tuple(f"RPC{d}[{card.endpoint}]:1GiB" for d, card in enumerate(cards))
    plan = plan_for(small_moe, gpus, split_mode="none", main_gpu=2)
    assert [device.name for device in plan.devices] == ["RPC2"]
    with load(plan, virtual=True) as session:
        played = session.generate(PROMPT, n_predict=4).tokens
        assert len(session.report.devices) == 1
    launch = replace(make_launch(plan), devices=("RPC0", "RPC1", "RPC2"), rpc=endpoints_of(cards))
    with load(launch) as session:
        assert session.generate(PROMPT, n_predict=4).tokens == played
        held = [device.model_bytes > 0 for device in session.report.devices]
        assert held == [False, False, True]


def endpoints_of(cards: tuple[VirtualCard, ...]) -> str:
    """As `--rpc` lists them."""
    return ",".join(card.endpoint for card in cards)
