"""Hyper-parameters: the file's values, llama.cpp's defaults, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from offload.arch import ARCHS, UNKNOWN
from offload.errors import GGUFError
from offload.hparams import HParams, make_hparams
from offload.metadata import Metadata
from tests.model_headers import model_header


def _read(arch: str, names: tuple[str, ...] = (), **keys: Any) -> HParams:
    header = model_header(arch, **keys)
    metadata = Metadata(header.metadata, arch, header.path)
    return make_hparams(metadata, ARCHS.get(arch, UNKNOWN), n_vocab=100, tensor_names=names)


def _refusal(arch: str, **keys: Any) -> str:
    with pytest.raises(GGUFError) as caught:
        _read(arch, **keys)
    return caught.value.key


def test_scalars_stand_for_every_layer() -> None:
    """One head count serves all layers; head sizes follow from the width."""
    hp = _read("llama")
    assert (hp.n_head, hp.n_head_kv, hp.n_ff) == ((4,) * 4, (2,) * 4, (128,) * 4)
    assert (hp.n_embd_head_k_full, hp.n_embd_head_v_full) == (16, 16)
    assert (hp.n_embd_k_gqa(0), hp.n_embd_v_gqa(3)) == (32, 32)
    assert (hp.n_layer_all, hp.n_layer, hp.n_layer_nextn) == (4, 4, 0)


def test_values_per_layer() -> None:
    """Heads and widths may differ from layer to layer; the widest values are known."""
    hp = _read(
        "deci", attention__head_count=(4, 2, 4, 4), attention__head_count_kv=(4, 0, 2, 1),
        feed_forward_length=(8, 16, 0, 8),
    )  # fmt: skip
    assert [hp.n_embd_k_gqa(il) for il in range(4)] == [64, 0, 32, 16]
    assert hp.n_embd_v_gqa_max == 64
    assert hp.n_ff == (8, 16, 0, 8)


def test_kv_heads_default_to_heads() -> None:
    """Without `head_count_kv` every head has keys and values of its own."""
    assert _read("llama", attention__head_count_kv=None).n_head_kv == (4,) * 4


def test_head_sizes_from_the_file() -> None:
    """Given sizes win, and those of windowed layers default to the full ones."""
    hp = _read("llama", attention__key_length=24, attention__value_length=40)
    assert (hp.n_embd_head_k_swa, hp.n_embd_head_v_swa) == (24, 40)
    hp = _read(
        "gemma4", attention__sliding_window=512, attention__key_length=32,
        attention__value_length=32, attention__key_length_swa=16,
        attention__value_length_swa=16, attention__sliding_window_pattern=(1, 1, 1, 0),
    )  # fmt: skip
    assert [hp.n_embd_head_k(il) for il in range(4)] == [16, 16, 16, 32]


def test_experts() -> None:
    """Counts and widths of experts, used ones by layer."""
    hp = _read(
        "qwen3moe", expert_count=8, expert_used_count=2, expert_feed_forward_length=(1, 2, 3, 4)
    )
    assert (hp.n_expert, hp.n_expert_used, hp.n_ff_exp) == (8, (2,) * 4, (1, 2, 3, 4))


@pytest.mark.parametrize("arch", ["hunyuan-dense", "hunyuan_vl"])
def test_one_expert_is_none(arch: str) -> None:
    """Some dense models are converted with one expert, which llama.cpp forgets."""
    assert _read(arch, expert_count=1, expert_used_count=1).n_expert == 0


@pytest.mark.parametrize(
    ("keys", "layers", "n_swa"),
    [
        ({"attention__sliding_window": 128}, (1, 0, 1, 0), 128),
        ({"attention__sliding_window": 128, "attention__sliding_window_pattern": 4}, (1, 1, 1, 0),
         128),
        ({"attention__sliding_window": 128, "attention__sliding_window_pattern": 0}, (1, 1, 1, 1),
         128),
        ({"attention__sliding_window": 128, "attention__sliding_window_pattern": 1}, (0, 0, 0, 0),
         128),
        ({"attention__sliding_window": 128,
          "attention__sliding_window_pattern": (False, True, False, False)}, (0, 1, 0, 0), 128),
    ],
)  # fmt: skip
def test_window_period(keys: dict[str, Any], layers: tuple[int, ...], n_swa: int) -> None:
    """The hard-coded period (2 for gpt-oss) gives way to the file's, or to its list of layers."""
    hp = _read("gpt-oss", **keys)
    assert hp.is_swa == tuple(bool(value) for value in layers)
    assert (hp.n_swa, hp.swa_type) == (n_swa, "standard")


