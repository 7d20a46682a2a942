"""Compute buffers: an allocator and a scheduler as ggml's, and llama.cpp's own numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.backend import BACKENDS, Backend
from offload.compute import NEWEST_BUILD, OLDEST_BUILD, ComputeBytes, estimate_compute
from offload.compute.allocate import N_PIPELINE_COPIES, Arena, measure_buffers
from offload.compute.builds import UNSAID_BUILD_SLACK_BYTES
from offload.compute.graph import Graph, Op, Outside, view
from offload.compute.schedule import assign_backends, split_graph
from offload.context import ContextOptions
from offload.model import Model, make_model
from offload.source import read_header
from offload.split import HOST, split_by_counts, split_layers
from offload.units import MIB
from tuner.synth import write_shape

CARD, SECOND, CPU_ = 0, 1, 2
ROWS = 64


@dataclass(frozen=True, slots=True)
class Recorded:
    """What llama.cpp reserved: -c 8192 -ub 512 -np 4 -kvu, experts of `moved` layers on the host.

    `older` by llama-cpp-python 0.3.36, `newer` by b11434, devices first, then the host; on
    loopback RPC cards that take over host operations as CUDA cards do.
    """

    name: str
    counts: tuple[int, ...]
    moved: tuple[int, ...]
    flash_attn: bool
    older: tuple[int, ...]
    newer: tuple[int, ...]


RECORDED = (
    Recorded("mistral-small-4-119b", (37,), (), True, (83892256, 25174048), (92284960, 41957408)),
    Recorded(
        "mistral-small-4-119b",
        (19, 18),
        (),
        True,
        (147349504, 180904064, 75530368),
        (222863360, 180904064, 117497984),
    ),
    Recorded(
        "mistral-small-4-119b",
        (19, 18),
        (10, 11, 12),
        True,
        (687872000, 88610848, 25174048),
        (696264704, 88610848, 41957408),
    ),
    Recorded(
        "deepseek-v3",
        (31, 31),
        (3, 4, 5, 6, 7, 8, 9),
        True,
        (3305117696, 404756512, 37756960),
        (3300927488, 404756512, 67123232),
    ),
    Recorded(
        "qwen3-235b-a22b",
        (40, 55),
        (50, 51),
        True,
        (914619936, 168306720, 25178144),
        (587216896, 168306720, 41961504),
    ),
    Recorded("gpt-oss-120b", (37,), (0, 1), True, (640837632, 21254176), (644249600, 33056800)),
    Recorded(
        "glm-4.5-air",
        (24, 24),
        (),
        True,
        (237019136, 270573696, 75546752),
        (312532992, 270573696, 117514368),
    ),
    Recorded("glm-5", (80,), (3, 4), True, (3133220864, 42020896), (3170973696, 67192864)),
    Recorded(
        "qwen3-next-80b-a3b",
        (25, 24),
        (30, 31),
        True,
        (609220672, 94382144, 16789568),
        (379598880, 94382144, 25184320),
    ),
    Recorded(
        "qwen3.5-35b-a3b",
        (20, 21),
        (),
        True,
        (121700480, 138477824, 54599936),
        (159465600, 138477824, 75596032),
    ),
    Recorded(
        "gemma-4-26b-a4b",
        (15, 16),
        (3, 4),
        True,
        (333195264, 111167520, 24662048),
        (336347136, 111167520, 36204576),
    ),
    Recorded(
        "llama-4-maverick", (49,), (1, 3), True, (8863361024, 37771296), (4481628160, 58748960)
    ),
    Recorded(
        "minimax-m2",
        (20, 20, 23),
        (5,),
        True,
        (1099966464, 98052096, 98052128, 20983840),
        (1099970560, 98052096, 98052128, 33572896),
    ),
    Recorded("hunyuan-a13b", (33,), (), False, (650385440, 37756960), (599795744, 54540320)),
)


def _padded_as_played() -> Backend:
    """A CUDA card as loopback RPC cards play it: the CPU's alignment, no F16 cache copies."""
    return replace(BACKENDS["CUDA"], alignment_bytes=32, flash_attn_copies_cache=False)


def _moved(model: Model, layers: tuple[int, ...]) -> frozenset[str]:
    return frozenset(t.name for t in model.expert_tensors if t.il in layers)


