"""Compute buffers under options that few use: llama.cpp's own numbers, on real shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from offload.backend import BACKENDS
from offload.compute import NEWEST_BUILD, OLDEST_BUILD, estimate_compute
from offload.context import ContextOptions
from offload.device import devices_from_flags
from offload.ggml import TYPES_BY_NAME
from offload.model import Model, make_model
from offload.options import PlanOptions, Strategy
from offload.plan import make_plan
from offload.source import read_header
from offload.split import split_by_counts
from offload.units import GIB, MIB
from tuner.synth import write_shape

F32 = TYPES_BY_NAME["F32"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`-c 8192 -ub 512 -np 4 -kvu` but for `options`; experts of `moved` layers on the host.

    `older` by llama-cpp-python 0.3.36 (b11312), `newer` by b11434: devices, then the host. On
    loopback RPC cards, which take over host operations where `like_cuda`.
    """

    name: str
    counts: tuple[int, ...]
    moved: tuple[int, ...] = ()
    like_cuda: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    older: tuple[int, ...]
    newer: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}-{'-'.join(self.options)}"


CASES = (
    Case(
        name="qwen3-30b-a3b",
        counts=(25, 24),
        options={"offload_kqv": False},
        older=(100665344, 100665344, 16789536),
        newer=(100669440, 100665344, 25184288),
    ),
    Case(
        name="qwen3-30b-a3b",
        counts=(49,),
        moved=(3,),
        like_cuda=True,
        options={"offload_kqv": False, "flash_attn": False},
        older=(587204608, 27271200),
        newer=(595597312, 35665952),
    ),
    Case(
        name="mistral-small-4-119b",
        counts=(19, 18),
        moved=(20,),
        like_cuda=True,
        options={"offload_kqv": False},
        older=(1074003488, 93325184, 25174048),
        newer=(687872000, 93325184, 41957408),
    ),
    Case(
        name="qwen3-next-80b-a3b",
        counts=(25, 24),
        options={"offload_kqv": False},
        older=(106956800, 109051904, 29765184),
        newer=(109056000, 109051904, 33965632),
    ),
    Case(
        name="qwen3-30b-a3b",
        counts=(25, 24),
        options={"type_k": F32, "type_v": F32},
        older=(130588672, 147366016, 54575232),
        newer=(168353792, 147366016, 75571328),
    ),
    Case(
        name="deepseek-v2-lite",
        counts=(28,),
        options={"type_k": F32, "type_v": F32},
        older=(84023328, 16785440),
        newer=(92416032, 25180192),
    ),
    Case(
        name="gpt-oss-20b",
        counts=(13, 12),
        moved=(0, 20),
        like_cuda=True,
        options={"no_host": True},
        older=(124004352, 92162080, 68505536),
        newer=(103823360, 92162080, 68511680),
    ),
    Case(
        name="mixtral-8x7b",
        counts=(17, 16),
        moved=(3,),
        like_cuda=True,
        options={"no_host": True, "n_ubatch": 256},
        older=(486036480, 100684832, 71317536),
        newer=(494410752, 100684832, 71320608),
    ),
    Case(
        name="qwen3.5-35b-a3b-mtp",
        counts=(10, 32),
        moved=(4, 5),
        options={"n_ubatch": 2048},
        older=(352460832, 318832704, 304159840),
        newer=(335626272, 318832704, 304184416),
    ),
    Case(
        name="glm-4.5-air",
        counts=(24, 24),
        options={"n_parallel": 8, "kv_unified": False, "flash_attn": False},
        older=(335568896, 369123456, 67141760),
        newer=(411082752, 369123456, 109109376),
    ),
    Case(
        name="gpt-oss-20b",
        counts=(13, 12),
        moved=(1,),
        like_cuda=True,
        options={"n_parallel": 8, "kv_unified": False, "flash_attn": False},
        older=(207992832, 170666016, 19673120),
        newer=(219662336, 170666016, 31475744),
    ),
)


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


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("build", [OLDEST_BUILD, NEWEST_BUILD])
def test_rare_options_need_what_llama_cpp_reserved(
    shape: Callable[[str], Model], case: Case, build: int
) -> None:
    """Within 1 % or 1 MiB of what each build reserved, on every device and the host."""
    model = shape(case.name)
    moved = frozenset(t.name for t in model.expert_tensors if t.il in case.moved)
    backend = replace(BACKENDS["RPC"], offloads_ops=case.like_cuda)
    options = ContextOptions(n_ctx=8192, llama_build=build, **case.options)
    found = estimate_compute(
        model,
        options,
        split_by_counts(model.n_layer, case.counts),
        moved,
        (backend,) * len(case.counts),
        op_offload=True,
        n_outputs=options.n_parallel,
        has_overrides=bool(moved),
    )
    reserved = case.older if build == OLDEST_BUILD else case.newer
    for planned, actual in zip((*found.devices, found.host), reserved, strict=True):
        assert abs(planned - actual) <= max(actual // 100, MIB)


def test_a_plan_follows_the_build_and_the_options_it_is_given(
    shape: Callable[[str], Model],
) -> None:
    """The build and `--no-host` reach the estimate: both change what card 0 stages."""
    cards = devices_from_flags(1, (400 * GIB,))
    options = PlanOptions(n_ctx=8192, n_cpu_moe=4, strategy=Strategy.NONE)

    def card_bytes(name: str, build: int, *, no_host: bool = False) -> int:
        asked = replace(options, llama_build=build, no_host=no_host)
        return make_plan(shape(name), cards, asked).memory.devices[0].compute_bytes

    newest, older = (card_bytes("llama-4-maverick", b) for b in (NEWEST_BUILD, OLDEST_BUILD))
    assert older > newest + GIB
    pinned, repacked = (
        card_bytes("gpt-oss-20b", NEWEST_BUILD, no_host=no_host) for no_host in (False, True)
    )
    assert repacked < pinned - 100 * MIB
