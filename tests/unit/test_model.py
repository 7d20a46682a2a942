"""Models from headers: figures, warnings, and files that are no language model."""

from __future__ import annotations

from typing import Any

import pytest

from offload.arch import ARCHS
from offload.errors import GGUFError, UnsupportedModelError
from offload.gguf import SkippedArray, Value
from offload.model import Role, make_model
from tests.model_headers import info, model_header

MOE: dict[str, Any] = {
    "expert_count": 8, "expert_used_count": 2, "nextn_predict_layers": 1,
}  # fmt: skip
MOE_TENSORS = (
    info("token_embd.weight", 64, 100),
    info("output.weight", 64, 100),
    *(info(f"blk.{il}.attn_q.weight", 64, 64) for il in range(4)),
    *(info(f"blk.{il}.ffn_up_exps.weight", 64, 32, 8) for il in (1, 2, 3)),
)


def _codes(arch: str, **keys: Any) -> list[str]:
    return [code for code, _ in make_model(model_header(arch, MOE_TENSORS, **keys)).warnings]


def test_figures() -> None:
    """What the model is called, how large it is, and which experts could move."""
    model = make_model(model_header("glm4moe", MOE_TENSORS, general__name="A model", **MOE))
    assert (model.arch, model.name, model.path) == ("glm4moe", "A model", "made-up.gguf")
    assert (model.n_layer, model.n_layer_nextn, model.n_embd) == (4, 1, 64)
    assert (model.n_expert, model.n_expert_used, model.n_vocab) == (8, 2, 100)
    assert model.n_ctx_train == 8192
    assert model.size_bytes == sum(t.n_bytes for t in MOE_TENSORS)
    expert_bytes = 64 * 32 * 8 * 2
    assert model.expert_bytes == 2 * expert_bytes
    assert model.expert_layers == (1, 2)
    assert [t.il for t in model.expert_tensors] == [1, 2]
    assert model.tensor_names == tuple(t.name for t in MOE_TENSORS)
    assert model.token_embedding.role is Role.INPUT
    assert model.warnings == ()


@pytest.mark.parametrize(
    ("keys", "n_vocab"),
    [
        ({}, 100),
        ({"vocab_size": None}, 77),
        ({"tokenizer__ggml__tokens": SkippedArray(element_type="str", length=99)}, 99),
    ],
)
def test_vocabulary(keys: dict[str, Any], n_vocab: int) -> None:
    """Its tokens, else the key, else the rows of the embedding."""
    header = model_header("llama", (info("token_embd.weight", 64, 77),), **keys)
    assert make_model(header).n_vocab == n_vocab


@pytest.mark.parametrize(
    ("arch", "names", "is_tied"),
    [
        ("gemma3", ("token_embd.weight",), True),
        ("gemma3", ("token_embd.weight", "output.weight"), False),
        ("bert", ("token_embd.weight",), False),
        ("bitnet", ("token_embd.weight",), False),
        ("llama", ("blk.0.attn_q.weight",), False),
    ],
)
def test_tied_output(arch: str, names: tuple[str, ...], is_tied: bool) -> None:
    """Without an output matrix the embeddings serve, except in models without an output."""
    model = make_model(model_header(arch, tuple(info(name, 64, 2) for name in names)))
    assert model.output_is_tied == is_tied


def test_tied_output_on_the_host() -> None:
    """Gemma 4 asks for its output first, so that even the host holds the matrix twice."""
    keys: dict[str, Any] = {
        "attention__sliding_window": 64, "attention__sliding_window_pattern": (1, 1, 0, 1),
    }  # fmt: skip
    assert make_model(model_header("gemma4", **keys)).tied_output_is_copied
    assert not make_model(model_header("gemma3")).tied_output_is_copied


