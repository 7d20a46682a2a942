"""How many bytes of context does one layer keep, for each kind of layer llama.cpp knows?

Mirrors the constructors of src/llama-kv-cache*.cpp and
src/llama-memory-recurrent.cpp, and the sizes `llama_context` hands them
(src/llama-context.cpp, b11434). One frozen type per kind; each lists the
tensors llama.cpp creates for the layer, and whoever knows the device pads them.
`kind` is part of each value, so that equal figures of two kinds are not equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from offload.ggml import TYPES_BY_NAME, GGMLType, row_bytes

N_CTX_PAD: Final = 256
"""`GGML_PAD(n_ctx, 256)`, the cells of a sliding window and of compressed keys included."""

MAX_SEQUENCES: Final = 256
"""`LLAMA_MAX_SEQ` of src/llama-cparams.h."""

_F16: Final = TYPES_BY_NAME["F16"]
_F32_BYTES: Final = 4


def pad_cells(n: int) -> int:
    """The next multiple of 256 cells."""
    return (n + N_CTX_PAD - 1) // N_CTX_PAD * N_CTX_PAD


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """What sizes a context, in llama.cpp's words; `n_ctx` is what `-c` gave (not 0).

    `flash_attn` is False only when switched off: left to llama.cpp it counts as on,
    since the caches are made before llama.cpp finds out.
    """

    n_ctx: int
    n_batch: int = 2048
    n_ubatch: int = 512
    n_parallel: int = 4
    kv_unified: bool = True
    type_k: GGMLType = _F16
    type_v: GGMLType = _F16
    flash_attn: bool = True
    flash_attn_auto: bool = False
    """Nobody said whether to use flash attention, so that llama.cpp may switch it off later."""

    swa_full: bool = False
    offload_kqv: bool = True
    no_host: bool = False
    """Host weights are not in pinned memory, where cards could use them, but repacked."""

    llama_build: int | None = None
    """Which llama.cpp will run this (11434 for b11434); None where nobody said."""

    @property
    def n_seq_max(self) -> int:
        """Sequences the context can hold apart."""
        return max(1, self.n_parallel)

    @property
    def n_ctx_seq(self) -> int:
        """Cells each sequence can use: all of them when unified, else an equal share."""
        n_ctx = pad_cells(self.n_ctx)
        return n_ctx if self.kv_unified else pad_cells(n_ctx // self.n_seq_max)

    @property
    def n_ctx_padded(self) -> int:
        """Cells of the whole context, which is what llama.cpp reports as n_ctx."""
        return self.n_ctx_seq if self.kv_unified else self.n_ctx_seq * self.n_seq_max

    @property
    def n_stream(self) -> int:
        """Copies of a cache: one when unified, else one for each sequence."""
        return 1 if self.kv_unified else self.n_seq_max

    @property
    def n_ubatch_used(self) -> int:
        """Tokens of a physical batch after llama.cpp's limits; 0 means a whole batch."""
        n_batch = min(self.n_ctx, self.n_batch)
        return min(n_batch, self.n_ubatch or self.n_batch)


class Cache(Protocol):
    """What one layer keeps between tokens."""

    @property
    def kind(self) -> str:
        """Short name of the kind, as printed."""

    def tensor_bytes(self, options: ContextOptions) -> tuple[int, ...]:
        """Bytes of each tensor llama.cpp creates for the layer, without padding."""


def _window_cells(n_swa: int, n_unified: int, options: ContextOptions) -> int:
    """Cells of a windowed cache; `n_unified` sequences share it (llama_kv_cache_iswa)."""
    n_ctx_seq = options.n_ctx_seq
    if options.swa_full:
        return n_ctx_seq
    return pad_cells(min(n_ctx_seq, n_swa * n_unified + options.n_ubatch_used))


class FullCache(NamedTuple):
    """Keys and values of every token (`llama_kv_cache`).

    Without flash attention values are stored transposed and every layer's are
    padded to the widest (`n_embd_v_gqa_max`).
    """

    n_embd_k_gqa: int
    n_embd_v_gqa: int
    n_embd_v_gqa_max: int
    kind: str = "full"

    def tensor_bytes(self, options: ContextOptions) -> tuple[int, ...]:
        """Bytes of the key and the value tensor."""
        n_cells = options.n_ctx_seq * options.n_stream
        n_embd_v = self.n_embd_v_gqa if options.flash_attn else self.n_embd_v_gqa_max
        return (
            row_bytes(options.type_k, self.n_embd_k_gqa) * n_cells,
            row_bytes(options.type_v, n_embd_v) * n_cells,
        )


