"""How many bytes of compute buffer does every device and the host need?

Mirrors `llama_context::sched_reserve` (src/llama-context.cpp, b11434): the graph of a
full ubatch, spread over the backends by `schedule` and laid out by `allocate`. Runs of
equal layers on one device are built only as far as they can make a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from offload.backend import CPU, Backend
from offload.compute.allocate import measure_buffers
from offload.compute.blocks import Builder
from offload.compute.facts import LayerFacts, ModelFacts, facts_of
from offload.compute.graph import Graph, Node, Op, Outside
from offload.compute.inputs import F32, Build, Inputs, add_embeddings, add_inputs
from offload.compute.layers import OUTPUTS_AFTER_LAYERS, add_layer
from offload.compute.schedule import assign_backends, split_graph
from offload.context import ContextOptions
from offload.model import Model
from offload.split import HOST, LayerSplit

_N_REPEATS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeBytes:
    """Compute buffer bytes of every device, and of the host's backend."""

    devices: tuple[int, ...]
    host: int


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
    builds: tuple[Build, ...] = tuple(Build),
) -> ComputeBytes:
    """The compute buffers llama.cpp reserves for this placement.

    `n_outputs` bounds the rows of logits; `has_overrides` says whether any tensor override
    is given, which switches pipeline parallelism off. Each device gets the most that any
    of `builds` reserves, since what will run the plan is not known.
    """
    facts = facts_of(model)
    host = len(backends)
    offloading = None
    if op_offload:
        offloading = next((i for i, backend in enumerate(backends) if backend.offloads_ops), None)
    is_pipelined = (
        len(backends) > 1
        and HOST not in split.owners
        and options.offload_kqv
        and not has_overrides
        and all(backend.supports_pipeline for backend in backends)
    )
    alignments = (*(backend.alignment_bytes for backend in backends), CPU.alignment_bytes)
    copiers = frozenset(i for i, backend in enumerate(backends) if backend.flash_attn_copies_cache)
    layers = _representatives(facts, split, host_tensors)
    key = (
        tuple(layer_key for _, layer_key in layers),
        split.owners if facts.has_indexer else split.output_owner,
        (options, n_outputs, offloading, is_pipelined, alignments, copiers, builds),
    )
    sizes = facts.sizes.get(key)
    if sizes is None:
        sizes = [0] * len(alignments)
        for build, kinds in _graphs(facts, builds):
            graph = Graph(host, copiers)
            _build(graph, facts, options, split, host_tensors, layers, n_outputs, build)
            assign_backends(graph, offloading)
            splits = split_graph(graph)
            for has_extras in kinds:
                found = measure_buffers(
                    graph, splits, alignments, is_pipelined=is_pipelined, has_extras=has_extras
                )
                sizes = [max(pair) for pair in zip(sizes, found, strict=True)]
        facts.sizes[key] = sizes
    return ComputeBytes(devices=tuple(sizes[:-1]), host=sizes[-1])


def _graphs(facts: ModelFacts, builds: tuple[Build, ...]) -> list[tuple[Build, tuple[bool, ...]]]:
    """The graphs to make, each with whether to measure it with its extras, without, or both.

    Without recurrent layers the older graph is the newer one without extras.
    """
    if len(builds) == len(Build) and not any(layer.is_recr for layer in facts.layers):
        return [(Build.B11434, (True, False))]
    return [(build, (True,)) for build in builds]


def _build(
    graph: Graph,
    facts: ModelFacts,
    options: ContextOptions,
    split: LayerSplit,
    host_tensors: frozenset[str],
    layers: Sequence[tuple[LayerFacts, object]],
    n_outputs: int,
    build: Build,
) -> None:
    """Add the graph of a full ubatch (`llama_context::graph_reserve`), of `layers` only."""
    host = graph.host
    n_seqs = options.n_seq_max
    n_tokens = min(options.n_ctx_padded, options.n_ubatch_used)
    n_outputs = min(n_tokens, n_outputs)
    n_tokens = -(-n_tokens // n_seqs) * n_seqs
    x = add_embeddings(graph, facts, build, n_tokens)
    inputs = add_inputs(graph, facts, options, build, n_tokens, n_outputs)
    homes = dict.fromkeys(host_tensors, host)
    leaf_of: dict[int, list[Outside]] = {}
    last = facts.layers[-1].il if facts.layers else -1
    for layer, _ in layers:
        owner = split.owners[layer.il]
        b = Builder(graph, inputs, facts.hp, layer, host if owner == HOST else owner, homes)
        x = add_layer(b, facts.arch, x, is_last=layer.il == last)
        leaf_of[owner] = [leaf for leaf in graph.leaves if leaf.backend == -1][-1:]
    for il in {layer.il for layer in facts.layers}.difference(layer.il for layer, _ in layers):
        graph.twins += leaf_of[split.owners[il]]
    owner = split.output_owner
    _add_output(graph, facts, inputs, x, host if owner == HOST else owner)


def _add_output(graph: Graph, facts: ModelFacts, inputs: Inputs, x: Node, backend: int) -> None:
    weights = facts.weights
    rows = inputs.n_outputs
    head = weights.get("output") or weights["token_embd"]
    norm = weights.get("output_norm")
    x = graph.add(Op.ROWWISE, x.n_bytes, x, rows=rows)
    if norm is not None:
        gamma = Outside(norm.n_bytes, backend, is_weight=True)
        x = graph.add(Op.ROWWISE, x.n_bytes, x, gamma, rows=rows)
    if facts.arch in OUTPUTS_AFTER_LAYERS:
        n_bytes = facts.hp.n_embd * rows * F32
        x = graph.add(Op.GET_ROWS, n_bytes, x, inputs.out_ids, rows=rows)
    matrix = Outside(head.n_bytes, backend, is_weight=True)
    graph.add(Op.FRESH, head.shape[1] * rows * F32, matrix, x, rows=rows)


def _representatives(
    facts: ModelFacts, split: LayerSplit, host_tensors: frozenset[str]
) -> list[tuple[LayerFacts, object]]:
    """Layers that can make a difference, each with a key that tells all about it.

    Each kind twice after each kind, and the last layer: after a layer only the residual
    stream is alive, so what a layer needs depends on itself and, by the holes it finds,
    a little on the one before. The bytes of weights on the host count, since they may be
    staged on a card.
    """
    moved = _moved_by_layer(facts, host_tensors)
    chosen: list[tuple[LayerFacts, object]] = []
    seen: dict[object, int] = {}
    previous: object = None
    for layer in facts.layers:
        owner = split.owners[layer.il]
        n_host_bytes = layer.n_bytes if owner == HOST else 0
        current = (layer.signature, owner, moved.get(layer.il), n_host_bytes)
        pair = (previous, current)
        n_seen = seen.get(pair, 0)
        seen[pair] = n_seen + 1
        if n_seen < _N_REPEATS or layer is facts.layers[-1]:
            chosen.append((layer, current))
        previous = current
    return chosen


def _moved_by_layer(
    facts: ModelFacts, host_tensors: frozenset[str]
) -> dict[int, frozenset[tuple[str, int]]]:
    """Short names and bytes of the moved weights of each layer that has any."""
    moved: dict[int, list[tuple[str, int]]] = {}
    for name in host_tensors:
        place = facts.places.get(name)
        if place is not None:
            moved.setdefault(place[0], []).append(place[1:])
    return {il: frozenset(weights) for il, weights in moved.items()}