def test_window_of_hyper_connected_drafts() -> None:
    """A DFlash draft of DeepSeek 4's kind lists no pattern: every layer has the window."""
    hp = _read("dflash", hyper_connection__count=4, attention__sliding_window=128)
    assert (hp.n_swa, hp.is_swa) == (128, (True,) * 4)
    assert _refusal("dflash", hyper_connection__count=4).endswith("attention.sliding_window")
    assert _read("dflash").is_swa == (False,) * 4
    assert _refusal("dflash", attention__sliding_window=128).endswith("sliding_window_pattern")


def test_window_dense_first() -> None:
    """Some patterns begin with the layer that sees everything."""
    hp = _read("cohere2moe", attention__sliding_window=128)
    assert hp.is_swa == (False, True, True, True)


@pytest.mark.parametrize(
    ("arch", "keys", "n_swa"),
    [
        ("afmoe", {}, 0),
        ("afmoe", {"attention__sliding_window": 0}, 0),
        ("afmoe", {"attention__sliding_window": 64}, 64),
        ("llama4", {}, 8192),
        ("llama4", {"attention__sliding_window": 0}, 0),
        ("llama4", {"attention__sliding_window": 64}, 8192),
        ("smallthinker", {"attention__sliding_window": 64}, 4096),
        ("gemma2", {}, 4096),
        ("gemma2", {"attention__sliding_window": 64}, 64),
        ("exaone4", {"attention__sliding_window": 64}, 0),
        ("exaone4", {"attention__sliding_window": 64, "block_count": 64}, 64),
        ("phi3", {"attention__sliding_window": 64}, 0),
        ("llama", {"attention__sliding_window": 64}, 0),
        ("a-new-one", {"attention__sliding_window": 64}, 0),
    ],
)
def test_window_sizes(arch: str, keys: dict[str, Any], n_swa: int) -> None:
    """Required, optional, overridden or ignored, as the architecture has it."""
    hp = _read(arch, **keys)
    assert hp.n_swa == n_swa
    assert any(hp.is_swa) == (n_swa > 0)


def test_mtp_blocks_have_no_window() -> None:
    """A period covers the trunk only."""
    hp = _read("exaone-moe", attention__sliding_window=64, nextn_predict_layers=1)
    assert hp.is_swa == (True, True, True, False)
    assert hp.n_layer == 3


@pytest.mark.parametrize(
    ("arch", "layers"),
    [("qwen3next", (1, 1, 1, 0)), ("minimax-01", (1, 1, 1, 1))],
)
def test_interval_of_full_attention(arch: str, layers: tuple[int, ...]) -> None:
    """Every fourth (or eighth) layer attends, the rest keep a state."""
    hp = _read(arch, **SSM)
    assert hp.is_recr == tuple(bool(value) for value in layers)


SSM: dict[str, Any] = {
    "ssm__conv_kernel": 4, "ssm__inner_size": 128, "ssm__state_size": 16,
    "ssm__time_step_rank": 8, "ssm__group_count": 2,
}  # fmt: skip


def test_recurrent_layers_from_the_file() -> None:
    """The file's interval or list wins."""
    assert _read("qwen35moe", full_attention_interval=2, **SSM).is_recr == (
        True, False, True, False,
    )  # fmt: skip
    listed = _read("qwen35moe", attention__recurrent_layers=(False, True, True, False), **SSM)
    assert listed.is_recr == (False, True, True, False)


def test_no_kv_heads_means_recurrent() -> None:
    """In hybrids of Mamba's kind a layer without KV heads keeps a state."""
    heads = (0, 2, 0, 2)
    assert _read("granitehybrid", attention__head_count_kv=heads, **SSM).is_recr == (
        True, False, True, False,
    )  # fmt: skip
    hp = _read(
        "nemotron_h_moe", attention__head_count_kv=heads, feed_forward_length=(0, 0, 128, 0), **SSM
    )
    assert hp.is_recr == (True, False, False, False)


@pytest.mark.parametrize(
    ("arch", "keys", "n_embd_r", "n_embd_s"),
    [
        # (d_conv - 1) * (d_inner + 2 * n_group * d_state), d_state * d_inner
        ("mamba2", SSM, 3 * (128 + 2 * 2 * 16), 16 * 128),
        # without groups
        ("mamba", SSM, 3 * 128, 16 * 128),
        # two token shifts of the width; width times head size
        ("rwkv6", {"wkv__head_size": 32}, 2 * 64, 64 * 32),
        ("arwkv7", {"wkv__head_size": 32, "token_shift_count": 1}, 64, 64 * 32),
        ("lfm2", {"shortconv__l_cache": 3}, 64 * 2, 0),
        # q, k and v convolutions; head size squared for every head
        ("kimi-linear", {"kda__head_dim": 32, "ssm__conv_kernel": 4}, 3 * 3 * 4 * 32,
         32 * 32 * 4),
        ("minimax-01", {}, 0, 16 * 16 * 4),
    ],
)  # fmt: skip
def test_state_sizes(arch: str, keys: dict[str, Any], n_embd_r: int, n_embd_s: int) -> None:
    """`llama_hparams::n_embd_r` and `n_embd_s`, from the keys each architecture reads."""
    hp = _read(arch, **keys)
    assert (hp.n_embd_r, hp.n_embd_s) == (n_embd_r, n_embd_s)


