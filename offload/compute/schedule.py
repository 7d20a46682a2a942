"""Which backend runs each node, and which tensors are copied between them?

Mirrors `ggml_backend_sched_split_graph` (ggml/src/ggml-backend.cpp, b11434): nodes
with a weight go to the weight's backend, or to the first backend that takes host
operations over; the rest is spread from neighbour to neighbour, cards first; then the
graph is cut where the backend changes, or where another host weight has to be staged,
and every source from elsewhere is copied to the split's backend once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from offload.compute.graph import OFFLOAD_MIN_ROWS, Graph, Node, Op, Outside, Source, View


@dataclass(slots=True)
class Split:
    """Consecutive nodes on one backend, and what is copied there before they run."""

    backend: int
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Source] = field(default_factory=list)


def assign_backends(graph: Graph, offloading: int | None) -> None:
    """Passes 1 and 2: set every node's `backend`.

    `offloading` is the first backend that takes over operations on host weights
    with a batch of 32 and more, if any.
    """
    host = graph.host
    nodes = graph.nodes
    for node in nodes:
        node.backend = _fixed_backend(node, host, offloading)
    _expand(nodes, skip=host)
    _expand(nodes[::-1], skip=host)
    _expand(nodes, skip=-1)
    _expand(nodes[::-1], skip=-1)


def _fixed_backend(node: Node, host: int, offloading: int | None) -> int:
    op = node.op
    if op is Op.STORE:
        return backend_of(node.srcs[-1])
    if op is Op.ROPE or op is Op.ATTENTION:
        return -1
    for source in node.srcs:
        if type(source) is Outside and source.is_weight:
            if (
                source.backend == host
                and offloading is not None
                and op is not Op.GET_ROWS
                and node.rows >= OFFLOAD_MIN_ROWS
            ):
                return offloading
            return source.backend
    return -1


def _expand(nodes: Sequence[Node], *, skip: int) -> None:
    """Give unassigned nodes the backend of the last assigned one, unless that is `skip`."""
    current = -1
    for node in nodes:
        backend = node.backend
        if backend == -1:
            if current != -1:
                node.backend = current
        else:
            current = -1 if backend == skip else backend


def backend_of(source: Source) -> int:
    """Where a source lives."""
    return source.root.backend if type(source) is View else source.backend  # type: ignore[union-attr]


def split_graph(graph: Graph) -> list[Split]:
    """Pass 5: cut the graph into splits; needs `assign_backends`."""
    split = Split(graph.nodes[0].backend)
    splits = [split]
    copied: set[tuple[int, int]] = set()
    for node in graph.nodes:
        backend = node.backend
        if backend != split.backend or (split.inputs and _stages_weight(node, backend)):
            split = Split(backend)
            splits.append(split)
        for source in node.srcs:
            if backend_of(source) != backend:
                key = (id(source), backend)
                if key not in copied:
                    copied.add(key)
                    split.inputs.append(source)
        split.nodes.append(node)
    return splits


def _stages_weight(node: Node, backend: int) -> bool:
    for source in node.srcs:
        if type(source) is Outside and source.is_weight and source.backend != backend:
            return True
    return False
