"""Out of memory: what a log tells about the device, and the plan that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from offload.device import parse_device
from offload.engine.serving.replan import (
    describe_change,
    describe_failure,
    find_memory_failure,
    lost_cards,
    replan,
)
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.render.request_json import request_of_plan
from offload.source import read_header
from offload.split import HOST
from offload.units import GIB, MIB
from tuner.synth import write_random


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MoE of 44 MB."""
    path = tmp_path_factory.mktemp("replan") / "moe.gguf"
    return write_random(
        path, arch="qwen3moe", quant="Q8_0",
        n_layer=6, n_vocab=1024, n_embd=256, n_ff_exp=256, n_expert=32,
    )  # fmt: skip


def plan_of(path: Path, cards: Sequence[str], margin_bytes: int = MIB) -> Plan:
    """The plan of a small context on these cards."""
    options = PlanOptions(n_ctx=1024, n_ubatch=64, margin_bytes=(margin_bytes,))
    devices = [parse_device(card) for card in cards]
    return make_plan(make_model(read_header(path)), devices, options, host_free_bytes=GIB)


CUDA = ("CUDA0:40MiB", "CUDA1:40MiB")

WEIGHTS_CUDA = """\
0.01 I llama_prepare_model_devices: using device CUDA0 (NVIDIA RTX) (0000:01:00.0) - 39 MiB free
0.01 I llama_prepare_model_devices: using device CUDA1 (NVIDIA RTX) (0000:02:00.0) - 12 MiB free
0.02 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 21.50 MiB on device 1: \
cudaMalloc failed: out of memory
0.02 E alloc_tensor_range: failed to allocate CUDA1 buffer of size 22544384
0.03 E llama_model_load: error loading model: unable to allocate CUDA1 buffer
"""

COMPUTE_VULKAN = """\
0.01 I load_tensors:      Vulkan0 model buffer size =    24.00 MiB
0.01 I load_tensors:      Vulkan1 model buffer size =    20.00 MiB
0.02 I llama_kv_cache:    Vulkan0 KV buffer size =     3.00 MiB
0.02 I llama_kv_cache:    Vulkan1 KV buffer size =     3.00 MiB
0.03 E ggml_vulkan: Device memory allocation of size 295862400 failed.
0.03 E ggml_gallocr_reserve_n_impl: failed to allocate Vulkan1 buffer of size 295862400
0.03 W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism
0.04 E ggml_gallocr_reserve_n_impl: failed to allocate Vulkan1 buffer of size 86024224
0.05 E llama_init_from_model: failed to initialize the context: failed to allocate compute pp \
buffers
"""

SERVING_CUDA = """\
1.00 E CUDA error: out of memory
1.00 E   current device: 0, in function alloc at ggml-cuda.cu:555
1.00 E   cuMemCreate(&handle, reserve_size, &prop, 0)
ggml-cuda.cu:102: CUDA error
"""


def test_weights_that_do_not_fit_on_a_cuda_card(small: Path) -> None:
    """CUDA says device and MiB; what was free at the start is taken over for all cards."""
    plan = plan_of(small, CUDA)
    failure = find_memory_failure(WEIGHTS_CUDA.splitlines(), plan)
    assert failure is not None
    assert (failure.device, failure.held_bytes, failure.wanted_bytes) == (1, 0, 22544384)
    assert failure.free_bytes == {0: 39 * MIB, 1: 12 * MIB}
    again, learnt = replan(plan, request_of_plan(plan), failure, 1)
    assert [d.memory_free_bytes for d in learnt.devices] == [39 * MIB, 12 * MIB]
    assert again.feasible
    assert again.memory.devices[1].total_bytes <= 11 * MIB


def test_compute_that_does_not_fit_is_bounded_by_all_that_is_there(small: Path) -> None:
    """The last of the two failures counts: the first was the pipeline's, which is given up."""
    plan = plan_of(small, ("Vulkan0:60MiB", "Vulkan1:60MiB"))
    # the numbers of the log, as if they had been planned
    failure = find_memory_failure(COMPUTE_VULKAN.splitlines(), plan)
    assert failure is not None
    assert (failure.device, failure.held_bytes) == (1, 23 * MIB)
    assert failure.wanted_bytes == 86024224
    assert failure.bound_bytes == 23 * MIB + 86024224


def test_a_compute_buffer_beyond_the_estimate_is_counted_twice(small: Path) -> None:
    """The card may be as large as thought: then it is the weights that must make room."""
    plan = plan_of(small, ("Vulkan0:60MiB", "Vulkan1:60MiB"))
    planned = plan.memory.devices[1]
    log = (
        f"x: Vulkan1 model buffer size = {planned.model_bytes / MIB:.2f} MiB\n"
        f"x: Vulkan1 KV buffer size = {planned.context_bytes / MIB:.2f} MiB\n"
        f"x: failed to allocate Vulkan1 buffer of size {planned.compute_bytes + 5 * MIB}\n"
    )
    failure = find_memory_failure(log.splitlines(), plan)
    assert failure is not None
    assert failure.compute_excess_bytes == 5 * MIB
    again, _ = replan(plan, request_of_plan(plan), failure, 1)
    saved = planned.total_bytes - again.memory.devices[1].total_bytes
    assert saved >= planned.total_bytes // 16


