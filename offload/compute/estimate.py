"""How many bytes of compute buffer does every device and the host need?

Mirrors `llama_context::sched_reserve` (src/llama-context.cpp, b11434): the graph of a
full ubatch, spread over the backends by `schedule` and laid out by `allocate`. Runs of
equal layers on one device are built only as far as they can make a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from offload.arch import OUTPUTS_AFTER_LAYERS
from offload.backend import CPU, Backend
from offload.compute.allocate import measure_buffers
from offload.compute.blocks import Builder
from offload.compute.builds import NEWEST_BUILD, OLDEST_BUILD, UNSAID_BUILD_SLACK_BYTES
from offload.compute.facts import LayerFacts, ModelFacts, facts_of
from offload.compute.graph import Graph, Op, Outside, Source, view
from offload.compute.inputs import F32, Inputs, add_embeddings, add_inputs, add_ngrams
from offload.compute.layers import add_layer
from offload.compute.schedule import assign_backends, split_graph
from offload.compute.streams import mix_banked
from offload.context import ContextOptions
from offload.model import Model
from offload.split import HOST, LayerSplit

_N_REPEATS: Final = 3

_MANY_STREAMS: Final = frozenset(("deepseek4", "glm5-next", "hy_v4", "qwen4exp"))
"""Models whose layers read and write several residual streams."""

_LOSES_STREAMS: Final = frozenset(("glm5-next",))
"""Models whose last host layer adds its result on the card behind it.

llama.cpp then does without that operation everywhere (`resolve_fused_ops`, src/llama-context.cpp,
b11434); others call it `l_last`, which keeps it where the layer is.
"""

_SCALED_EMBEDDINGS: Final = frozenset(
    "afmoe gemma gemma2 gemma3 gemma4 granite granitemoe granitehybrid grok hrm_text minicpm"
    " minicpm3".split()
)

_ROWS_BEFORE_NORM: Final = frozenset(("deepseek4", "glm5-next", "gpt-oss", "hy_v4", "kimi-k3"))
"""Models that keep only the rows of outputs after the last layer, but before the last norm."""


class ComputeBytes(NamedTuple):
    """Compute buffer bytes of every device, and of the host's backend."""

    devices: tuple[int, ...]
    host: int


_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


def estimate_compute(
    model: Model,
    options: ContextOptions,
    split: LayerSplit,
    host_tensors: frozenset[str],
    backends: tuple[Backend, ...],
    *,
    op_offload: bool,
    n_outputs: int,
    has_overrides: bool,
    card_tensors: Mapping[str, int] = _NOWHERE,
) -> ComputeBytes:
    """The compute buffers llama.cpp reserves for this placement.

    `card_tensors` are weights of layers on another card than the layer's owner.
    `n_outputs` bounds the rows of logits; `has_overrides` says whether any tensor override
    is given, which switches pipeline parallelism off. Without `options.llama_build` it is
    what the newest known build reserves, and so much more that no known build needs more
    than `UNSAID_BUILD_SLACK_BYTES` beyond it.
    """
    facts = facts_of(model)
    offloading = None
    if op_offload:
        offloading = next((i for i, backend in enumerate(backends) if backend.offloads_ops), None)
    machine = _Machine(
        host=len(backends),
        offloading=offloading,
        is_pipelined=(
            len(backends) > 1
            and HOST not in split.owners
            and options.offload_kqv
            and not has_overrides
            and all(backend.supports_pipeline for backend in backends)
        ),
        alignments=(*(b.alignment_bytes for b in backends), CPU.alignment_bytes),
        cache_copiers=frozenset(i for i, b in enumerate(backends) if b.flash_attn_copies_cache),
    )
    homes = {**dict.fromkeys(host_tensors, machine.host), **card_tensors}
    layers = _representatives(facts, split, homes)
    key = (
        tuple(layer_key for _, layer_key in layers),
        split.owners if facts.has_indexer else split.output_owner,
        (options, n_outputs, machine),
    )
    sizes = facts.sizes.get(key)
    if sizes is None:
        problem = _Problem(facts, options, split, homes, layers, n_outputs, machine)
        may_drop = HOST in split.owners or not options.offload_kqv
        if options.flash_attn_auto and may_drop and _drops_flash_attn(problem):
            problem = problem._replace(options=replace(options, flash_attn=False))
        stages = offloading is not None and bool(host_tensors or HOST in split.owners)
        sizes = facts.sizes[key] = _sizes(problem, stages=stages)
    return ComputeBytes(devices=tuple(sizes[:-1]), host=sizes[-1])


