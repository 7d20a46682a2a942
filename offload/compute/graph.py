"""What is a compute graph, seen by an allocator that only counts bytes?

A graph here is llama.cpp's without its views: a `Node` is an operation whose result
takes `n_bytes` until its last consumer has run, an `Outside` a weight, a cache or a
graph input that lives elsewhere, and a `View` another name for one of them, with the
size a copy of it would have. What each operation may do with memory follows ggml:
`ggml_op_can_inplace` (ggml/src/ggml-alloc.c), `ggml_backend_cuda_device_offload_op`
(ggml/src/ggml-cuda/ggml-cuda.cu) and
`ggml_backend_sched_backend_id_from_cur` (ggml/src/ggml-backend.cpp), all b11434.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

OFFLOAD_MIN_ROWS: Final = 32
"""`GGML_OP_OFFLOAD_MIN_BATCH`'s default in every backend that reads it."""


class Op(enum.IntEnum):
    """The operations that differ for the scheduler or the allocator."""

    ROWWISE = 0
    """In place where an operand has the result's layout: ADD, MUL, RMS_NORM, SOFT_MAX, ..."""
    FRESH = 1
    """Always takes new memory: MUL_MAT, GLU, CONT, CONCAT, ARGSORT, ..."""
    ROPE = 2
    """In place, and its frequency factors do not decide where it runs."""
    ATTENTION = 3
    """FLASH_ATTN_EXT: new memory, and its sinks do not decide where it runs."""
    GET_ROWS = 4
    """New memory, and never taken over from the host."""
    STORE = 5
    """Writes into a cache: takes no memory and runs where the cache is."""


class Outside:
    """A tensor that is allocated before the graph: a weight, a cache or a graph input.

    `backend` is its index among the scheduler's backends. Graph inputs are leaves on
    the host that the allocator must place; weights and caches cost nothing.
    """

    __slots__ = ("backend", "is_input", "is_weight", "n_bytes")

    def __init__(
        self, n_bytes: int, backend: int, *, is_weight: bool = False, is_input: bool = False
    ) -> None:
        self.n_bytes = n_bytes
        self.backend = backend
        self.is_weight = is_weight
        self.is_input = is_input


class Node:
    """An operation and its result; `rows` is the batch the op-offload rule looks at."""

    __slots__ = ("backend", "n_bytes", "op", "rows", "srcs")

    def __init__(self, op: Op, n_bytes: int, srcs: tuple[Source, ...], rows: int) -> None:
        self.op = op
        self.n_bytes = n_bytes
        self.srcs = srcs
        self.rows = rows
        self.backend = -1


class View:
    """Another name for `root`; a copy of it on another backend takes `n_bytes`."""

    __slots__ = ("n_bytes", "root")

    def __init__(self, root: Node | Outside, n_bytes: int) -> None:
        self.root = root
        self.n_bytes = n_bytes


Source: TypeAlias = Node | Outside | View


class Graph:
    """Nodes in the order of execution, and leaves, inputs among them, in that of creation."""

    __slots__ = ("host", "leaves", "nodes")

    def __init__(self, host: int) -> None:
        self.nodes: list[Node] = []
        self.leaves: list[Outside] = []
        self.host = host

    def input(self, n_bytes: int) -> Outside:
        """A leaf that llama.cpp fills before each batch (`ggml_set_input`)."""
        leaf = Outside(n_bytes, self.host, is_input=True)
        self.leaves.append(leaf)
        return leaf

    def leaf(self, n_bytes: int, backend: int) -> Outside:
        """A tensor no operation makes and nobody fills: it has memory from the start."""
        leaf = Outside(n_bytes, backend)
        self.leaves.append(leaf)
        return leaf

    def add(self, op: Op, n_bytes: int, *srcs: Source, rows: int) -> Node:
        """Append one operation."""
        node = Node(op, n_bytes, srcs, rows)
        self.nodes.append(node)
        return node


def view(source: Source, n_bytes: int | None = None) -> View:
    """A reshape, permute or slice of `source`; all of it unless `n_bytes` says less."""
    root = source.root if isinstance(source, View) else source
    return View(root, source.n_bytes if n_bytes is None else n_bytes)