def _estimate(
    model: Model,
    recorded: Recorded,
    build: int | None,
    *,
    op_offload: bool = True,
) -> tuple[int, ...]:
    moved = _moved(model, recorded.moved)
    found = estimate_compute(
        model,
        ContextOptions(n_ctx=8192, flash_attn=recorded.flash_attn, llama_build=build),
        split_by_counts(model.n_layer, recorded.counts),
        moved,
        (_padded_as_played(),) * len(recorded.counts),
        op_offload=op_offload,
        n_outputs=4,
        has_overrides=bool(moved),
    )
    return (*found.devices, found.host)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """Every recorded model, made from its header."""
    folder = tmp_path_factory.mktemp("shapes")
    return {
        name: make_model(read_header(write_shape(name, folder / f"{name}.gguf")))
        for name in {recorded.name for recorded in RECORDED}
    }


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: f"{r.name}-{r.counts}-{r.moved}")
@pytest.mark.parametrize("build", [OLDEST_BUILD, NEWEST_BUILD])
def test_real_shapes_need_what_llama_cpp_reserved(
    models: dict[str, Model], recorded: Recorded, build: int
) -> None:
    """Within 1 % or 2 MiB of what each build reserved, on every device and the host."""
    actual = recorded.newer if build == NEWEST_BUILD else recorded.older
    for planned, reserved in zip(
        _estimate(models[recorded.name], recorded, build), actual, strict=True
    ):
        assert abs(planned - reserved) <= max(reserved // 100, 2 * MIB)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: f"{r.name}-{r.counts}-{r.moved}")
def test_an_unsaid_build_is_the_newest_but_leaves_room_for_the_oldest(
    models: dict[str, Model], recorded: Recorded
) -> None:
    """The newest build's number where the older one fits within the slack, else just enough."""
    model = models[recorded.name]
    older, newer, unsaid = (
        _estimate(model, recorded, build) for build in (OLDEST_BUILD, NEWEST_BUILD, None)
    )
    for old, new, planned in zip(older, newer, unsaid, strict=True):
        assert planned == max(new, old - UNSAID_BUILD_SLACK_BYTES)


@pytest.mark.parametrize(
    ("build", "like"), [(0, OLDEST_BUILD), (11399, OLDEST_BUILD), (11400, NEWEST_BUILD)]
)
def test_builds_between_those_measured_count_as_the_nearest(
    models: dict[str, Model], build: int, like: int
) -> None:
    """b11400 brought the branch for mixed batches; what is older or newer differs no more."""
    recorded = RECORDED[0]
    model = models[recorded.name]
    assert _estimate(model, recorded, build) == _estimate(model, recorded, like)


def test_without_op_offload_nothing_is_staged(models: dict[str, Model]) -> None:
    """`--no-op-offload`: the host computes its experts, and no card copies their weights."""
    recorded = RECORDED[2]
    model = models[recorded.name]
    with_it = _estimate(model, recorded, NEWEST_BUILD)
    without = _estimate(model, recorded, NEWEST_BUILD, op_offload=False)
    assert with_it[0] - without[0] > 400 * MIB
    assert without[-1] > with_it[-1]


def test_small_batches_stage_nothing(models: dict[str, Model]) -> None:
    """Below 32 tokens the host computes its experts whatever the option says."""
    model = models["mistral-small-4-119b"]

    def card_bytes(n_ubatch: int, layers: tuple[int, ...]) -> int:
        found = estimate_compute(
            model,
            ContextOptions(n_ctx=4096, n_ubatch=n_ubatch, n_parallel=1),
            split_by_counts(model.n_layer, (model.n_layer + 1,)),
            _moved(model, layers),
            (_padded_as_played(),),
            op_offload=True,
            n_outputs=1,
            has_overrides=True,
        )
        return found.devices[0]

    assert card_bytes(31, (5,)) < 30 * MIB
    assert card_bytes(32, (5,)) > 400 * MIB


def test_layers_of_a_card_do_not_need_more_than_two_of_a_kind(models: dict[str, Model]) -> None:
    """Equal layers reuse the same memory: a card's buffer does not grow with their number."""
    model = models["qwen3-235b-a22b"]

    def devices(counts: tuple[int, ...]) -> ComputeBytes:
        return estimate_compute(
            model,
            ContextOptions(n_ctx=8192),
            split_by_counts(model.n_layer, counts),
            frozenset(),
            (_padded_as_played(),) * 2,
            op_offload=True,
            n_outputs=4,
            has_overrides=True,
        )

    assert devices((20, 75)) == devices((50, 45))


def test_a_model_on_the_host_alone_has_no_devices(models: dict[str, Model]) -> None:
    """`-ngl 0` without cards: only the host has a compute buffer."""
    model = models["gpt-oss-120b"]
    split = split_layers(model.n_layer, 0, ())
    assert set(split.owners) == {HOST}
    found = estimate_compute(
        model,
        ContextOptions(n_ctx=4096),
        split,
        frozenset(),
        (),
        op_offload=True,
        n_outputs=4,
        has_overrides=False,
    )
    assert found.devices == ()
    assert found.host > 50 * MIB


def test_the_smallest_hole_is_taken_and_the_end_grows_last() -> None:
    """Best fit among the holes; the endless block at the end only when none fits."""
    arena = Arena(32)
    a, b, c, d = (arena.take(n) for n in (320, 32, 160, 32))
    arena.give(a, 320)
    arena.give(c, 160)
    assert arena.take(128) == c
    assert arena.take(200) == a
    assert arena.take(512) == d + 32
    assert (b, arena.peak_bytes) == (320, d + 32 + 512)


@given(
    steps=st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 30), st.booleans()), max_size=60)
)
def test_memory_in_use_never_overlaps(steps: list[tuple[int, int, bool]]) -> None:
    """Whatever is taken and given back, blocks in use are apart and below the peak."""
    arena = Arena(32)
    used: list[tuple[int, int]] = []
    for n_bytes, which, gives in steps:
        if gives and used:
            arena.give(*used.pop(which % len(used)))
        else:
            used.append((arena.take(n_bytes), n_bytes))
        ordered = sorted(used)
        for (start, size), (following, _) in pairwise(ordered):
            assert start + size <= following
        assert all(start + size <= arena.peak_bytes for start, size in used)
    for block in used:
        arena.give(*block)
    assert arena.take(1) == 0


