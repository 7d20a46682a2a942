"""Context sizes worked out by hand, option by option, kind by kind."""

from __future__ import annotations

import pytest

from offload.context import (
    CompressedCache,
    CompressorState,
    ContextOptions,
    FullCache,
    IndexerCache,
    LatentCache,
    LatentWindowCache,
    RecurrentCache,
    RingCache,
    WindowCache,
)
from offload.ggml import TYPES_BY_NAME

F16, Q8_0 = TYPES_BY_NAME["F16"], TYPES_BY_NAME["Q8_0"]


@pytest.mark.parametrize(
    ("n_ctx", "n_parallel", "kv_unified", "n_ctx_seq", "n_ctx_padded", "n_stream"),
    [
        (4096, 1, True, 4096, 4096, 1),
        (1000, 4, True, 1024, 1024, 1),
        (4096, 4, False, 1024, 4096, 4),
        (1000, 3, False, 512, 1536, 3),
        (256, 4, False, 256, 1024, 4),
        (4096, 1, False, 4096, 4096, 1),
    ],
)
def test_cells(
    n_ctx: int, n_parallel: int, kv_unified: bool, n_ctx_seq: int, n_ctx_padded: int, n_stream: int
) -> None:
    """The context is padded to 256 cells, and so is each sequence's share of one not unified."""
    options = ContextOptions(n_ctx=n_ctx, n_parallel=n_parallel, kv_unified=kv_unified)
    assert options.n_ctx_seq == n_ctx_seq
    assert options.n_ctx_padded == n_ctx_padded
    assert options.n_stream == n_stream


@pytest.mark.parametrize(
    ("n_ctx", "n_batch", "n_ubatch", "expected"),
    [(4096, 2048, 512, 512), (300, 2048, 512, 300), (4096, 64, 512, 64), (4096, 2048, 0, 2048)],
)
def test_physical_batch(n_ctx: int, n_batch: int, n_ubatch: int, expected: int) -> None:
    """A physical batch is never larger than the batch, nor the batch than the context."""
    options = ContextOptions(n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch)
    assert options.n_ubatch_used == expected


