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

from offload.compute.graph import Graph, Node, Op, Outside, Source, View
from offload.compute.schedule import Split

N_PIPELINE_COPIES = 4
"""`GGML_SCHED_MAX_COPIES`."""

_ENDLESS = 1 << 62


class Arena:
    """One backend's memory: free blocks in order of address, the last one endless."""

    __slots__ = ("alignment", "free", "peak_bytes")

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.free: list[list[int]] = [[0, _ENDLESS]]
        self.peak_bytes = 0

    def take(self, n_bytes: int) -> int:
        """Offset of the smallest block that fits, the later one of equals, else of the last."""
        size = -(-n_bytes // self.alignment) * self.alignment
        free = self.free
        last = len(free) - 1
        best, best_size = last, _ENDLESS
        for i in range(last):
            block_size = free[i][1]
            if size <= block_size <= best_size:
                best, best_size = i, block_size
        block = free[best]
        offset = block[0]
        block[0] += size
        block[1] -= size
        if not block[1]:
            del free[best]
        if offset + size > self.peak_bytes:
            self.peak_bytes = offset + size
        return offset

    def give(self, offset: int, n_bytes: int) -> None:
        """Free a block and merge it with its neighbours."""
        size = -(-n_bytes // self.alignment) * self.alignment
        free = self.free
        i = 0
        while free[i][0] < offset:
            i += 1
        if i and free[i - 1][0] + free[i - 1][1] == offset:
            free[i - 1][1] += size
            if offset + size == free[i][0]:
                free[i - 1][1] += free[i][1]
                del free[i]
        elif offset + size == free[i][0]:
            free[i][0] = offset
            free[i][1] += size
        else:
            free.insert(i, [offset, size])


class Slot:
    """A tensor with memory: how many consumers are left, and where it is (-1: not ours)."""

    __slots__ = ("arena", "n_bytes", "offset", "uses")

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.offset = -1
        self.uses = 0
        self.arena: Arena | None = None

    def place(self, arena: Arena) -> None:
        self.arena = arena
        self.offset = arena.take(self.n_bytes)

    def consume(self) -> None:
        """One consumer has run; free the memory after the last."""
        self.uses -= 1
        if not self.uses and self.arena is not None:
            self.arena.give(self.offset, self.n_bytes)
            self.arena = None


def measure_buffers(
    graph: Graph, splits: Sequence[Split], alignments: Sequence[int], *, is_pipelined: bool
) -> list[int]:
    """Bytes of the compute buffer of each backend."""
    arenas = [Arena(alignment) for alignment in alignments]
    slots: dict[int, Slot] = {}
    steps = [_resolve(split, slots) for split in splits]
    _place_leaves(graph, splits, slots, arenas, is_pipelined=is_pipelined)
    for split, (inputs, nodes) in zip(splits, steps, strict=True):
        arena = arenas[split.backend]
        for origin, copy in inputs:
            if not is_pipelined:
                copy.place(arena)
            origin.consume()
        for result, is_inplace, operands in nodes:
            if result is not None and not (is_inplace and _take_over(result, operands)):
                result.place(arena)
            for slot, _ in operands:
                slot.consume()
    return [arena.peak_bytes for arena in arenas]


_Step = tuple[Slot | None, bool, list[tuple[Slot, bool]]]


def _resolve(
    split: Split, slots: dict[int, Slot]
) -> tuple[list[tuple[Slot, Slot]], list[_Step]]:
    """What each node of a split really reads: tensors, or their copies on its backend.

    Operands come with whether they are read directly, not through a view.
    """
    inputs = []
    for source in split.inputs:
        copy = slots[_copy_key(source, split.backend)] = Slot(source.n_bytes)
        inputs.append((_slot(source, slots), copy))
    for origin, _ in inputs:
        origin.uses += 1
    steps: list[_Step] = []
    for node in split.nodes:
        operands = []
        for source in node.srcs:
            slot = slots.get(_copy_key(source, split.backend))
            is_direct = True
            if slot is None:
                slot = _slot(source, slots)
                is_direct = type(source) is not View
            slot.uses += 1
            operands.append((slot, is_direct))
        if node.op is Op.STORE:
            steps.append((None, False, operands))
        else:
            result = slots[id(node)] = Slot(node.n_bytes)
            steps.append((result, node.op is Op.ROWWISE or node.op is Op.ROPE, operands))
    return inputs, steps


def _slot(source: Source, slots: dict[int, Slot]) -> Slot:
    root: Node | Outside = source.root if isinstance(source, View) else source
    slot = slots.get(id(root))
    if slot is None:
        slot = slots[id(root)] = Slot(root.n_bytes)
    return slot


def _copy_key(source: Source, backend: int) -> int:
    return -(id(source) * 32 + backend + 1)


def _place_leaves(
    graph: Graph,
    splits: Sequence[Split],
    slots: dict[int, Slot],
    arenas: Sequence[Arena],
    *,
    is_pipelined: bool,
) -> None:
    for leaf in graph.leaves:
        if is_pipelined and leaf.is_input:
            for _ in range(N_PIPELINE_COPIES):
                arenas[graph.host].take(leaf.n_bytes)
        else:
            _slot(leaf, slots).place(arenas[leaf.backend])
    if is_pipelined:
        for split in splits:
            for source in split.inputs:
                for _ in range(N_PIPELINE_COPIES):
                    arenas[split.backend].take(source.n_bytes)


def _take_over(result: Slot, operands: Sequence[tuple[Slot, bool]]) -> bool:
    """Give `result` the memory of an operand that nobody else reads, if there is one."""
    for slot, is_direct in operands:
        if (
            is_direct
            and slot.uses == 1
            and slot.n_bytes == result.n_bytes
            and slot.arena is not None
        ):
            result.arena, result.offset = slot.arena, slot.offset
            slot.arena = None
            return True
    return False
