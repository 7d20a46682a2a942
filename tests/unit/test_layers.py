"""Kinds and caches of layers, one architecture for each memory class."""

from __future__ import annotations

from typing import Any

import pytest

from offload.context import (
    Cache,
    CompressedCache,
    CompressorState,
    FullCache,
    IndexerCache,
    LatentCache,
    LatentWindowCache,
    RecurrentCache,
    RingCache,
    WindowCache,
)
from offload.layers import Layer
from offload.model import make_model
from tests.model_headers import model_header

SSM: dict[str, Any] = {
    "ssm__conv_kernel": 4, "ssm__inner_size": 128, "ssm__state_size": 16,
    "ssm__time_step_rank": 8, "ssm__group_count": 2,
}  # fmt: skip
MLA: dict[str, Any] = {
    "attention__key_length_mla": 24, "attention__value_length_mla": 16,
    "attention__key_length": 40, "attention__value_length": 32, "attention__head_count_kv": 1,
    "attention__kv_lora_rank": 32,
}  # fmt: skip
INDEXER: dict[str, Any] = {
    "attention__indexer__key_length": 128, "attention__indexer__head_count": 4,
    "attention__indexer__top_k": 8,
}  # fmt: skip
FULL = FullCache(n_embd_k_gqa=32, n_embd_v_gqa=32, n_embd_v_gqa_max=32)
MAMBA = RecurrentCache(n_embd_r=3 * (128 + 64), n_embd_s=16 * 128)


def _layers(arch: str, **keys: Any) -> tuple[Layer, ...]:
    return make_model(model_header(arch, **keys)).layers


def _kinds(arch: str, **keys: Any) -> list[str]:
    return [layer.kind for layer in _layers(arch, **keys)]


def test_plain_attention() -> None:
    """Every layer caches keys and values."""
    layers = _layers("qwen3moe")
    assert [layer.il for layer in layers] == [0, 1, 2, 3]
    assert all(layer.kind == "full" and layer.caches == (FULL,) for layer in layers)


def test_mtp_blocks_have_no_cache() -> None:
    """They are not attended without a draft context."""
    layers = _layers("glm4moe", nextn_predict_layers=1)
    assert [layer.is_nextn for layer in layers] == [False, False, False, True]
    assert [len(layer.caches) for layer in layers] == [1, 1, 1, 0]
    assert layers[3].kind == "none"


def test_some_mtp_blocks_have_a_cache() -> None:
    """Where `create_memory` filters no layers the MTP block is cached all the same."""
    layers = _layers("minimax-m3", nextn_predict_layers=1, **INDEXER)
    assert [layer.kind for layer in layers] == ["sparse"] * 4
    layers = _layers(
        "kimi-linear", nextn_predict_layers=1, kda__head_dim=8, ssm__conv_kernel=4, **MLA
    )
    assert [layer.kind for layer in layers] == ["mla"] * 4


def test_models_without_a_trunk() -> None:
    """A model of nothing but MTP blocks caches them."""
    kinds = _kinds(
        "gemma4-assistant", nextn_predict_layers=4, attention__sliding_window=64,
        attention__sliding_window_pattern=(1, 1, 1, 0),
    )  # fmt: skip
    assert kinds == ["swa", "swa", "swa", "full"]


def test_windows() -> None:
    """Windowed layers cache a window."""
    layers = _layers("gpt-oss", attention__sliding_window=128)
    window = WindowCache(n_embd_k_gqa=32, n_embd_v_gqa=32, n_embd_v_gqa_max=32, n_swa=128)
    caches: list[tuple[Cache, ...]] = [(window,), (FULL,)] * 2
    assert [layer.caches for layer in layers] == caches
    assert [layer.kind for layer in layers] == ["swa", "full"] * 2


def test_shared_layers() -> None:
    """Layers that attend to another's cache have none."""
    kinds = _kinds(
        "gemma4", attention__shared_kv_layers=1, attention__sliding_window=64,
        attention__sliding_window_pattern=(1, 1, 0, 1),
    )  # fmt: skip
    assert kinds == ["swa", "swa", "full", "shared"]


def test_latent() -> None:
    """MLA caches one latent key per token."""
    layers = _layers("deepseek2", **MLA)
    assert all(layer.caches == (LatentCache(n_embd_k_gqa=40),) for layer in layers)


def test_encoders() -> None:
    """Encoders and diffusion models cache nothing."""
    assert _kinds("bert") == _kinds("llada-moe") == ["none"] * 4


@pytest.mark.parametrize("arch", ["mamba2", "rwkv6"])
def test_recurrent(arch: str) -> None:
    """Every layer keeps a state."""
    layers = _layers(arch, wkv__head_size=16, **SSM)
    assert [layer.kind for layer in layers] == ["recurrent"] * 4


def test_hybrid() -> None:
    """Attention and states alternate."""
    layers = _layers("granitehybrid", attention__head_count_kv=(0, 2, 0, 2), **SSM)
    caches: list[tuple[Cache, ...]] = [(MAMBA,), (FULL,)] * 2
    assert [layer.caches for layer in layers] == caches


def test_blocks_of_one_kind() -> None:
    """In Nemotron-H a block is attention, state or feed-forward, the last without a cache."""
    kinds = _kinds(
        "nemotron_h", attention__head_count_kv=(0, 2, 0, 0), feed_forward_length=(0, 0, 128, 0),
        **SSM,
    )  # fmt: skip
    assert kinds == ["recurrent", "full", "none", "recurrent"]