def test_keys_that_are_not_read_size_nothing() -> None:
    """A key another architecture would read has no effect."""
    hp = _read("qwen3moe", wkv__head_size=32, kda__head_dim=32, shortconv__l_cache=3, **SSM)
    assert (hp.n_embd_r, hp.n_embd_s) == (0, 0)


def test_latent_attention() -> None:
    """MLA is in the keys, not in the architecture: old files lack them."""
    keys: dict[str, Any] = {
        "attention__kv_lora_rank": 32, "attention__key_length": 40, "attention__value_length": 32,
        "attention__head_count_kv": 1,
    }  # fmt: skip
    assert not _read("deepseek2", **keys).is_mla
    mla = _read("deepseek2", attention__key_length_mla=24, attention__value_length_mla=16, **keys)
    assert mla.is_mla
    assert mla.n_embd_k_gqa(0) == 40
    other = _read("qwen3moe", attention__key_length_mla=24, attention__value_length_mla=16, **keys)
    assert not other.is_mla


INDEXER: dict[str, Any] = {
    "attention__indexer__key_length": 128, "attention__indexer__head_count": 4,
    "attention__indexer__top_k": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "keys", "layers"),
    [
        ("deepseek32", {}, (1, 1, 1, 1)),
        ("glm-dsa", {}, (1, 1, 1, 1)),
        ("glm-dsa", {"context_length": 1 << 20, "block_count": 8}, (1, 1, 1, 0, 0, 0, 1, 0)),
        ("glm-dsa", {"attention__indexer__types": (1, 0, 0, 1)}, (1, 0, 0, 1)),
        ("minimax-m3", {"leading_dense_block_count": 3}, (0, 0, 0, 1)),
        ("hy_v4", {"attention__indexer__types": (1, 0, 1, 0)}, (1, 0, 1, 0)),
    ],
)
def test_indexer_layers(arch: str, keys: dict[str, Any], layers: tuple[int, ...]) -> None:
    """All, listed, or as the model's generation has it."""
    hp = _read(arch, **(INDEXER | keys))
    assert hp.is_indexer_full == tuple(bool(value) for value in layers)
    assert hp.indexer_head_size == 128


def test_optional_indexer() -> None:
    """Hy 4 checkpoints without a top-k have no indexer at all."""
    assert _read("hy_v4").indexer_head_size == 0
    assert _refusal("deepseek32") == "deepseek32.attention.indexer.key_length"


def test_pooled_indexer_rows() -> None:
    """Pooling keeps three slots a token (GLM) or two (Qwen), no pooling one."""
    kda: dict[str, Any] = {"kda__head_dim": 32, "ssm__conv_kernel": 4}
    glm = _read("glm5-next", attention__indexer__kpool=4, **INDEXER, **kda)
    assert glm.indexer_kpool_row == 3
    qwen = _read("qwen4exp", attention__compress_ratios=4, **INDEXER, **SSM)
    assert qwen.indexer_kpool_row == 2
    assert _read("qwen4exp", **INDEXER, **SSM).indexer_kpool_row == 1


def test_ngram_history() -> None:
    """(kernel - 1) tokens of the n-gram's stride, for every stream, on the listed layer."""
    hp = _read(
        "qwen4exp", ple__layers=(1,), ple__conv_kernel=4, ple__ngram_size=3,
        hyper_connection__count=2, **INDEXER, **SSM,
    )  # fmt: skip
    assert hp.ple_conv_state == 3 * 3 * 2 * 64
    assert hp.is_ple == (False, True, False, False)


def test_compress_ratios() -> None:
    """DeepSeek V4 lists a ratio for each layer, and may list more."""
    keys: dict[str, Any] = {"attention__sliding_window": 128, **INDEXER}
    hp = _read("deepseek4", attention__compress_ratios=(0, 4, 128, 4, 0), **keys)
    assert hp.compress_ratios == (0, 4, 128, 4)
    assert all(hp.is_swa)
    for ratios in (None, (0, 4, 128), 4):
        key = _refusal("deepseek4", attention__compress_ratios=ratios, **keys)
        assert key == "deepseek4.attention.compress_ratios"