class _Machine(NamedTuple):
    """The backends, cards first: which one takes over host operations, how they allocate."""

    host: int
    offloading: int | None
    is_pipelined: bool
    alignments: tuple[int, ...]
    cache_copiers: frozenset[int]


class _Problem(NamedTuple):
    facts: ModelFacts
    options: ContextOptions
    split: LayerSplit
    homes: Mapping[str, int]
    layers: Sequence[tuple[LayerFacts, object]]
    n_outputs: int
    machine: _Machine


def _drops_flash_attn(problem: _Problem) -> bool:
    """Whether llama.cpp finds flash attention on another device than its layer's and gives it up.

    Mirrors `llama_context::resolve_fused_ops` (src/llama-context.cpp, b11434), which looks at
    the graph of one token for each sequence. A layer on the host can lose it to the card of a
    recurrent layer behind it.
    """
    if not any(layer.is_recr for layer in problem.facts.layers):
        return False
    n_seqs = problem.options.n_seq_max
    probe = problem._replace(options=replace(problem.options, n_ubatch=n_seqs), n_outputs=n_seqs)
    graph = Graph(problem.machine.host)
    _build(graph, probe, problem.options.llama_build or NEWEST_BUILD)
    assign_backends(graph, problem.machine.offloading)
    return any(node.backend != owner for node, owner in graph.attention)


def _sizes(problem: _Problem, *, stages: bool) -> list[int]:
    """Bytes for each backend; older builds matter only where host weights are staged.

    There the order of what is freed decides how often a staged tensor fits into a hole, and
    it can go either way. Elsewhere the older graph is the newer one less a branch.
    """
    build = problem.options.llama_build
    if build is not None or not stages:
        return _measure(problem, NEWEST_BUILD if build is None else build, (True,))[0]
    if any(layer.is_recr for layer in problem.facts.layers):
        newer = _measure(problem, NEWEST_BUILD, (True,))[0]
        older = _measure(problem, OLDEST_BUILD, (True,))[0]
    else:
        newer, older = _measure(problem, NEWEST_BUILD, (True, False))
    slack = UNSAID_BUILD_SLACK_BYTES
    return [max(new, old - slack) for new, old in zip(newer, older, strict=True)]


def _measure(problem: _Problem, build: int, extras: tuple[bool, ...]) -> list[list[int]]:
    """Sizes by one build's graph, once for each of `extras`: with its extras or without."""
    machine = problem.machine
    graph = Graph(machine.host, machine.cache_copiers)
    _build(graph, problem, build)
    assign_backends(graph, machine.offloading)
    splits = split_graph(graph)
    return [
        measure_buffers(
            graph,
            splits,
            machine.alignments,
            is_pipelined=machine.is_pipelined,
            has_extras=has_extras,
        )
        for has_extras in extras
    ]