def test_full_cache() -> None:
    """Every token has keys and values; quantised ones are sized by block."""
    cache = FullCache(n_embd_k_gqa=512, n_embd_v_gqa=256, n_embd_v_gqa_max=1024)
    assert cache.tensor_bytes(ContextOptions(n_ctx=1000)) == (512 * 2 * 1024, 256 * 2 * 1024)
    q8_0 = ContextOptions(n_ctx=1000, type_k=Q8_0, type_v=Q8_0)
    assert cache.tensor_bytes(q8_0) == (512 // 32 * 34 * 1024, 256 // 32 * 34 * 1024)


def test_values_are_padded_without_flash_attention() -> None:
    """Transposed values of every layer are as wide as the widest layer's."""
    cache = FullCache(n_embd_k_gqa=512, n_embd_v_gqa=256, n_embd_v_gqa_max=1024)
    options = ContextOptions(n_ctx=1024, flash_attn=False)
    assert cache.tensor_bytes(options) == (512 * 2 * 1024, 1024 * 2 * 1024)


def test_qwen3_235b_as_logged_on_two_3090() -> None:
    """A recorded load shows 816 and 782 MiB for 48 and 46 layers at -c 16384 with q8_0."""
    cache = FullCache(n_embd_k_gqa=512, n_embd_v_gqa=512, n_embd_v_gqa_max=512)
    layer = sum(cache.tensor_bytes(ContextOptions(n_ctx=16384, type_k=Q8_0, type_v=Q8_0)))
    assert (layer * 48, layer * 46) == (816 << 20, 782 << 20)


@pytest.mark.parametrize(
    ("options", "n_cells"),
    [
        # 128 + 512 tokens, padded to 256
        (ContextOptions(n_ctx=8192, n_parallel=1), 768),
        # a unified window holds the tokens of every sequence
        (ContextOptions(n_ctx=8192, n_parallel=4), 1024),
        # else each sequence has its own
        (ContextOptions(n_ctx=8192, n_parallel=4, kv_unified=False), 4 * 768),
        (ContextOptions(n_ctx=8192, n_parallel=1, n_ubatch=2048), 2304),
        # never more than the context
        (ContextOptions(n_ctx=512, n_parallel=4), 512),
        (ContextOptions(n_ctx=1024, n_parallel=4, kv_unified=False), 4 * 256),
        (ContextOptions(n_ctx=8192, n_parallel=4, swa_full=True), 8192),
    ],
)
def test_window_cells(options: ContextOptions, n_cells: int) -> None:
    """A window needs room for itself and one physical batch."""
    cache = WindowCache(n_embd_k_gqa=64, n_embd_v_gqa=32, n_embd_v_gqa_max=48, n_swa=128)
    assert cache.tensor_bytes(options) == (n_cells * 64 * 2, n_cells * 32 * 2)
    latent = LatentWindowCache(n_embd_k_gqa=64, n_swa=128)
    assert latent.tensor_bytes(options) == (n_cells * 64 * 2,)


def test_window_values_are_padded_without_flash_attention() -> None:
    """As those of a full cache are."""
    cache = WindowCache(n_embd_k_gqa=64, n_embd_v_gqa=32, n_embd_v_gqa_max=48, n_swa=128)
    options = ContextOptions(n_ctx=8192, n_parallel=1, flash_attn=False)
    assert cache.tensor_bytes(options) == (768 * 64 * 2, 768 * 48 * 2)


def test_latent_cache() -> None:
    """Latent attention stores keys only; values are made from them."""
    options = ContextOptions(n_ctx=4096, n_parallel=2, kv_unified=False, type_k=Q8_0)
    assert LatentCache(n_embd_k_gqa=576).tensor_bytes(options) == (576 // 32 * 34 * 4096,)


def test_indexer_cache() -> None:
    """An indexer keeps keys of all tokens; MSA's values are padded like other values."""
    options = ContextOptions(n_ctx=4096)
    assert IndexerCache(n_embd_k=128).tensor_bytes(options) == (128 * 2 * 4096,)
    msa = IndexerCache(n_embd_k=128, n_embd_v=64, n_embd_v_max=96)
    assert msa.tensor_bytes(options) == (128 * 2 * 4096, 64 * 2 * 4096)
    transposed = ContextOptions(n_ctx=4096, flash_attn=False)
    assert msa.tensor_bytes(transposed) == (128 * 2 * 4096, 96 * 2 * 4096)


@pytest.mark.parametrize("kv_unified", [False, True])
@pytest.mark.parametrize("n_ctx", [256, 65536])
def test_recurrent_cache(n_ctx: int, kv_unified: bool) -> None:
    """A state has one F32 row for each sequence, whatever the context and the cache type."""
    options = ContextOptions(n_ctx=n_ctx, n_parallel=3, kv_unified=kv_unified, type_k=Q8_0)
    cache = RecurrentCache(n_embd_r=10, n_embd_s=100)
    assert cache.tensor_bytes(options) == (3 * 10 * 4, 3 * 100 * 4)
    with_history = RecurrentCache(n_embd_r=10, n_embd_s=100, n_embd_p=7)
    assert with_history.tensor_bytes(options) == (3 * 10 * 4, 3 * 100 * 4, 3 * 7 * 4)


def test_dsv4_is_never_unified() -> None:
    """Windows, compressed keys and compressor states exist once for each sequence."""
    options = ContextOptions(n_ctx=4096, n_parallel=2, kv_unified=True)
    ring = RingCache(n_embd_k_gqa=512, n_swa=128)
    assert ring.tensor_bytes(options) == (2 * 768 * 512 * 2,)
    assert CompressedCache(n_embd_k=512, ratio=4).tensor_bytes(options) == (2 * 1024 * 512 * 2,)
    assert CompressedCache(n_embd_k=512, ratio=128).tensor_bytes(options) == (2 * 256 * 512 * 2,)
    state = CompressorState(n_embd_state=1024, state_size=8)
    assert state.tensor_bytes(options) == (2 * 1024 * 8 * 4,) * 2


def test_equal_figures_of_two_kinds_are_not_equal() -> None:
    """Sums are remembered by value: a ring of 128 cells must not pass for keys of every 128."""
    ring, window = (
        RingCache(n_embd_k_gqa=512, n_swa=128),
        LatentWindowCache(n_embd_k_gqa=512, n_swa=128),
    )
    compressed = CompressedCache(n_embd_k=512, ratio=128)
    state = CompressorState(n_embd_state=512, state_size=128)
    assert len({ring, window, compressed, state}) == 4
