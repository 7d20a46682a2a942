"""The catalogue says of real models what is publicly known of them."""

from __future__ import annotations

from collections import Counter

import gguf
import pytest

from offload.errors import UsageError
from offload.ggml import tensor_bytes
from offload.units import GIB, MIB
from tuner.shapes import SHAPES, Shape
from tuner.shapes.metadata import make_metadata
from tuner.shapes.recipes import RECIPES, choose_types
from tuner.shapes.tensors import ARCHS, make_tensors

_all_shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def _bytes(shape: Shape, recipe: str, part: str = "") -> int:
    tensors = make_tensors(shape)
    types = choose_types(shape, tensors, recipe)
    return sum(
        tensor_bytes(type_, t.shape)
        for t, type_ in zip(tensors, types, strict=True)
        if part in t.name
    )


@_all_shapes
def test_parameters_as_published(shape: Shape) -> None:
    """The tensors add up to the published number of parameters, to four digits."""
    if shape.n_params is None:
        pytest.skip("no exact figure is published")
    n = sum(t.n_elements for t in make_tensors(shape))
    assert n == pytest.approx(shape.n_params, rel=2e-4)


@pytest.mark.parametrize(
    ("name", "recipe", "gib"),
    [(s.name, recipe, gib) for s in SHAPES.values() for recipe, gib in s.size_gib.items()],
)
def test_sizes_as_published(name: str, recipe: str, gib: float) -> None:
    """The tensor bytes of a recipe are those llama.cpp prints for the public file."""
    assert _bytes(SHAPES[name], recipe) / GIB == pytest.approx(gib, abs=0.005)


def test_gpt_oss_120b_types_as_published() -> None:
    """The first public gpt-oss-120b lists 433 F32, 146 BF16 and 108 MXFP4 tensors."""
    shape = SHAPES["gpt-oss-120b"]
    types = choose_types(shape, make_tensors(shape), "MXFP4_BF16")
    assert Counter(t.name for t in types) == {"F32": 433, "BF16": 146, "MXFP4": 108}


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("qwen3.5-35b-a3b", 733), ("qwen3.5-35b-a3b-mtp", 753), ("qwen3-next-80b-a3b", 843),
        ("deepseek-v3", 1086), ("kimi-k2", 1096), ("glm-4.5-air", 803), ("qwen3-30b-a3b", 579),
    ],
)  # fmt: skip
def test_number_of_tensors(name: str, n: int) -> None:
    """Files have as many tensors as the public ones."""
    assert len(make_tensors(SHAPES[name])) == n


def test_case_study_experts() -> None:
    """The 119B of the case study has 1456 MiB of routed experts per layer, Q3_K and Q4_K."""
    shape = SHAPES["mistral-small-4-119b"]
    assert {_bytes(shape, shape.quant, f"blk.{il}.ffn_gate_exps") for il in range(36)} == {
        440 * MIB
    }
    assert _bytes(shape, shape.quant, "_exps.") == 36 * 1456 * MIB


@_all_shapes
def test_tensors_are_sound(shape: Shape) -> None:
    """Names are unique, dimensions positive, and every layer has attention or a state."""
    tensors = make_tensors(shape)
    names = [t.name for t in tensors]
    assert len(set(names)) == len(names)
    assert all(min(t.shape) > 0 and len(t.shape) <= 4 for t in tensors)
    for il in range(shape.n_layer_all):
        assert f"blk.{il}.attn_norm.weight" in names
        assert (f"blk.{il}.ssm_out.weight" in names) == shape.is_recurrent(il)
        assert (f"blk.{il}.ffn_down_exps.weight" in names) == shape.is_moe(il)


def test_layer_kinds() -> None:
    """Dense leads, interleaved experts, MTP blocks and window layers lie where they should."""
    assert [SHAPES["deepseek-v3"].is_moe(il) for il in range(4)] == [False, False, False, True]
    assert [SHAPES["llama-4-maverick"].is_moe(il) for il in range(4)] == [False, True] * 2
    assert [SHAPES["gpt-oss-20b"].is_swa(il) for il in range(4)] == [True, False] * 2
    mtp = SHAPES["qwen3.5-35b-a3b-mtp"]
    assert [mtp.is_recurrent(il) for il in (38, 39, 40)] == [True, False, False]
    assert SHAPES["glm-4.5-air"].n_layer_all == 47


@_all_shapes
def test_metadata_has_the_architecture_prefix(shape: Shape) -> None:
    """Every key outside `general.` carries the architecture; block_count includes MTP blocks."""
    metadata = make_metadata(shape)
    assert metadata["general.architecture"] == shape.arch
    assert all(k.startswith(("general.", f"{shape.arch}.")) for k in metadata)
    assert metadata[f"{shape.arch}.block_count"] == shape.n_layer + shape.n_layer_nextn


@_all_shapes
def test_every_recipe_fills_whole_blocks(shape: Shape) -> None:
    """No recipe gives a tensor a type whose blocks do not divide its rows."""
    tensors = make_tensors(shape)
    for recipe in RECIPES:
        for t, type_ in zip(tensors, choose_types(shape, tensors, recipe), strict=True):
            assert t.shape[0] % type_.block_size == 0, (recipe, t.name, type_.name)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r not in ("MXFP4_BF16", "Q3_K_MIX")])
def test_file_types_are_those_of_gguf(recipe: str) -> None:
    """general.file_type is the number that gguf-py knows by the same name."""
    known = gguf.LlamaFileType
    name = {"F32": "ALL_F32", "IQ3_S": "MOSTLY_IQ3_S"}.get(recipe, f"MOSTLY_{recipe}")
    if not hasattr(known, name):
        pytest.skip("this gguf-py does not list it")
    assert RECIPES[recipe][0] == known[name].value


def test_unknown_recipe() -> None:
    """A recipe that does not exist is refused by name, with those that do."""
    shape = SHAPES["qwen3-14b"]
    with pytest.raises(UsageError, match=r"no quantisation 'Q9_K'; one of F32, .*Q4_K_M"):
        choose_types(shape, make_tensors(shape), "Q9_K")


def test_catalogue_covers_the_architectures_it_can_build() -> None:
    """Every architecture with a tensor table has a model, and the other way round."""
    assert {s.arch for s in SHAPES.values()} == set(ARCHS)
    assert all(s.source for s in SHAPES.values())
