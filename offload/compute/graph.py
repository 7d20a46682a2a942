"""What is a compute graph, seen by an allocator that only counts bytes?

A graph here is llama.cpp's without its views: a `Node` is an operation whose result
takes `n_bytes` until its last consumer has run, an `Outside` a weight, a cache or a
graph input, and a `View` another name for one of them, with the size a copy of it would
have. What each operation may do with memory follows ggml: `ggml_op_can_inplace`
(ggml/src/ggml-alloc.c), `ggml_backend_cuda_device_offload_op`
(ggml/src/ggml-cuda/ggml-cuda.cu) and `ggml_backend_sched_backend_id_from_cur`
(ggml/src/ggml-backend.cpp), all b11434.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from offload.compute.allocate import Arena


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
    """Writes into its last operand: takes no memory and runs where that is."""


class Tensor:
    """Something with `n_bytes` on one of the scheduler's backends.

    `n_uses` is how many operations read it. The rest is the allocator's: how many of these
    are left, and where the memory is (no arena: not ours to place, or freed).
    """

    __slots__ = ("arena", "backend", "n_bytes", "n_uses", "offset", "uses")

    def __init__(self, n_bytes: int, backend: int) -> None:
        self.n_bytes = n_bytes
        self.backend = backend
        self.n_uses = 0
        self.uses = 0
        self.arena: Arena | None = None
        self.offset = 0


class Outside(Tensor):
    """A tensor that no operation makes: a weight, a cache, or a leaf, perhaps an input.

    What is `stuck` can be read by its own backend only.
    """

    __slots__ = ("is_input", "is_leaf", "is_weight", "stuck")

    def __init__(
        self, n_bytes: int, backend: int, *, is_weight: bool = False, is_leaf: bool = False
    ) -> None:
        super().__init__(n_bytes, backend)
        self.is_weight = is_weight
        self.is_leaf = is_leaf
        self.is_input = False
        self.stuck = False


class Node(Tensor):
    """An operation and its result; `rows` is the batch the op-offload rule looks at.

    `reads` and `inplace` are the scheduler's: the tensors or copies it really reads that
    cost memory, and those among them whose memory the result could take over.
    """

    __slots__ = ("inplace", "op", "operands", "reads", "rows")

    def __init__(self, op: Op, n_bytes: int, operands: tuple[Source, ...], rows: int) -> None:
        # not through Tensor's: a graph has thousands of nodes, and a plan several graphs
        self.n_bytes = n_bytes
        self.backend = -1
        self.n_uses = 0
        self.uses = 0
        self.arena = None
        self.offset = 0
        self.op = op
        self.operands = operands
        self.rows = rows
        self.reads: Sequence[Tensor] = ()
        self.inplace: Sequence[Tensor] = ()


class View:
    """Another name for `root`; a copy of it on another backend takes `n_bytes`."""

    __slots__ = ("n_bytes", "root")

    def __init__(self, root: Tensor, n_bytes: int) -> None:
        self.root = root
        self.n_bytes = n_bytes


Source: TypeAlias = Node | Outside | View


class Graph:
    """Nodes in the order of execution, and leaves, inputs among them, in that of creation.

    `twins` are leaves of which there is one more each time, in layers that were not built.
    `cache_copiers` are the backends whose flash attention copies a cache that is not F16.
    `extras` are nodes and leaves that not every build has; nothing else reads them.
    llama.cpp adds most operations when something that is asked for needs them; `n_expanded`
    nodes are there already when the next thing is asked for (`ggml_build_forward_expand`).
    `attention` has every flash attention and the backend of its layer.
    """

    __slots__ = (
        "attention",
        "cache_copiers",
        "extras",
        "host",
        "leaves",
        "n_expanded",
        "nodes",
        "twins",
    )

    def __init__(self, host: int, cache_copiers: frozenset[int] = frozenset()) -> None:
        self.cache_copiers = cache_copiers
        self.nodes: list[Node] = []
        self.leaves: list[Outside] = []
        self.twins: list[Outside] = []
        self.extras: list[Tensor] = []
        self.attention: list[tuple[Node, int]] = []
        self.host = host
        self.n_expanded = 0

    def input(self, n_bytes: int) -> Outside:
        """A leaf on the host that llama.cpp fills before each batch (`ggml_set_input`)."""
        leaf = self.leaf(n_bytes, self.host)
        leaf.is_input = True
        return leaf

    def leaf(self, n_bytes: int, backend: int = -1) -> Outside:
        """A tensor that has memory from the start, by default where it is read."""
        leaf = Outside(n_bytes, backend, is_leaf=True)
        self.leaves.append(leaf)
        return leaf

    def add(self, op: Op, n_bytes: int, *operands: Source, rows: int) -> Node:
        """Append one operation."""
        node = Node(op, n_bytes, operands, rows)
        self.nodes.append(node)
        return node

    def expand(self) -> None:
        """Everything so far has been asked for."""
        self.n_expanded = len(self.nodes)

    def hoist(self, n: int) -> None:
        """The last `n` nodes are asked for before what nobody has asked for yet."""
        nodes = self.nodes
        if len(nodes) - n > self.n_expanded:
            nodes[self.n_expanded : self.n_expanded] = nodes[-n:]
            del nodes[-n:]
        self.n_expanded += n

    def defer(self, start: int, n: int) -> None:
        """The `n` nodes from `start` on are asked for last, after all that follows them."""
        nodes = self.nodes
        nodes += nodes[start : start + n]
        del nodes[start : start + n]


def view(source: Source, n_bytes: int | None = None) -> View:
    """A reshape, permute or slice of `source`; all of it unless `n_bytes` says less."""
    root = source.root if isinstance(source, View) else source
    return View(root, source.n_bytes if n_bytes is None else n_bytes)
