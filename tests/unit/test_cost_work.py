"""What work does a placement do? Checked by hand on a model small enough to count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.speed_cases import model_of
from offload.context import ContextOptions
from offload.cost import Work, decode_work, prefill_work, touched_share
from offload.cost.work import context_bytes_read
from offload.device import Device, device_by_name
from offload.model import Model, make_model
from offload.placement import Placement
from offload.split import HOST, LayerSplit
from tests.model_headers import info, model_header

GIB = 1 << 30
N_EMBD, N_FF, N_EXPERT, N_USED = 64, 32, 8, 2
EXPERT_BYTES = N_EMBD * N_FF * N_EXPERT * 2
"""One of the three expert tensors of a layer, F16."""


def moe_model() -> Model:
    """Four layers of one attention matrix and three expert matrices each."""
    tensors = [info("token_embd.weight", N_EMBD, 100), info("output.weight", N_EMBD, 100)]
    for il in range(4):
        tensors.append(info(f"blk.{il}.attn_norm.weight", N_EMBD, type_name="F32"))
        tensors.append(info(f"blk.{il}.attn_q.weight", N_EMBD, N_EMBD))
        tensors.append(info(f"blk.{il}.ffn_gate_exps.weight", N_EMBD, N_FF, N_EXPERT))
        tensors.append(info(f"blk.{il}.ffn_up_exps.weight", N_EMBD, N_FF, N_EXPERT))
        tensors.append(info(f"blk.{il}.ffn_down_exps.weight", N_FF, N_EMBD, N_EXPERT))
    return make_model(
        model_header(
            "qwen3moe", tuple(tensors), expert_count=N_EXPERT, expert_used_count=N_USED,
            expert_feed_forward_length=N_FF,
        )
    )  # fmt: skip


def cards(*names: str) -> tuple[Device, ...]:
    """Cards of plenty of memory."""
    return tuple(device_by_name(name, GIB) for name in names)


def placed(owners: tuple[int, ...], host_layers: tuple[int, ...] = ()) -> Placement:
    """Owners of four layers and the output; all experts of `host_layers` on the host."""
    names = [
        f"blk.{il}.ffn_{part}_exps.weight" for il in host_layers for part in ("gate", "up", "down")
    ]
    return Placement(
        split=LayerSplit(owners=owners), placed=dict.fromkeys(names, HOST), has_rules=bool(names)
    )


CONTEXT = ContextOptions(n_ctx=4096)


def decode(placement: Placement, *names: str, n_depth: int = 0) -> Mapping[str, float]:
    """Amounts of one token."""
    return decode_work(
        moe_model(), placement, cards(*names), context=CONTEXT, n_depth=n_depth
    ).amounts


def test_decode_reads_used_experts_only() -> None:
    """A token reads n_expert_used of n_expert of the experts, everything else whole."""
    amounts = decode(placed((0, 0, 0, 0, 0)), "CUDA0")
    dense = 4 * N_EMBD * N_EMBD * 2 + 100 * N_EMBD * 2
    experts = 4 * 3 * EXPERT_BYTES * N_USED / N_EXPERT
    assert amounts["decode.read.CUDA0.F16"] == dense + experts
    assert not [name for name in amounts if ".CPU" in name]


def test_relief_moves_bytes_from_card_to_host() -> None:
    """What a rule sends to the host is read there, and nothing is lost or counted twice."""
    whole = decode(placed((0, 0, 0, 0, 0)), "CUDA0")["decode.read.CUDA0.F16"]
    relieved = decode(placed((0, 0, 0, 0, 0), (1, 2)), "CUDA0")
    assert relieved["decode.read.CPU.F16"] == 2 * 3 * EXPERT_BYTES * N_USED / N_EXPERT
    assert relieved["decode.read.CPU.F16"] + relieved["decode.read.CUDA0.F16"] == whole


@pytest.mark.parametrize(
    ("owners", "host_layers", "hops"),
    [
        ((0, 0, 0, 0, 0), (), 1),  # the embedding comes from the host
        ((0, 0, 1, 1, 1), (), 2),
        ((0, 0, 1, 1, 1), (0, 3), 6),
        ((HOST, HOST, 0, 0, 0), (), 1),
        ((HOST, 0, 0, 0, HOST), (), 2),
    ],
)
def test_hops_follow_the_graph(
    owners: tuple[int, ...], host_layers: tuple[int, ...], hops: int
) -> None:
    """Activations cross where the next op's weight lies elsewhere, there and back for experts."""
    assert decode(placed(owners, host_layers), "CUDA0", "CUDA1")["decode.hop"] == hops


