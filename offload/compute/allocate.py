"""How large do the compute buffers get?

Mirrors `ggml_gallocr_alloc_graph_impl` and its best-fit allocator `ggml_dyn_tallocr`
(ggml/src/ggml-alloc.c, b11434) on the graph copy that `ggml_backend_sched_split_graph`
(ggml/src/ggml-backend.cpp) makes: before each split its inputs get copies on the
split's backend, memory is freed after the last consumer, a result may take over the
memory of an operand, and the high-water mark is the buffer. With pipeline parallelism
inputs exist four times, are placed first and never freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offload.compute.graph import Graph, Node, Op, Tensor
from offload.compute.schedule import Split

N_PIPELINE_COPIES: Final = 4
"""`GGML_SCHED_MAX_COPIES`."""

_ENDLESS: Final = 1 << 62


class Arena:
    """One backend's memory: free blocks in order of address, the last one endless."""

    __slots__ = ("_ends", "_starts", "alignment", "peak_bytes")

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self._starts = [0]
        self._ends = [_ENDLESS]
        self.peak_bytes = 0

    def take(self, n_bytes: int) -> int:
        """Offset of the smallest block that fits, the later one of equals, else of the last."""
        size = -(-n_bytes // self.alignment) * self.alignment
        starts, ends = self._starts, self._ends
        best = last = len(starts) - 1
        best_size = _ENDLESS
        for i in range(last):
            block_size = ends[i] - starts[i]
            if size <= block_size <= best_size:
                best, best_size = i, block_size
        offset = starts[best]
        end = offset + size
        if end == ends[best]:
            del starts[best], ends[best]
        else:
            starts[best] = end
        if end > self.peak_bytes:
            self.peak_bytes = end
        return offset

    def give(self, offset: int, n_bytes: int) -> None:
        """Free a block, merged with the first neighbour found and that one's next.

        Blocks of no bytes keep others apart and may stand out of order, as in ggml.
        """
        end = offset - (-n_bytes // self.alignment) * self.alignment
        starts, ends = self._starts, self._ends
        last = len(starts) - 1
        for i in range(last + 1):
            if ends[i] == offset:
                if i < last and starts[i + 1] == end:
                    end = ends[i + 1]
                    del starts[i + 1], ends[i + 1]
                ends[i] = end
                return
            if starts[i] == end:
                starts[i] = offset
                if i and ends[i - 1] == offset:
                    ends[i - 1] = ends[i]
                    del starts[i], ends[i]
                return
        i = 0
        while i <= last and starts[i] < offset:
            i += 1
        starts.insert(i, offset)
        ends.insert(i, end)


def measure_buffers(
    graph: Graph,
    splits: Sequence[Split],
    alignments: Sequence[int],
    *,
    is_pipelined: bool,
    has_extras: bool = True,
) -> list[int]:
    """Bytes of the compute buffer of each backend, with or without the graph's extras."""
    arenas = [Arena(alignment) for alignment in alignments]
    left_out: frozenset[Tensor] = frozenset() if has_extras else frozenset(graph.extras)
    _forget(graph, splits)
    _place_leaves(graph, splits, arenas, left_out, is_pipelined=is_pipelined)
    store = Op.STORE
    for split in splits:
        arena = arenas[split.backend]
        for origin, copy in split.copies:
            if left_out and origin in left_out:
                continue
            if not is_pipelined:
                _place(copy, arena)
            _consume(origin)
        for node in split.nodes:
            if left_out and node in left_out:
                continue
            if node.op is not store and not (node.inplace and _take_over(node)):
                node.arena = arena
                node.offset = arena.take(node.n_bytes)
            for tensor in node.reads:
                tensor.uses -= 1
                if not tensor.uses and tensor.arena is not None:
                    tensor.arena.give(tensor.offset, tensor.n_bytes)
                    tensor.arena = None
    return [arena.peak_bytes for arena in arenas]


def _forget(graph: Graph, splits: Sequence[Split]) -> None:
    """Undo an earlier run."""
    for leaf in graph.leaves:
        leaf.uses, leaf.arena = leaf.n_uses, None
    for split in splits:
        for _, copy in split.copies:
            copy.uses, copy.arena = copy.n_uses, None
        for node in split.nodes:
            node.uses, node.arena = node.n_uses, None


def _place_leaves(
    graph: Graph,
    splits: Sequence[Split],
    arenas: Sequence[Arena],
    left_out: frozenset[Tensor],
    *,
    is_pipelined: bool,
) -> None:
    for twin in graph.twins:
        arenas[twin.backend].take(twin.n_bytes)
    for leaf in graph.leaves:
        if leaf in left_out:
            continue
        arena = arenas[leaf.backend]
        if is_pipelined and leaf.is_input:
            for _ in range(N_PIPELINE_COPIES):
                arena.take(leaf.n_bytes)
        else:
            _place(leaf, arena)
    if is_pipelined:
        for split in splits:
            for origin, copy in split.copies:
                if origin in left_out:
                    continue
                for _ in range(N_PIPELINE_COPIES):
                    arenas[split.backend].take(copy.n_bytes)


def _place(tensor: Tensor, arena: Arena) -> None:
    tensor.arena = arena
    tensor.offset = arena.take(tensor.n_bytes)


def _consume(tensor: Tensor) -> None:
    """One consumer has run; free the memory after the last."""
    tensor.uses -= 1
    if not tensor.uses and tensor.arena is not None:
        tensor.arena.give(tensor.offset, tensor.n_bytes)
        tensor.arena = None


def _take_over(node: Node) -> bool:
    """Give the result the memory of an operand that nobody else reads, if there is one."""
    for tensor in node.inplace:
        if tensor.uses == 1 and tensor.arena is not None:
            node.arena, node.offset = tensor.arena, tensor.offset
            tensor.arena = None
            return True
    return False