def _build(graph: Graph, problem: _Problem, build: int) -> None:
    """Add the graph of a full ubatch (`llama_context::graph_reserve`), of some layers only."""
    facts, options, split, layers = (
        problem.facts,
        problem.options,
        problem.split,
        problem.layers,
    )
    host = graph.host
    n_seqs = options.n_seq_max
    n_tokens = min(options.n_ctx_padded, options.n_ubatch_used)
    n_outputs = min(n_tokens, problem.n_outputs)
    n_tokens = -(-n_tokens // n_seqs) * n_seqs
    x = add_embeddings(graph, facts, build, n_tokens)
    fuses_streams = (
        facts.arch not in _LOSES_STREAMS or HOST not in split.owners or split.output_owner == HOST
    )
    inputs = add_inputs(
        graph, facts, options, build, n_tokens, n_outputs, fuses_streams=fuses_streams
    )
    if facts.arch == "qwen4exp":
        add_ngrams(graph, facts, inputs)
    if facts.arch in _MANY_STREAMS:
        x = graph.add(Op.FRESH, x.n_bytes * facts.hp.hc_mult, view(x), rows=n_tokens)
        graph.expand()
    if facts.arch in _SCALED_EMBEDDINGS:
        x = graph.add(Op.ROWWISE, x.n_bytes, x, rows=n_tokens)
    leaf_of: dict[int, list[Outside]] = {}
    last = facts.layers[-1].il if facts.layers else -1
    for layer, _ in layers:
        owner = split.owners[layer.weights_il]
        b = Builder(graph, inputs, facts, layer, host if owner == HOST else owner, problem.homes)
        if options.offload_kqv and layer.weights_il != layer.il:
            b.cache_home = host if split.owners[layer.il] == HOST else split.owners[layer.il]
        x = add_layer(b, facts.arch, x, is_last=layer.il == last)
        leaf_of[owner] = [leaf for leaf in graph.leaves if leaf.backend == -1][-1:]
    built = {layer.il for layer, _ in layers}
    for layer in facts.layers:
        if layer.il not in built and any(cache.kind == "mla" for cache in layer.caches):
            graph.twins += leaf_of[split.owners[layer.il]]
    owner = split.output_owner
    _add_output(graph, facts, inputs, x, host if owner == HOST else owner)


def _add_output(graph: Graph, facts: ModelFacts, inputs: Inputs, x: Source, backend: int) -> None:
    weights = facts.weights
    rows = inputs.n_outputs
    head = weights.get("output") or weights["token_embd"]
    norm = weights.get("output_norm")
    if facts.layers and "output_res_score" in weights:
        last = facts.layers[-1]._replace(weights=weights)
        x = mix_banked(Builder(graph, inputs, facts, last, backend, {}), x, "output_res_score")
    takes_rows = facts.arch in OUTPUTS_AFTER_LAYERS
    n_bytes = facts.hp.n_embd * rows * F32
    if takes_rows and facts.arch in _ROWS_BEFORE_NORM:
        x = graph.add(Op.GET_ROWS, n_bytes, x, inputs.out_ids, rows=rows)
        takes_rows = False
    x = graph.add(Op.ROWWISE, x.n_bytes, x, rows=rows)
    if norm is not None:
        gamma = Outside(norm.n_bytes, backend, is_weight=True)
        x = graph.add(Op.ROWWISE, x.n_bytes, x, gamma, rows=rows)
    if takes_rows:
        x = graph.add(Op.GET_ROWS, n_bytes, x, inputs.out_ids, rows=rows)
    matrix = Outside(head.n_bytes, backend, is_weight=True)
    graph.add(Op.FRESH, head.shape[1] * rows * F32, matrix, x, rows=rows)


def _representatives(
    facts: ModelFacts, split: LayerSplit, homes: Mapping[str, int]
) -> list[tuple[LayerFacts, object]]:
    """Layers that can make a difference, each with a key that tells all about it.

    Each kind three times after each kind, and the last layer: after a layer only the residual
    stream is alive, so what a layer needs depends on itself and, by the holes it finds,
    a little on the one before. The bytes of weights on the host count, since they may be
    staged on a card.
    """
    moved = _moved_by_layer(facts, homes)
    chosen: list[tuple[LayerFacts, object]] = []
    seen: dict[object, int] = {}
    previous: object = None
    for layer in facts.layers:
        owner = split.owners[layer.il]
        n_host_bytes = layer.n_bytes if owner == HOST else 0
        current = (
            layer.signature,
            split.owners[layer.weights_il],
            owner,
            moved.get(layer.il),
            n_host_bytes,
        )
        pair = (previous, current)
        n_seen = seen.get(pair, 0)
        seen[pair] = n_seen + 1
        if n_seen < _N_REPEATS or layer is facts.layers[-1]:
            chosen.append((layer, current))
        previous = current
    return chosen


def _moved_by_layer(
    facts: ModelFacts, homes: Mapping[str, int]
) -> dict[int, frozenset[tuple[str, int, int]]]:
    """Short names, bytes and backends of the moved weights of each layer that has any."""
    moved: dict[int, list[tuple[str, int, int]]] = {}
    for name, home in homes.items():
        place = facts.places.get(name)
        if place is not None:
            moved.setdefault(place[0], []).append((*place[1:], home))
    return {il: frozenset(weights) for il, weights in moved.items()}
