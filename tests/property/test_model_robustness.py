"""Whatever a header says, it becomes a model or one error about it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from offload.arch import ARCHS
from offload.context import ContextOptions
from offload.errors import GGUFError, UnsupportedModelError
from offload.gguf import SkippedArray
from offload.model import make_model
from tests.model_headers import info, model_header

KEYS = (
    "block_count nextn_predict_layers embedding_length attention__head_count"
    " attention__head_count_kv attention__key_length attention__value_length feed_forward_length"
    " attention__key_length_swa attention__sliding_window attention__sliding_window_pattern"
    " attention__key_length_mla attention__value_length_mla attention__kv_lora_rank num_loops"
    " attention__shared_kv_layers attention__recurrent_layers full_attention_interval"
    " ssm__conv_kernel ssm__inner_size ssm__state_size ssm__time_step_rank ssm__group_count"
    " wkv__head_size token_shift_count shortconv__l_cache kda__head_dim expert_count"
    " expert_used_count leading_dense_block_count attention__indexer__key_length"
    " attention__indexer__top_k attention__indexer__types attention__indexer__kpool"
    " attention__compress_ratios ple__layers ple__conv_kernel ple__ngram_size"
    " hyper_connection__count vocab_size context_length attention__causal general__type"
    " general__name tokenizer__ggml__tokens"
).split()

small = st.integers(0, 8)
numbers = st.one_of(small, small, st.integers(-2, 1 << 40), st.booleans(), st.floats())
values = st.one_of(
    numbers,
    st.lists(numbers, max_size=9).map(tuple),
    st.lists(small, min_size=4, max_size=4).map(tuple),
    st.text(max_size=9),
    st.none(),
    st.builds(SkippedArray, element_type=st.just("u32"), length=st.integers(0, 1 << 40)),
)
names = st.one_of(
    st.sampled_from(
        ("token_embd.weight", "output.weight", "rope_freqs.weight", "blk.0.ffn_up_exps.weight",
         "blk.9999.ffn_up_exps.weight", "ffn_up_exps.weight", "blk.1.ffn_up.0.weight", "blk..x",
         "dec.blk.7.cross_attn_rel_b.weight", "blk.3.nextn.eh_proj.weight", "...", "blk.")
    ),
    st.text(min_size=1, max_size=20),
)  # fmt: skip


@given(
    arch=st.sampled_from((*ARCHS, "a-new-one")),
    keys=st.dictionaries(st.sampled_from(KEYS), values, max_size=24),
    tensor_names=st.lists(names, max_size=6, unique=True),
    options=st.builds(
        ContextOptions,
        n_ctx=st.integers(1, 1 << 20),
        n_parallel=st.integers(1, 256),
        n_ubatch=st.integers(0, 4096),
        kv_unified=st.booleans(),
        flash_attn=st.booleans(),
        swa_full=st.booleans(),
    ),
)
def test_any_metadata(
    arch: str, keys: dict[str, Any], tensor_names: list[str], options: ContextOptions
) -> None:
    """No value of any key makes anything but a model or a GGUFError or UnsupportedModelError."""
    header = model_header(arch, tuple(info(name, 32, 4) for name in tensor_names), **keys)
    try:
        model = make_model(header)
    except (GGUFError, UnsupportedModelError) as error:
        assert len(str(error)) < 600
        return
    assert len(model.layers) == model.n_layer <= 512
    assert len(model.tensors) == len(tensor_names)
    for layer in model.layers:
        for cache in layer.caches:
            assert all(0 <= n < 1 << 80 for n in cache.tensor_bytes(options))
    for tensor in model.tensors:
        assert tensor.il is None or 0 <= tensor.il < model.n_layer


@given(heads=st.lists(st.integers(0, 8), min_size=4, max_size=4), n_ctx=st.integers(1, 1 << 16))
def test_context_grows_with_the_context(heads: list[int], n_ctx: int) -> None:
    """More cells never take fewer bytes, in whatever layer."""
    keys: dict[str, Any] = {
        "attention__head_count_kv": tuple(heads),
        "attention__sliding_window": 512,
    }
    for layer in make_model(model_header("gemma2", **keys)).layers:
        for cache in layer.caches:
            small_one = sum(cache.tensor_bytes(ContextOptions(n_ctx=n_ctx)))
            assert small_one <= sum(cache.tensor_bytes(ContextOptions(n_ctx=n_ctx + 256)))
