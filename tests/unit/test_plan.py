"""Plans of real shapes: what the user set is kept, what is impossible is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from offload.device import devices_from_flags, parse_device
from offload.errors import UsageError
from offload.ggml import TYPES_BY_NAME
from offload.memory import measure_memory
from offload.model import Model, make_model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.rules import parse_overrides, replay
from offload.source import read_header
from offload.split import HOST
from offload.units import GIB
from tuner.synth import write_shape


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


def _codes(plan: Plan) -> set[str]:
    return {advice.code for advice in plan.advice}


def _cards(*gib: float) -> tuple[int, ...]:
    return tuple(round(size * GIB) for size in gib)


@pytest.mark.parametrize("name", ["mistral-small-4-119b", "glm-4.5-air", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("gib", [(22, 22), (24, 12), (16, 16, 16, 16), (12,)])
def test_rules_replayed_give_the_planned_memory(
    shape: Callable[[str], Model], name: str, gib: tuple[int, ...]
) -> None:
    """Replaying the emitted rules over the tensor names reproduces every device's weights."""
    model = shape(name)
    plan = make_plan(model, devices_from_flags(len(gib), _cards(*gib)), PlanOptions(n_ctx=8192))
    index = {d.buffer_type: i for i, d in enumerate(plan.devices)} | {"CPU": HOST}
    placed = {k: index[v] for k, v in replay(plan.rules, model.tensor_names).items()}
    assert placed == dict(plan.placement.placed)
    backends = [device.backend for device in plan.devices]
    memory = measure_memory(model, plan.context, backends, plan.split, placed)
    assert [m.model_bytes for m in memory.devices] == [m.model_bytes for m in plan.memory.devices]
    assert memory.host.model_bytes == plan.memory.host.model_bytes
    assert plan.feasible
    assert all(plan.headroom_bytes(d) >= 0 for d in range(len(gib)))


def test_a_dense_model_says_so_and_plans_layers(shape: Callable[[str], Model]) -> None:
    """No experts: nothing to offload but whole layers, which -ngl leaves on the host."""
    plan = make_plan(shape("llama-3.1-70b"), devices_from_flags(1, _cards(24)), PlanOptions())
    assert plan.feasible
    assert not plan.rules
    assert "dense-model" in _codes(plan)
    assert 0 < plan.split.n_gpu_layers < 81
    assert plan.split.owners[0] == HOST
    fitting = make_plan(shape("qwen3-14b"), devices_from_flags(1, _cards(24)), PlanOptions())
    assert fitting.split.n_gpu_layers == 41


def test_the_mtp_block_takes_a_unit_and_no_memory(shape: Callable[[str], Model]) -> None:
    """GLM-4.5-Air has 46 layers and an MTP block: -ngl 48, and nothing of block 46 is loaded."""
    model = shape("glm-4.5-air")
    plan = make_plan(model, devices_from_flags(4, _cards(24)), PlanOptions(n_ctx=8192))
    assert plan.split.n_gpu_layers == 48
    assert "mtp-not-loaded" in _codes(plan)
    assert 46 not in {t.il for t in model.expert_tensors}


def test_no_cards_is_a_plan_for_the_host(shape: Callable[[str], Model]) -> None:
    """Without cards everything is on the host and -ngl is 0."""
    plan = make_plan(shape("gpt-oss-20b"), (), PlanOptions(n_ctx=4096), host_free_bytes=64 * GIB)
    assert plan.feasible
    assert plan.split.n_gpu_layers == 0
    assert "no-cards" in _codes(plan)


def test_host_memory_is_a_limit_too(shape: Callable[[str], Model]) -> None:
    """Experts that do not fit the host either: not feasible, and how much RAM would do."""
    plan = make_plan(
        shape("kimi-k2"), devices_from_flags(2, _cards(24, 24)), PlanOptions(),
        host_free_bytes=256 * GIB,
    )  # fmt: skip
    assert HOST in plan.short_bytes
    assert {"short-host", "try-host-ram"} <= _codes(plan)


def test_what_would_help_does_help(shape: Callable[[str], Model]) -> None:
    """The advised context, taken, fits."""
    model = shape("qwen3-235b-a22b")
    cards = devices_from_flags(1, _cards(12))
    options = PlanOptions(n_ctx=131072, n_gpu_layers=-1)
    plan = make_plan(model, cards, options)
    assert not plan.feasible
    text = next(a.text for a in plan.advice if a.code == "try-context")
    n_ctx = int(text.split("-c ")[1])
    assert make_plan(model, cards, PlanOptions(n_ctx=n_ctx, n_gpu_layers=-1)).feasible