def test_both_in_one_block() -> None:
    """Falcon-H1 attends and keeps a state in every block."""
    layers = _layers("falcon-h1", **SSM)
    assert all(layer.kind == "hybrid" and layer.caches == (FULL, MAMBA) for layer in layers)


def test_delta_net() -> None:
    """Three states, one attention; the MTP block keeps neither."""
    kinds = _kinds("qwen3next", block_count=9, nextn_predict_layers=1, **SSM)
    assert kinds == [*["recurrent", "recurrent", "recurrent", "full"] * 2, "none"]


def test_hybrid_with_a_window() -> None:
    """LFM2's attention may be windowed."""
    kinds = _kinds(
        "lfm2", attention__head_count_kv=(0, 2, 0, 2), attention__sliding_window=64,
        shortconv__l_cache=3,
    )  # fmt: skip
    assert kinds == ["recurrent", "swa"] * 2


def test_sparse_latent() -> None:
    """DSA layers that own an indexer cache its keys too."""
    layers = _layers("glm-dsa", attention__indexer__types=(1, 0, 0, 1), **MLA, **INDEXER)
    latent, indexer = LatentCache(n_embd_k_gqa=40), IndexerCache(n_embd_k=128)
    assert [layer.kind for layer in layers] == ["dsa", "mla", "mla", "dsa"]
    assert [layer.caches for layer in layers] == [
        (latent, indexer), (latent,), (latent,), (latent, indexer),
    ]  # fmt: skip


def test_sparse_latent_with_windows() -> None:
    """Windowed layers have a latent of their own width and no indexer."""
    layers = _layers(
        "dots3note", attention__sliding_window=64, attention__sliding_window_pattern=(0, 1, 1, 0),
        attention__indexer__types=(1, 0, 0, 1), attention__key_length_swa=56, **MLA, **INDEXER,
    )  # fmt: skip
    assert [layer.kind for layer in layers] == ["dsa", "mla-swa", "mla-swa", "dsa"]
    assert layers[1].caches == (LatentWindowCache(n_embd_k_gqa=56, n_swa=64),)


def test_sparse_full() -> None:
    """MSA's indexer has one head of keys, and values nobody reads."""
    layers = _layers("minimax-m3", leading_dense_block_count=1, **INDEXER)
    indexer = IndexerCache(n_embd_k=128, n_embd_v=16, n_embd_v_max=16)
    assert [layer.kind for layer in layers] == ["full", "sparse", "sparse", "sparse"]
    assert layers[1].caches == (FULL, indexer)


def test_indexed_hybrids() -> None:
    """The attention layers of GLM 5 Next and Qwen 4 keep pooled indexer keys."""
    glm = _layers(
        "glm5-next", **(MLA | {"attention__head_count_kv": (0, 1, 0, 1)}), **INDEXER,
        kda__head_dim=8, ssm__conv_kernel=4, attention__indexer__kpool=4,
    )  # fmt: skip
    assert [layer.kind for layer in glm] == ["recurrent", "dsa"] * 2
    assert glm[1].caches[1] == IndexerCache(n_embd_k=3 * 128)
    qwen = _layers(
        "qwen4exp", ple__layers=(0,), ple__conv_kernel=4, ple__ngram_size=3,
        hyper_connection__count=2, attention__compress_ratios=(4,) * 4, **INDEXER, **SSM,
    )  # fmt: skip
    assert [layer.kind for layer in qwen] == ["recurrent"] * 3 + ["sparse"]
    assert qwen[3].caches == (FULL, IndexerCache(n_embd_k=2 * 128))
    assert qwen[0].caches == (RecurrentCache(n_embd_r=576, n_embd_s=2048, n_embd_p=1152),)
    assert qwen[1].caches == (MAMBA,)


def test_dsv4() -> None:
    """Windowed keys everywhere, compressed ones by ratio, an indexer beside ratio 4."""
    layers = _layers(
        "deepseek4", attention__sliding_window=64, attention__head_count_kv=1,
        attention__compress_ratios=(0, 4, 128, 4), **INDEXER,
    )  # fmt: skip
    ring = RingCache(n_embd_k_gqa=16, n_swa=64)
    assert [layer.kind for layer in layers] == ["swa", "csa", "hca", "csa"]
    assert layers[0].caches == (ring,)
    assert layers[1].caches == (
        ring,
        CompressedCache(n_embd_k=16, ratio=4),
        CompressedCache(n_embd_k=128, ratio=4),
        CompressorState(n_embd_state=32, state_size=8),
        CompressorState(n_embd_state=256, state_size=8),
    )
    assert layers[2].caches == (
        ring,
        CompressedCache(n_embd_k=16, ratio=128),
        CompressorState(n_embd_state=16, state_size=128),
    )


def test_router_layer_is_cached() -> None:
    """Granite Switch's router is one more layer of one head."""
    layers = _layers("graniteswitch")
    assert len(layers) == 5
    assert layers[4].caches == (FullCache(n_embd_k_gqa=16, n_embd_v_gqa=16, n_embd_v_gqa_max=32),)
    assert not layers[4].is_nextn