def test_running_out_while_serving(small: Path) -> None:
    """A pool grew: the card held all that was planned; a little less is planned next."""
    plan = plan_of(small, CUDA)
    failure = find_memory_failure(SERVING_CUDA.splitlines(), plan, while_serving=True)
    assert failure is not None
    assert failure.device == 0
    assert failure.held_bytes == plan.memory.devices[0].total_bytes
    assert describe_failure(failure).startswith("CUDA0 was refused what it needed")
    again, _ = replan(plan, request_of_plan(plan), failure, 1)
    assert again.memory.devices[0].total_bytes < plan.memory.devices[0].total_bytes * 15 / 16


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("E unable to allocate CPU buffer", HOST),
        ("E unable to allocate CUDA_Host buffer", HOST),
        ("E unable to allocate RPC0[10.0.0.2:50052] buffer", 1),
        ("E failed to allocate RPC0[10.0.0.1:50052] buffer of size 1048576", 0),
    ],
)
def test_whose_memory_it_is(small: Path, line: str, device: int) -> None:
    """Buffer types of the host, pinned ones too, and of cards behind servers."""
    plan = plan_of(small, ("RPC0[10.0.0.1:50052]:40MiB", "RPC1[10.0.0.2:50052]:40MiB"))
    failure = find_memory_failure([line], plan)
    assert failure is not None and failure.device == device
    assert failure.wanted_bytes > 0


def test_a_cache_without_a_name_is_the_first_that_is_missing(small: Path) -> None:
    """Older builds say only that it was the KV cache."""
    plan = plan_of(small, CUDA)
    log = [
        "x: CUDA0 model buffer size = 20.00 MiB",
        "x: CUDA1 model buffer size = 20.00 MiB",
        "x: CUDA0 KV buffer size = 3.00 MiB",
        "E failed to initialize the context: failed to allocate buffer for kv cache",
    ]
    failure = find_memory_failure(log, plan)
    assert failure is not None and failure.device == 1
    assert failure.held_bytes == 20 * MIB


@pytest.mark.parametrize(
    "line", ["GGML_ASSERT(n > 0) failed", "error loading model: unknown architecture", ""]
)
def test_other_deaths_are_no_shortage(small: Path, line: str) -> None:
    """Another plan would not help."""
    assert find_memory_failure([line], plan_of(small, CUDA)) is None


def test_steps_grow_and_the_margin_stays(small: Path) -> None:
    """A sixteenth, a quarter, then half of the bound are given up; the margin is kept on top."""
    plan = plan_of(small, CUDA, margin_bytes=2 * MIB)
    failure = find_memory_failure(["E unable to allocate CUDA1 buffer"], plan)
    assert failure is not None
    bound = failure.bound_bytes
    for i_try, share in ((1, 16), (2, 4), (3, 2), (9, 2)):
        again, learnt = replan(plan, request_of_plan(plan), failure, i_try)
        assert learnt.devices[1].memory_free_bytes == bound - bound // share
        assert again.margins_bytes == (2 * MIB, 2 * MIB)
        assert again.memory.devices[1].total_bytes <= bound - bound // share - 2 * MIB


def test_what_is_learnt_never_gives_a_card_more(small: Path) -> None:
    """A bound above what the user said does not raise it."""
    plan = plan_of(small, CUDA)
    failure = find_memory_failure(["E failed to allocate CUDA1 buffer of size 99999999999"], plan)
    assert failure is not None
    _, learnt = replan(plan, request_of_plan(plan), replace(failure, compute_excess_bytes=0), 1)
    assert [d.memory_free_bytes for d in learnt.devices] == [40 * MIB, 40 * MIB]


def test_where_nobody_knows_which_card_it_was_all_are_relieved(small: Path) -> None:
    """Servers that only hung up: each of their cards holds less in the next plan."""
    plan = plan_of(small, ("RPC0[10.0.0.1:50052]:40MiB", "RPC1[10.0.0.2:50052]:40MiB"))
    failure = lost_cards([0, 1], plan, [])
    again, _ = replan(plan, request_of_plan(plan), failure, 1)
    for before, after in zip(plan.memory.devices, again.memory.devices, strict=True):
        assert after.total_bytes < before.total_bytes
    assert describe_failure(failure).startswith("RPC0 or RPC1 was refused what it needed")


def test_the_change_is_told_card_by_card(small: Path) -> None:
    """Layers and experts that moved, and how much more the host holds."""
    plan = plan_of(small, CUDA)
    tight = plan_of(small, ("CUDA0:20MiB", "CUDA1:20MiB"))
    text = describe_change(plan, tight)
    assert "experts on the host of layers none -> " in text
    assert "MiB of weights on the host" in text
    assert describe_change(plan, plan) == "nothing moved"
