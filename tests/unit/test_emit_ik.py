"""ik_llama.cpp: its own flags, and shares by bytes that give the planned layers.

`ik_layers` follows `llm_load_tensors` (src/llama.cpp, PyPI's ik-llama-cpp-python 0.1.5).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.emit import Launch, emit_server_args
from offload.emit.build import Build
from offload.emit.formats import emit_as
from offload.emit.ik import emit_ik_args, ik_shares
from offload.emit.target import Target
from offload.errors import UsageError
from offload.rules import Rule

MIB = 1 << 20
LAUNCH = Launch(
    model_path="/models/m.gguf",
    n_gpu_layers=5,
    tensor_split=(3.0, 2.0),
    rules=(Rule(pattern=r"blk\.1\.ffn_up_exps", buffer_type="CPU"),),
    n_ctx=8192,
    n_batch=2048,
    n_ubatch=512,
    load_mode="none",
    layer_bytes=(100 * MIB, 200 * MIB, 300 * MIB, 400 * MIB, 50 * MIB),
)


def ik_layers(shares: Sequence[float], sizes: Sequence[int], compute_bytes: int) -> list[int]:
    """Units that each card gets: its range ends nearest to its cumulated share of all bytes."""
    total = sum(sizes) + compute_bytes * len(shares)
    counts, unit, loaded, share = [], 0, 0.0, 0.0
    for each in shares:
        share += each / sum(shares)
        loaded += compute_bytes
        first = unit
        while unit < len(sizes):
            if loaded + sizes[unit] > share * total:
                over = loaded + sizes[unit] - share * total
                if over < share * total - loaded:
                    loaded += sizes[unit]
                    unit += 1
                break
            loaded += sizes[unit]
            unit += 1
        counts.append(unit - first)
    return counts


def _value(argv: Sequence[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@given(
    st.lists(st.integers(50 * MIB, 2000 * MIB), min_size=4, max_size=90),
    st.sampled_from([0, 100 * MIB, 9000 * MIB]),
    st.data(),
)
def test_shares_by_bytes_give_the_planned_layers(
    sizes: list[int], scratch: int, data: st.DataObject
) -> None:
    """Whatever the sizes, each card's range ends where the plan ends it."""
    n_cards = data.draw(st.integers(2, min(4, len(sizes))))
    cuts = data.draw(
        st.lists(
            st.integers(1, len(sizes) - 1), min_size=n_cards - 1, max_size=n_cards - 1, unique=True
        )
    )
    edges = [0, *sorted(cuts), len(sizes)]
    counts = [end - start for start, end in pairwise(edges)]
    assert ik_layers(ik_shares(sizes, counts, scratch), sizes, scratch) == counts


def test_flags_are_ik_llama_cpps_own() -> None:
    """No -fit, no --load-mode, no -kvu; shares in MiB; batch sizes always."""
    argv = emit_ik_args(replace(LAUNCH, kv_unified=True, swa_full=True))
    assert _value(argv, "-ts") == "600,450"
    assert _value(argv, "-ngl") == "5" and _value(argv, "-b") == "2048"
    assert argv[-1] == "--no-mmap"
    assert not {"-fit", "--load-mode", "-kvu", "--swa-full"} & set(argv)


def test_any_shares_are_understood() -> None:
    """`-ts 1,1` means the layers that llama.cpp makes of it: 3 and 2 of 5 units."""
    assert _value(emit_ik_args(replace(LAUNCH, tensor_split=(1.0, 1.0))), "-ts") == "600,450"


def test_ncmoe_is_written_as_rules() -> None:
    """There -ncmoe spreads over the cards by itself; the plan's layers are meant."""
    argv = emit_ik_args(replace(LAUNCH, n_cpu_moe=1))
    assert "-ncmoe" not in argv and _value(argv, "-ot").endswith(
        r",blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    )


def test_cards_in_their_own_order_are_named() -> None:
    """-dev is taken where it changes nothing about the order."""
    devices = ("CUDA0", "CUDA1")
    assert _value(emit_ik_args(replace(LAUNCH, devices=devices)), "-dev") == "CUDA0,CUDA1"
    alone = replace(LAUNCH, devices=("none",), n_gpu_layers=0, tensor_split=())
    assert "-dev" not in emit_ik_args(alone)


@pytest.mark.parametrize(
    ("given_here", "message"),
    [
        ({"n_gpu_layers": 4}, "output layer"),
        ({"devices": ("CUDA1", "CUDA0")}, "order"),
        ({"devices": ("CUDA1", "CUDA2")}, "order"),
        ({"devices": ("CUDA0", "Vulkan0")}, "order"),
        ({"rpc": "10.0.0.1:5"}, "RPC"),
        ({"split_mode": "none", "tensor_split": ()}, "-sm none"),
        ({"no_host": True}, "--no-host"),
        ({"load_mode": "dio"}, "--load-mode"),
        ({"layer_bytes": ()}, "plan again"),
    ],
)
def test_what_it_cannot_do_is_refused(given_here: dict[str, object], message: str) -> None:
    """Partial -ngl, reordered and RPC cards, --no-host, direct I/O, layers of unknown weight."""
    with pytest.raises(UsageError, match=message):
        emit_ik_args(replace(LAUNCH, **given_here))  # type: ignore[arg-type]


def test_a_program_that_is_ik_llama_cpp_gets_its_flags() -> None:
    """`-mla` in a help is enough to know it; then `args` says what `ik` says."""
    build = Build(flags=frozenset({"-m", "-mla", "-ngl"}))
    assert emit_server_args(LAUNCH, build=build) == emit_ik_args(LAUNCH)
    assert emit_as(LAUNCH, "args", Target(build=build)) == emit_as(LAUNCH, "ik", Target())
    assert shlex.split(emit_as(LAUNCH, "ik", Target(port=9000)))[-2:] == ["--port", "9000"]


def test_switches_that_stay() -> None:
    """-nkvo and op-offload exist there, the latter as an offload policy."""
    argv = emit_ik_args(replace(LAUNCH, offload_kqv=False, op_offload=False, flash_attn=False))
    assert "-nkvo" in argv and _value(argv, "-op") == "-1,0" and _value(argv, "-fa") == "off"