def test_context_is_read_where_the_layer_is_owned() -> None:
    """At a depth each owner reads keys and values of its layers, of as many tokens as are there."""
    for n_depth in (1, 100, 256, 300):
        amounts = decode(placed((0, 0, 0, 1, 1)), "CUDA0", "CUDA1", n_depth=n_depth)
        assert amounts["decode.context.CUDA0"] == 3 * amounts["decode.context.CUDA1"]
        assert amounts["decode.context.CUDA1"] == n_depth * 2 * 2 * (N_EMBD // 4) * 2


def test_states_do_not_grow_with_the_depth() -> None:
    """A recurrent layer reads its whole state at any depth, attention beside it what is there."""
    model = model_of("qwen3-next-80b-a3b", "Q4_K_M")
    read = [context_bytes_read(model, CONTEXT, n_depth) for n_depth in (10, 100, 1000)]
    for il, layer in enumerate(model.layers):
        mine = [layers[il] for layers in read]
        if layer.kind == "recurrent":
            assert mine[0] == mine[1] == mine[2] > 0
        else:
            assert mine[1] == pytest.approx(10 * mine[0]) and mine[2] == pytest.approx(10 * mine[1])


@pytest.mark.parametrize(
    ("owners", "host_layers", "resent"),
    [
        ((0, 0, 0, 0, 0), (), (0, 0)),  # told to compute what it has
        ((0, 0, 0, 0, 0), (0,), (1 + 4, 0)),
        ((0, 0, 0, 0, 0), (3,), (4 + 4, 0)),
        ((0, 0, 0, 0, 0), (0, 1, 2, 3), (1 + 2 + 3 + 4 + 4, 0)),
        ((0, 0, 1, 1, 1), (2,), (0, 1 + 2)),
        ((0, 0, 1, 1, 1), (1, 2, 3), (2 + 2, 1 + 2 + 2)),
        ((HOST, HOST, 0, 0, 0), (3,), (2 + 2, 0)),
        ((HOST, HOST, 0, 0, 0), (0,), (0, 0)),
    ],
)
def test_interrupted_rpc_cards_are_sent_their_layers_again(
    owners: tuple[int, ...], host_layers: tuple[int, ...], resent: tuple[int, int]
) -> None:
    """Each interruption of a card, and what follows the last one, brings all its layers so far.

    Cards that are no RPC cards get nothing twice.
    """
    amounts = decode(placed(owners, host_layers), "RPC0", "RPC1")
    found = tuple(amounts.get(f"decode.resend.RPC{d}", 0.0) for d in range(2))
    assert found == resent
    mixed = decode(placed(owners, host_layers), "RPC0", "CUDA0")
    assert mixed.get("decode.resend.RPC0", 0.0) == resent[0]
    assert "decode.resend.CUDA0" not in mixed


def prefill(placement: Placement, *names: str, n_prompt: int, **more: Any) -> Mapping[str, float]:
    """Amounts of one prompt."""
    return prefill_work(
        moe_model(), placement, cards(*names), context=CONTEXT, n_prompt=n_prompt, **more
    ).amounts


def test_prefill_streams_touched_experts_to_the_first_card() -> None:
    """Experts of the second card's layers go over the first card's link, once per ubatch."""
    amounts = prefill(placed((0, 0, 1, 1, 1), (2,)), "CUDA0", "CUDA1", n_prompt=1024)
    touched = 1 - (1 - N_USED / N_EXPERT) ** 512
    assert amounts["prefill.stream.CUDA0"] == pytest.approx(2 * 3 * EXPERT_BYTES * touched)
    assert "prefill.stream.CUDA1" not in amounts
    assert "prefill.flops.CPU.F16" not in amounts


@pytest.mark.parametrize("why", ["switched off", "repacked", "rpc", "short"])
def test_prefill_stays_on_the_host(why: str) -> None:
    """Host experts are computed there: without op-offload, repacked, on RPC cards, under 32."""
    name = "RPC0" if why == "rpc" else "CUDA0"
    more = {"switched off": {"op_offload": False}, "repacked": {"host_is_repacked": True}}
    n_prompt = 31 if why == "short" else 512
    placement = placed((0, 0, 0, 0, 0), (0, 1, 2, 3))
    amounts = prefill(placement, name, n_prompt=n_prompt, **more.get(why, {}))
    host = "CPU_REPACK" if why == "repacked" else "CPU"
    per_token = 2 * 3 * 3 * EXPERT_BYTES / 2 * N_USED / N_EXPERT  # the last layer has no part
    assert amounts[f"prefill.flops.{host}.F16"] == pytest.approx(per_token * n_prompt)
    assert not [name for name in amounts if "stream" in name]


def test_prefill_in_smaller_ubatches_streams_more() -> None:
    """Halving -ub doubles the copies; the arithmetic stays."""
    placement = placed((0, 0, 0, 0, 0), (0, 1))
    model = moe_model()

    def amounts(n_ubatch: int) -> Mapping[str, float]:
        context = ContextOptions(n_ctx=4096, n_ubatch=n_ubatch)
        return prefill_work(
            model, placement, cards("CUDA0"), context=context, n_prompt=2048
        ).amounts

    small, large = amounts(256), amounts(512)
    assert small["prefill.stream.CUDA0"] == pytest.approx(2 * large["prefill.stream.CUDA0"])
    assert small["prefill.flops.CUDA0.F16"] == large["prefill.flops.CUDA0.F16"]


def test_work_adds_up() -> None:
    """Sums and multiples of work are those of its amounts."""
    work = Work(amounts={"a": 1.0}) + Work(amounts={"a": 2.0, "b": 1.0}).scaled(2.0)
    assert work.amounts == {"a": 5.0, "b": 2.0}


def test_a_batch_touches_fewer_experts_where_routers_have_favourites() -> None:
    """One token uses its share whatever the skew; batches touch less, and in the end all."""
    used = 4 / 128
    assert touched_share(used, 1, 1.5) == touched_share(used, 1, 0.0) == used
    assert touched_share(used, 256, 0.0) > 0.999
    shares = [touched_share(used, n, 1.5) for n in (2, 32, 256, 512, 8192)]
    assert shares == sorted(shares) and shares[-1] > 0.99
    assert shares[2] == pytest.approx(0.78, abs=0.01)
    assert all(touched_share(used, n, 1.5) < touched_share(used, n, 0.0) for n in (2, 64, 512))


@pytest.mark.parametrize(("arch", "n_layer_ffn"), [("qwen3moe", 3), ("gpt-oss", 4)])
def test_a_prompt_ends_where_only_outputs_go_on(arch: str, n_layer_ffn: int) -> None:
    """Two operations for each weight that a token uses; only the last token has an output.

    In most architectures the last layer's experts see no other token either.
    """
    model = replace(moe_model(), arch=arch)
    placement = placed((0, 0, 0, 0, 0))
    amounts = prefill_work(model, placement, cards("CUDA0"), context=CONTEXT, n_prompt=512).amounts
    experts = 3 * EXPERT_BYTES / 2 * N_USED / N_EXPERT
    weights = 4 * N_EMBD * N_EMBD + n_layer_ffn * experts
    assert amounts["prefill.flops.CUDA0.F16"] == pytest.approx(2 * weights * 512)