@pytest.mark.parametrize(("names", "n_nextn"), [((), 0), (("blk.3.nextn.eh_proj.weight",), 1)])
def test_mtp_key_without_mtp_tensors(names: tuple[str, ...], n_nextn: int) -> None:
    """DeepSeek V4 files may name MTP blocks they do not have."""
    hp = _read(
        "deepseek4", names, nextn_predict_layers=1, attention__sliding_window=128,
        attention__compress_ratios=(0,) * 4, **INDEXER,
    )  # fmt: skip
    assert hp.n_layer_nextn == n_nextn


def test_router_layer() -> None:
    """Granite Switch keeps one more layer of one head, which is no MTP block."""
    saved: dict[str, Any] = {"block_count": 5, "nextn_predict_layers": 1}
    for keys in ({}, saved):
        hp = _read("graniteswitch", **keys)
        assert (hp.n_layer_all, hp.n_layer_nextn, hp.router_layer) == (5, 0, 4)
        assert (hp.n_head, hp.n_head_kv) == ((4, 4, 4, 4, 1), (2, 2, 2, 2, 1))
        assert hp.n_ff == (128, 128, 128, 128, 0)


def test_loops() -> None:
    """Looped models run their blocks several times, each time with a cache of its own."""
    hp = _read("nanbeige", num_loops=3, attention__head_count_kv=(1, 2, 1, 2))
    assert hp.n_layer_all == 12
    assert hp.n_head_kv == (1, 2, 1, 2) * 3
    assert _refusal("nanbeige", num_loops=129) == "nanbeige.block_count"


def test_shared_kv_layers() -> None:
    """The last layers of Gemma 3n and 4 attend to earlier layers' caches."""
    window: dict[str, Any] = {
        "attention__sliding_window": 64, "attention__sliding_window_pattern": (1, 1, 0, 1),
    }  # fmt: skip
    assert _read("gemma3n", attention__sliding_window=64).n_layer_kv_from_start == 20
    assert _read("gemma4", attention__shared_kv_layers=1, **window).n_layer_kv_from_start == 3
    assert _read("gemma4", **window).n_layer_kv_from_start == 4
    for shared in (3, 4, 9):
        key = _refusal("gemma4", attention__shared_kv_layers=shared, **window)
        assert key == "gemma4.attention.shared_kv_layers"


@pytest.mark.parametrize(
    ("arch", "keys", "key"),
    [
        ("llama", {"block_count": 0}, "block_count"),
        ("llama", {"block_count": 513}, "block_count"),
        ("llama", {"block_count": 10**9}, "block_count"),
        ("llama", {"block_count": "4"}, "block_count"),
        ("llama", {"embedding_length": None}, "embedding_length"),
        ("llama", {"embedding_length": 0}, "embedding_length"),
        ("llama", {"embedding_length": 1 << 30}, "embedding_length"),
        ("llama", {"nextn_predict_layers": 5}, "nextn_predict_layers"),
        ("llama", {"attention__head_count": (4, 4, 4)}, "attention.head_count"),
        ("llama", {"attention__head_count_kv": (2, 2, 2, 2, 2)}, "attention.head_count_kv"),
        ("llama", {"attention__head_count": 1 << 20}, "attention.head_count"),
        ("llama", {"attention__causal": 1}, "attention.causal"),
        ("qwen3moe", {"expert_count": 1025}, "expert_count"),
        ("qwen3moe", {"expert_count": 4, "expert_used_count": 5}, "expert_used_count"),
        ("qwen3moe", {"expert_count": 4}, "expert_used_count"),
        ("qwen3moe", {"expert_used_count": 1}, "expert_used_count"),
        ("gpt-oss", {}, "attention.sliding_window"),
        ("gemma4", {"attention__sliding_window": 4}, "attention.sliding_window_pattern"),
        ("mamba", {}, "ssm.conv_kernel"),
        ("rwkv6", {}, "wkv.head_size"),
        ("lfm2", {"shortconv__l_cache": 0}, "shortconv.l_cache"),
        ("kimi-linear", {"ssm__conv_kernel": 4}, "kda.head_dim"),
        ("qwen3next", {"full_attention_interval": 0, **SSM}, "full_attention_interval"),
        ("dots3note", {"attention__sliding_window": 4, **INDEXER,
                       "attention__sliding_window_pattern": (1, 0)}, "attention.indexer.types"),
    ],
)  # fmt: skip
def test_refused(arch: str, keys: dict[str, Any], key: str) -> None:
    """What llama.cpp would stop at, or what no model can mean, is an error about its key."""
    assert _refusal(arch, **keys) == f"{arch}.{key}"
