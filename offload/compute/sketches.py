"""How much more do architectures need whose sparse attention is not described here in detail?

Their graphs make many tensors of cells times tokens, which outweigh everything else at long
contexts. The factors are fitted to what llama.cpp b11434 reserves for its own small models of
these architectures (tests/test-llama-archs.cpp) over contexts, batches and slots: a sketch,
meant to be rather too much than too little.
"""

from __future__ import annotations

from offload.compute.blocks import Builder
from offload.compute.graph import Node, Source
from offload.compute.inputs import F32


def add_scratch(b: Builder, arch: str, x: Source) -> Node | None:
    """Memory that is not described, for an attention layer; free once somebody reads it."""
    needed = _SCRATCH.get(arch)
    if needed is None or b.layer.is_recr or not b.layer.caches:
        return None
    n_bytes, n_host_bytes = needed(b)
    if n_host_bytes and not b.inputs.shared:
        b.inputs.shared.append(b.graph.input(n_host_bytes))
    return b.fresh_bytes(n_bytes, x)


def _cells(b: Builder) -> int:
    """Bytes of one float for each cell a token of the batch could see."""
    return b.inputs.options.n_ctx_seq * b.rows * F32


def _qwen4exp(b: Builder) -> tuple[int, int]:
    return 6 * b.inputs.n_seqs * _cells(b), 0


def _glm5_next(b: Builder) -> tuple[int, int]:
    others = b.inputs.n_seqs - 1
    tenths = 2 + 38 * others + (0 if b.inputs.flash_attn else 18)
    return tenths * _cells(b) // 10, (7 + 12 * others) * _cells(b) // 10


def _deepseek4(b: Builder) -> tuple[int, int]:
    hp, n = b.hp, b.rows
    streams = 3 * hp.hc_mult * hp.n_embd * F32
    n_bytes = n * (streams + 19 * n) + _cells(b) * 9 // 10
    if not b.inputs.flash_attn:
        n_cells = n + hp.n_swa + b.inputs.options.n_ctx_seq // 4
        n_bytes += b.layer.n_head * n_cells * n * F32
    return n_bytes, _cells(b) * 15 // 100


_SCRATCH = {"qwen4exp": _qwen4exp}