class WindowCache(NamedTuple):
    """Keys and values of the last tokens only (the SWA half of `llama_kv_cache_iswa`)."""

    n_embd_k_gqa: int
    n_embd_v_gqa: int
    n_embd_v_gqa_max: int
    n_swa: int
    kind: str = "swa"

    def tensor_bytes(self, options: ContextOptions) -> tuple[int, ...]:
        """Bytes of the key and the value tensor."""
        n_unified = options.n_seq_max if options.kv_unified else 1
        n_cells = _window_cells(self.n_swa, n_unified, options) * options.n_stream
        n_embd_v = self.n_embd_v_gqa if options.flash_attn else self.n_embd_v_gqa_max
        return (
            row_bytes(options.type_k, self.n_embd_k_gqa) * n_cells,
            row_bytes(options.type_v, n_embd_v) * n_cells,
        )


class LatentCache(NamedTuple):
    """One latent key per token, from which values come too (multi-head latent attention)."""

    n_embd_k_gqa: int
    kind: str = "mla"

    def tensor_bytes(self, options: ContextOptions) -> tuple[int, ...]:
        """Bytes of the key tensor."""
        n_cells = options.n_ctx_seq * options.n_stream
        return (row_bytes(options.type_k, self.n_embd_k_gqa) * n_cells,)


class LatentWindowCache(NamedTuple):
    """One latent key for each of the last tokens (the window of `llama_kv_cache_dsa_iswa`)."""

    n_embd_k_gqa: int
    n_swa: int
    kind: str = "mla-swa"

    def tensor_bytes(self, options: ContextOptions) -> tuple[int, ...]:
        """Bytes of the key tensor."""
        n_unified = options.n_seq_max if options.kv_unified else 1
        n_cells = _window_cells(self.n_swa, n_unified, options) * options.n_stream
        return (row_bytes(options.type_k, self.n_embd_k_gqa) * n_cells,)


class IndexerCache(NamedTuple):
    """Keys of a sparse-attention indexer; MSA's indexer has values as well.

    The second cache of `llama_kv_cache_dsa`, `llama_kv_cache_msa` and
    `llama_memory_hybrid_idx`; the value widths are 0 where there are none.
    """

    n_embd_k: int
    n_embd_v: int = 0
    n_embd_v_max: int = 0
    kind: str = "indexer"

    def tensor_bytes(self, options: ContextOptions) -> tuple[int, ...]:
        """Bytes of the key tensor, and of the value tensor where there is one."""
        n_cells = options.n_ctx_seq * options.n_stream
        sizes = (row_bytes(options.type_k, self.n_embd_k) * n_cells,)
        n_embd_v = self.n_embd_v if options.flash_attn else self.n_embd_v_max
        return (*sizes, row_bytes(options.type_v, n_embd_v) * n_cells) if n_embd_v else sizes


class RecurrentCache(NamedTuple):
    """State of a layer that does not grow with the context (`llama_memory_recurrent`).

    Always F32, one row for each sequence: `n_embd_r` rolling inputs, `n_embd_s` state,
    `n_embd_p` history of an n-gram embedding (no tensor where 0).
    """

    n_embd_r: int
    n_embd_s: int
    n_embd_p: int = 0
    kind: str = "recurrent"

    def tensor_bytes(self, options: ContextOptions) -> tuple[int, ...]:
        """Bytes of the r and s tensors, and of the history where there is one."""
        row = _F32_BYTES * options.n_seq_max
        sizes = (self.n_embd_r * row, self.n_embd_s * row)
        return (*sizes, self.n_embd_p * row) if self.n_embd_p else sizes


class RingCache(NamedTuple):
    """Latent keys of the last tokens, never shared between sequences.

    The raw half of `llama_kv_cache_dsv4`, which is not unified whatever the option says.
    """

    n_embd_k_gqa: int
    n_swa: int
    kind: str = "swa"

    def tensor_bytes(self, options: ContextOptions) -> tuple[int, ...]:
        """Bytes of the key tensor."""
        n_cells = _window_cells(self.n_swa, 1, options) * options.n_seq_max
        return (row_bytes(options.type_k, self.n_embd_k_gqa) * n_cells,)


class CompressedCache(NamedTuple):
    """One key for each `ratio` tokens and sequence (`llama_kv_cache_dsv4`)."""

    n_embd_k: int
    ratio: int
    kind: str = "compressed"

    def tensor_bytes(self, options: ContextOptions) -> tuple[int, ...]:
        """Bytes of the key tensor."""
        n_cells = pad_cells(max(1, -(-options.n_ctx_seq // self.ratio))) * options.n_seq_max
        return (row_bytes(options.type_k, self.n_embd_k) * n_cells,)


class CompressorState(NamedTuple):
    """What a key compressor keeps of its unfinished block (`llama_dsv4_comp_state`)."""

    n_embd_state: int
    state_size: int
    kind: str = "compressor"

    def tensor_bytes(self, options: ContextOptions) -> tuple[int, ...]:
        """Bytes of the kv and the score tensor, both F32."""
        n_bytes = self.n_embd_state * self.state_size * options.n_seq_max * _F32_BYTES
        return (n_bytes, n_bytes)
