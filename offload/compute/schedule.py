"""Which backend runs each node, and which tensors are copied between them?

Mirrors `ggml_backend_sched_split_graph` (ggml/src/ggml-backend.cpp, b11434): nodes
with a weight go to the weight's backend, or to the first backend that takes host
operations over; the rest is spread from neighbour to neighbour, cards first; then the
graph is cut where the backend changes, or where another host weight has to be staged,
and every operand from elsewhere is copied to the split's backend once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offload.compute.graph import Graph, Node, Op, Outside, Source, Tensor, View

OFFLOAD_MIN_ROWS: Final = 32
"""`GGML_OP_OFFLOAD_MIN_BATCH`'s default in every backend that reads it."""

_IN_PLACE: Final = frozenset((Op.ROWWISE, Op.ROPE))


class Split:
    """Consecutive nodes on one backend, and what is copied there before they run.

    `copies` are pairs of the tensor, which must stay until then, and its copy.
    """

    __slots__ = ("backend", "copies", "nodes")

    def __init__(self, backend: int) -> None:
        self.backend = backend
        self.nodes: list[Node] = []
        self.copies: list[tuple[Tensor, Tensor]] = []


def assign_backends(graph: Graph, offloading: int | None) -> None:
    """Passes 1, 2 and 4: set every node's and every leaf's `backend`.

    `offloading` is the first backend that takes over operations on host weights
    with a batch of 32 and more, if any.
    """
    nodes = graph.nodes
    for node in nodes:
        node.backend = _fixed_backend(node, graph.host, offloading)
    _expand(nodes, skip=graph.host)
    _expand(nodes[::-1], skip=graph.host)
    _expand(nodes, skip=-1)
    _expand(nodes[::-1], skip=-1)
    if any(leaf.backend == -1 for leaf in graph.leaves):
        for node in nodes:
            for source in node.operands:
                if type(source) is Outside and source.backend == -1:
                    source.backend = node.backend


def _fixed_backend(node: Node, host: int, offloading: int | None) -> int:
    op = node.op
    if op is Op.STORE:
        target = _root(node.operands[-1])
        return target.backend if type(target) is Outside and not target.is_leaf else -1
    if op is Op.ROPE or op is Op.ATTENTION:
        return -1
    for source in node.operands:
        if type(source) is Outside and source.is_weight:
            backend = source.backend
            if (
                backend == host
                and offloading is not None
                and not source.stuck
                and op is not Op.GET_ROWS
                and node.rows >= OFFLOAD_MIN_ROWS
            ):
                return offloading
            return backend
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


def _root(source: Source) -> Tensor:
    return source.root if isinstance(source, View) else source


def split_graph(graph: Graph) -> list[Split]:
    """Pass 5: cut the graph into splits and count consumers; needs `assign_backends`."""
    split = Split(graph.nodes[0].backend)
    splits = [split]
    copies: dict[tuple[int, int], Tensor] = {}
    for node in graph.nodes:
        backend = node.backend
        if backend != split.backend or (split.copies and _stages_weight(node, backend)):
            split = Split(backend)
            splits.append(split)
        split.nodes.append(node)
        reads: list[Tensor] = []
        inplace: list[Tensor] = []
        n_inplace_bytes = node.n_bytes if node.op in _IN_PLACE else -1
        for source in node.operands:
            kind: type = type(source)
            tensor: Tensor = source.root if kind is View else source  # type: ignore[union-attr,assignment]
            if tensor.backend != backend:
                key = (id(source), backend)
                copy = copies.get(key)
                if copy is None:
                    copy = copies[key] = Tensor(source.n_bytes, backend)
                    split.copies.append((tensor, copy))
                    tensor.n_uses += 1
                tensor, kind = copy, Tensor
            elif type(tensor) is Outside and not tensor.is_leaf:
                continue
            tensor.n_uses += 1
            reads.append(tensor)
            if tensor.n_bytes == n_inplace_bytes and kind is not View:
                inplace.append(tensor)
        node.reads, node.inplace = reads, inplace
    return splits


def _stages_weight(node: Node, backend: int) -> bool:
    for source in node.operands:
        if type(source) is Outside and source.is_weight and source.backend != backend:
            return True
    return False
