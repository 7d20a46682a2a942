"""The table of architectures: whole, consistent, and right where sources are explicit."""

from __future__ import annotations

import pytest

from offload.arch import (
    ARCHS,
    UNKNOWN,
    Attended,
    Indexed,
    Memory,
    Pattern,
    Recurrence,
    State,
    WindowWhen,
)

# `llm_arch_is_recurrent` and `llm_arch_is_hybrid` of src/llama-arch.cpp, b11434
RECURRENT = "mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7".split()
HYBRID = (
    "jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next"
    " kimi-linear bailingmoe3 kimi-k3 glm5-next qwen35 qwen35moe qwen4exp minimax-01"
).split()

# the cases of `llama_model::create_memory` without a memory
WITHOUT_MEMORY = (
    "bert jina-bert-v2 jina-bert-v3 nomic-bert nomic-bert-moe neo-bert eurobert wavtokenizer-dec"
    " modern-bert gemma-embedding dream llada llada-moe rnd1 clef"
).split()


def test_every_architecture_stands_under_its_own_name() -> None:
    """llama.cpp b11434 knows 153 architectures besides clip."""
    assert len(ARCHS) == 153
    assert all(arch.name == name for name, arch in ARCHS.items())
    assert UNKNOWN not in ARCHS.values()


def test_recurrent_and_hybrid_are_as_llama_cpp_lists_them() -> None:
    """The memory class follows llama.cpp's own lists."""
    assert sorted(n for n, a in ARCHS.items() if a.memory is Memory.RECURRENT) == sorted(RECURRENT)
    hybrids = (Memory.HYBRID, Memory.HYBRID_INDEXED)
    assert sorted(n for n, a in ARCHS.items() if a.memory in hybrids) == sorted(HYBRID)
    assert sorted(n for n, a in ARCHS.items() if a.memory is Memory.NONE) == sorted(WITHOUT_MEMORY)


@pytest.mark.parametrize("name", [*RECURRENT, *HYBRID])
def test_layers_with_a_state_have_a_size(name: str) -> None:
    """Who keeps a state says which layers have one and which keys size it."""
    arch = ARCHS[name]
    assert arch.recurrence is not Recurrence.NEVER
    assert arch.state is not State.NONE


def test_plain_attention_has_no_state() -> None:
    """And who keeps none does not (clef, a head over a hybrid, keeps no memory at all)."""
    for name, arch in ARCHS.items():
        if name not in (*RECURRENT, *HYBRID, "clef"):
            assert arch.recurrence is Recurrence.NEVER, name
            assert arch.state is State.NONE, name
            assert arch.attended is Attended.NOT_RECURRENT, name


def test_windows_know_their_layers() -> None:
    """A window repeats with a period or says where the layers are listed."""
    for name, arch in ARCHS.items():
        if arch.window is None:
            continue
        assert (arch.window.period > 0) == (arch.window.pattern is Pattern.PERIOD), name
        if arch.window.when is WindowWhen.UNLESS_ZERO:
            assert arch.window.n_swa_fixed > 0, name


def test_sparse_attention_is_latent_except_msa() -> None:
    """DSA's indexer cache has keys only because the model's cache has."""
    for name, arch in ARCHS.items():
        if arch.memory in (Memory.DSA, Memory.DSA_WINDOWED):
            assert arch.is_mla, name
        if arch.indexed is not Indexed.ALL:
            assert arch.memory not in (Memory.ATTENTION, Memory.NONE), name