def test_rope_layers() -> None:
    """Gemma 4 rotates its windowed layers without a frequency table."""
    keys: dict[str, Any] = {
        "attention__sliding_window": 64, "attention__sliding_window_pattern": (1, 1, 0, 1),
        "nextn_predict_layers": 1,
    }  # fmt: skip
    assert make_model(model_header("gemma4", **keys)).rope_layers == (2,)
    assert make_model(model_header("mimo2", **keys)).rope_layers == (0, 1, 2)
    assert make_model(model_header("step35", **keys)).rope_layers == (0, 1, 2, 3)


def test_grok_has_no_flash_attention() -> None:
    """llama.cpp switches it off whatever the user says."""
    assert not make_model(model_header("grok")).has_flash_attn
    assert make_model(model_header("llama")).has_flash_attn


def test_unknown_architectures_are_guessed() -> None:
    """A newer model is planned as plain attention, and the plan says so."""
    model = make_model(model_header("llama9", MOE_TENSORS, expert_count=8, expert_used_count=2))
    assert [code for code, _ in model.warnings] == ["unknown-arch"]
    assert [layer.kind for layer in model.layers] == ["full"] * 4
    assert len(model.expert_tensors) == 3


def test_warnings() -> None:
    """Drafts, MTP blocks loaded in part, and experts in the old layout are told."""
    assert _codes("eagle3") == ["draft-model"]
    assert _codes("hy_v3", **MOE) == ["mtp-partly-loaded"]
    assert _codes("glm4moe", **MOE) == []
    header = model_header("glm4moe", (info("blk.3.attn_q.weight", 64, 64),), **MOE)
    assert [code for code, _ in make_model(header).warnings] == ["draft-model"]
    header = model_header("llama", (info("blk.0.ffn_up.3.weight", 64, 64),))
    assert [code for code, _ in make_model(header).warnings] == ["legacy-experts"]


@pytest.mark.parametrize(
    ("arch", "keys", "what"),
    [
        ("clip", {}, "vision encoder"),
        ("llama", {"general__type": "mmproj"}, "projector"),
        ("llama", {"general__type": "adapter"}, "adapter"),
        ("llama", {"general__type": "imatrix"}, "importance matrix"),
        ("flux", {"block_count": None}, "no layers"),
        ("x" * 1000, {"block_count": None}, "no layers"),
    ],
)
def test_no_language_model(arch: str, keys: dict[str, Any], what: str) -> None:
    """Other files are refused in one line that says what they are."""
    with pytest.raises(UnsupportedModelError, match=what) as caught:
        make_model(model_header(arch, **keys))
    text = str(caught.value)
    assert text.startswith("made-up.gguf: ")
    assert len(text) < 300


def test_vocabulary_alone() -> None:
    """A file without tensors cannot be placed."""
    with pytest.raises(UnsupportedModelError, match="without weights"):
        make_model(model_header("llama", ()))


@pytest.mark.parametrize("value", [None, 7, ""])
def test_no_architecture(value: Value | None) -> None:
    """A file that names no architecture is refused."""
    with pytest.raises(GGUFError) as caught:
        make_model(model_header("llama", general__architecture=value))
    assert caught.value.key == "general.architecture"


def test_all_architectures() -> None:
    """A header with every key any of them needs makes a model of each."""
    keys: dict[str, Any] = {
        "ssm__conv_kernel": 4, "ssm__inner_size": 128, "ssm__state_size": 16,
        "ssm__time_step_rank": 8, "ssm__group_count": 2, "wkv__head_size": 16,
        "kda__head_dim": 8, "shortconv__l_cache": 3, "attention__sliding_window": 64,
        "attention__sliding_window_pattern": (1, 1, 0, 1), "attention__indexer__key_length": 128,
        "attention__indexer__kpool": 4, "attention__indexer__types": (1, 0, 0, 1),
        "attention__compress_ratios": (4,) * 4, "attention__key_length_mla": 24,
        "attention__value_length_mla": 16, "attention__kv_lora_rank": 32,
    }  # fmt: skip
    for name in ARCHS:
        model = make_model(model_header(name, **keys))
        assert len(model.layers) == model.n_layer, name