def test_user_shares_layers_and_rules_are_kept(shape: Callable[[str], Model]) -> None:
    """-ts and -ngl decide the ranges; a user's rule stays and is not repeated in ours."""
    model = shape("mistral-small-4-119b")
    rules = parse_overrides(r"blk\.(30|31)\.ffn_.*exps=CPU")
    options = PlanOptions(
        n_ctx=8192, n_gpu_layers=30, tensor_split=(2.0, 1.0), override_rules=rules
    )
    plan = make_plan(model, devices_from_flags(2, _cards(20, 12)), options)
    assert plan.split.counts(2) == (20, 10)
    assert plan.split.layers_of(HOST) == (0, 1, 2, 3, 4, 5, 6)
    assert {30, 31} <= set(plan.experts_on_host(1))
    ours = replay(plan.rules, model.tensor_names)
    assert not any(name.startswith(("blk.30.", "blk.31.")) for name in ours)


def test_n_cpu_moe_is_kept_and_planned_around(shape: Callable[[str], Model]) -> None:
    """-ncmoe 8 relieves the first card; the second is relieved by our rules."""
    options = PlanOptions(n_ctx=8192, n_cpu_moe=8, tensor_split=(1.0, 1.0))
    plan = make_plan(
        shape("mistral-small-4-119b"), devices_from_flags(2, _cards(22.5, 22.5)), options
    )
    assert plan.feasible
    assert set(range(8)) <= set(plan.experts_on_host(0))
    assert plan.experts_on_host(1)


def test_split_mode_none_uses_one_card(shape: Callable[[str], Model]) -> None:
    """-sm none -mg 1 plans for the second card alone."""
    cards = (parse_device("CUDA0:8GiB"), parse_device("CUDA1:24GiB"))
    options = PlanOptions(n_ctx=8192, split_mode="none", main_gpu=1)
    plan = make_plan(shape("gpt-oss-20b"), cards, options)
    assert [device.name for device in plan.devices] == ["CUDA1"]
    with pytest.raises(UsageError, match="-mg 2"):
        make_plan(shape("gpt-oss-20b"), cards, PlanOptions(split_mode="none", main_gpu=2))


def test_ending_pipeline_parallelism_can_be_enough(shape: Callable[[str], Model]) -> None:
    """Two 24 GiB RPC cards hold it only without the pipeline's copies: one rule, no move."""
    cards = [parse_device(f"RPC{i}[127.0.0.1:{50052 + i}]:24GiB") for i in range(2)]
    plan = make_plan(shape("qwen3-next-80b-a3b"), cards, PlanOptions(n_ctx=16384, n_parallel=1))
    assert plan.feasible
    assert "fits-without-pipeline" in _codes(plan)
    assert len(plan.rules) == 1
    assert not plan.placement.host_tensors


def test_two_cache_types_are_refused_where_llama_cpp_refuses(
    shape: Callable[[str], Model],
) -> None:
    """A latent cache holds keys only: -ctk and -ctv must agree."""
    options = PlanOptions(type_k=TYPES_BY_NAME["Q8_0"])
    with pytest.raises(UsageError, match="-ctk and -ctv"):
        make_plan(shape("deepseek-v3"), devices_from_flags(1, _cards(24)), options)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_plans_are_deterministic(shape: Callable[[str], Model], strategy: Strategy) -> None:
    """The same question has the same answer, to the byte."""
    cards = devices_from_flags(3, _cards(24, 16, 12))
    options = PlanOptions(n_ctx=8192, strategy=strategy)
    first = make_plan(shape("minimax-m2"), cards, options)
    second = make_plan(shape("minimax-m2"), cards, options)
    assert first == second


def test_a_margin_that_takes_the_whole_card_is_named(shape: Callable[[str], Model]) -> None:
    """No quantisation is small enough for a card that is all margin: nothing else is advised."""
    cards = devices_from_flags(1, (4 * GIB,))
    model = shape("gpt-oss-20b")

    def codes(margin_bytes: int) -> set[str]:
        options = PlanOptions(n_ctx=4096, margin_bytes=(margin_bytes,))
        return _codes(make_plan(model, cards, options, host_free_bytes=64 * GIB))

    assert codes(4 * GIB) == {"margin-takes-the-card", "short-card"}
    assert "margin-takes-the-card" not in codes(4 * GIB - 1)
    assert codes(GIB).isdisjoint({"margin-takes-the-card", "short-card"})