def _sizes(graph: Graph, offloading: int | None = None, *, is_pipelined: bool = False) -> list[int]:
    assign_backends(graph, offloading)
    return measure_buffers(graph, split_graph(graph), (1, 1, 1), is_pipelined=is_pipelined)


def _weight(n_bytes: int, backend: int) -> Outside:
    return Outside(n_bytes, backend, is_weight=True)


@pytest.mark.parametrize(("is_read_again", "expected"), [(False, 100), (True, 300)])
def test_a_result_takes_over_an_operand_nobody_else_reads(
    is_read_again: bool, expected: int
) -> None:
    """A chain of sums is in place; one whose first operand is read again is not."""
    graph = Graph(CPU_)
    x = graph.add(Op.FRESH, 100, _weight(7, CARD), rows=ROWS)
    y = graph.add(Op.ROWWISE, 100, x, rows=ROWS)
    z = graph.add(Op.ROWWISE, 100, y, rows=ROWS)
    graph.add(Op.FRESH, 100 if is_read_again else 0, z, *([x] * is_read_again), rows=ROWS)
    assert _sizes(graph)[CARD] == expected


def test_a_view_is_never_taken_over() -> None:
    """As in ggml, whose allocator knows no views: a norm over heads takes new memory."""
    graph = Graph(CPU_)
    x = graph.add(Op.FRESH, 100, _weight(7, CARD), rows=ROWS)
    graph.add(Op.ROWWISE, 100, view(x), rows=ROWS)
    assert _sizes(graph)[CARD] == 200


def test_a_tensor_is_copied_to_another_card_once() -> None:
    """Two readers on a card share one copy; the original stays until the copy is made."""
    graph = Graph(CPU_)
    x = graph.add(Op.FRESH, 100, _weight(7, CARD), rows=ROWS)
    y = graph.add(Op.FRESH, 10, _weight(7, SECOND), x, rows=ROWS)
    graph.add(Op.FRESH, 10, _weight(7, SECOND), x, y, rows=ROWS)
    assert _sizes(graph)[:2] == [100, 120]


def test_host_weights_are_staged_one_after_the_other() -> None:
    """Each staged weight starts a split, so that the memory of the one before is free again."""
    graph = Graph(CPU_)
    x = graph.add(Op.FRESH, 10, _weight(7, CARD), rows=ROWS)
    y = graph.add(Op.FRESH, 10, _weight(1000, CPU_), x, rows=ROWS)
    graph.add(Op.FRESH, 10, _weight(1000, CPU_), y, rows=ROWS)
    assert _sizes(graph, offloading=CARD)[CARD] < 1100
    assert graph.nodes[1].backend == CARD


def test_host_weights_of_small_batches_stay_on_the_host() -> None:
    """Fewer than 32 rows are not worth the copy, and GET_ROWS never is."""
    graph = Graph(CPU_)
    x = graph.add(Op.GET_ROWS, 10, _weight(1000, CPU_), graph.input(4), rows=ROWS)
    graph.add(Op.FRESH, 10, _weight(1000, CPU_), x, rows=31)
    assign_backends(graph, CARD)
    assert [node.backend for node in graph.nodes] == [CPU_, CPU_]


def test_pipelining_keeps_four_copies_of_everything_copied() -> None:
    """Inputs and what crosses to a card exist four times, for four batches in flight."""
    sizes = []
    for is_pipelined in (False, True):
        graph = Graph(CPU_)
        x = graph.add(Op.FRESH, 10, _weight(7, CARD), graph.input(100), rows=ROWS)
        graph.add(Op.FRESH, 10, _weight(7, SECOND), x, rows=ROWS)
        sizes.append(_sizes(graph, is_pipelined=is_pipelined))
    assert sizes[0] == [110, 20, 100]
    copies = N_PIPELINE_COPIES
    assert sizes[1] == [copies * 100 + 10, copies * 10 + 10, copies * 100]
