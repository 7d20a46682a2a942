"""Roles and homes of tensors, from names as converters write them."""

from __future__ import annotations

import pytest

from offload.arch import ARCHS
from offload.roles import LAZY_MIN_BYTES, Role, Tensor, assign_roles, role_of_stem
from tests.model_headers import info

# LLM_TENSOR_NAMES of src/llama-arch.cpp, b11434, without block and part, whose role is OTHER
OTHER = frozenset(
    "altup_correct_coef altup_correct_scale altup_predict_coef altup_router conv1 conv2 conv1d dw"
    " gamma hc_attn_base hc_attn_down hc_attn_fn hc_attn_inject hc_attn_scale hc_attn_up"
    " hc_ffn_base hc_ffn_down hc_ffn_fn hc_ffn_inject hc_ffn_scale hc_ffn_up hrm.z_l_init inp_gate"
    " laurel_l laurel_r layer_output_scale nextn.eh_proj nextn.embed_tokens nextn.hc_head_down"
    " nextn.hc_head_up nextn.pre_projection nextn.shared_head_head per_layer_model_proj ple_conv1d"
    " ple_key ple_value proj pw1 pw2 rope_factors_long rope_factors_short rope_freqs"
    " attn_res_score ffn_res_score".split()
)


def _assign(
    *names: str, arch: str = "qwen3moe", n_layer: int = 4, n_nextn: int = 0
) -> dict[str, Tensor]:
    infos = [info(name, 32, type_name="F32") for name in names]
    tensors = assign_roles(infos, arch=ARCHS[arch], n_layer=n_layer, n_layer_nextn=n_nextn)
    return {tensor.name: tensor for tensor in tensors}


@pytest.mark.parametrize(
    ("name", "role", "part"),
    [
        ("blk.3.ffn_up_exps.weight", Role.EXPERT, "weight"),
        ("blk.3.ffn_gate_up_exps.bias", Role.EXPERT, "bias"),
        ("blk.3.ffn_down_chexps.weight", Role.EXPERT, "weight"),
        ("blk.3.ffn_down_exps.scale", Role.EXPERT, "scale"),
        ("blk.3.ffn_down_exps.input_scale", Role.EXPERT, "input_scale"),
        ("blk.3.ffn_up.7.weight", Role.EXPERT, "weight"),
        ("blk.3.ffn_norm_exps.weight", Role.NORM, "weight"),
        ("blk.3.ffn_down_shexp.weight", Role.SHARED_EXPERT, "weight"),
        ("blk.3.ffn_gate_inp_shexp.weight", Role.SHARED_EXPERT, "weight"),
        ("blk.3.ffn_gate_inp.weight", Role.ROUTER, "weight"),
        ("blk.3.exp_probs_b.bias", Role.ROUTER, "bias"),
        ("blk.3.exp_probs_b", Role.ROUTER, "weight"),
        ("blk.3.ffn_latent_up.weight", Role.FFN, "weight"),
        ("blk.3.attn_q_a_norm.weight", Role.NORM, "weight"),
        ("blk.3.attn_norm_2.weight", Role.NORM, "weight"),
        ("blk.3.attn_q.bias", Role.ATTENTION, "bias"),
        ("blk.3.attn_kv_b.weight", Role.ATTENTION, "weight"),
        ("blk.3.attn_sinks.weight", Role.ATTENTION, "weight"),
        ("blk.3.attn_q.lora_a", Role.ATTENTION, "lora_a"),
        ("blk.3.indexer.k_proj.weight", Role.ATTENTION, "weight"),
        ("blk.3.indexer_compressor_kv.weight", Role.ATTENTION, "weight"),
        ("blk.3.ssm_conv1d.weight", Role.RECURRENT, "weight"),
        ("blk.3.ssm_a", Role.RECURRENT, "weight"),
        ("blk.3.ssm_norm.weight", Role.NORM, "weight"),
        ("blk.3.time_mix_key.weight", Role.RECURRENT, "weight"),
        ("blk.3.time_mix_ln.weight", Role.NORM, "weight"),
        ("blk.3.shortconv.in_proj.weight", Role.RECURRENT, "weight"),
        ("blk.3.ffn_up.weight", Role.FFN, "weight"),
        ("blk.3.ffn.act.scales", Role.FFN, "scales"),
        ("blk.3.nextn.eh_proj.weight", Role.OTHER, "weight"),
        ("dec.blk.3.cross_attn_q.weight", Role.ATTENTION, "weight"),
        ("token_embd.weight", Role.INPUT, "weight"),
        ("per_layer_token_embd.weight", Role.INPUT, "weight"),
        ("output.weight", Role.OUTPUT, "weight"),
        ("output_norm.weight", Role.OUTPUT, "weight"),
        ("cls.output.bias", Role.OUTPUT, "bias"),
        ("decision.field_norm.weight", Role.OUTPUT, "weight"),
        ("something_new.weight", Role.OTHER, "weight"),
    ],
)
def test_roles(name: str, role: Role, part: str) -> None:
    """Each name has the role its part of the graph gives it."""
    tensor = _assign(name)[name]
    assert (tensor.role, tensor.part) == (role, part)


def test_few_stems_are_other() -> None:
    """What is neither attention, experts nor the like is listed, not forgotten."""
    assert {role_of_stem(stem) for stem in OTHER} == {Role.OTHER}


def test_homes() -> None:
    """Input stays on the host, output goes with the output layer, blocks with their owner."""
    tensors = _assign("token_embd.weight", "output.weight", "blk.2.attn_q.weight")
    assert [t.home for t in tensors.values()] == ["input", "output", "layer"]
    assert [t.il for t in tensors.values()] == [None, None, 2]


@pytest.mark.parametrize(
    "name", ["token_embd_norm.weight", "per_layer_model_proj.weight", "hrm.z_l_init", "conv1d.bias"]
)
def test_loose_tensors_of_the_first_block(name: str) -> None:
    """What stands outside the blocks but is no input goes with block 0."""
    tensor = _assign(name)[name]
    assert (tensor.home, tensor.il, tensor.loaded) == ("layer", 0, True)


def test_lfm2_misnames_its_output_norm() -> None:
    """Its `token_embd_norm` is the norm before the output."""
    name = "token_embd_norm.weight"
    assert _assign(name, arch="lfm2moe")[name].home == "output"


def test_blocks_beyond_the_last_layer_are_the_heads() -> None:
    """A decision head's blocks go with the output (`llama_model_base::create_tensor`)."""
    name = "dec.blk.4.attn_q.weight"
    tensor = _assign(name)[name]
    assert (tensor.home, tensor.il) == ("output", None)


@pytest.mark.parametrize("name", ["ffn_up_exps.weight", "blk.4.ffn_up_exps.weight"])
def test_routed_experts_stand_in_layers(name: str) -> None:
    """Nothing outside the layers is called a routed expert: it could not be moved."""
    assert _assign(name)[name].role is Role.OTHER


@pytest.mark.parametrize("name", ["masked_embd_ordering", "dec.blk.0.cross_attn_rel_b.weight"])
def test_unused_tensors(name: str) -> None:
    """Tensors no graph uses are never loaded."""
    assert not _assign(name)[name].loaded


def test_frequency_tables_are_copied() -> None:
    """They belong to no single layer: every device that rotates needs one."""
    tensor = _assign("rope_freqs.weight")["rope_freqs.weight"]
    assert (tensor.duplicated, tensor.il, tensor.home) == (True, None, "layer")


def test_mtp_blocks_are_skipped() -> None:
    """Without a draft nothing of an MTP block is loaded."""
    tensors = _assign("blk.3.attn_q.weight", "blk.4.attn_q.weight", n_layer=5, n_nextn=1)
    assert [t.loaded for t in tensors.values()] == [True, False]


@pytest.mark.parametrize(
    ("arch", "kept"),
    [
        ("glm4moe", set()),
        ("glm-dsa", {"exp_probs_b.bias"}),
        ("cohere2moe", {"nextn.embed_tokens.weight"}),
        ("hy_v3", {"ffn_up_exps.weight", "exp_probs_b.bias", "nextn.embed_tokens.weight"}),
        (
            "step35",
            {
                "ffn_up_exps.weight", "exp_probs_b.bias", "nextn.embed_tokens.weight",
                "attn_gate.weight",
            },
        ),
        (
            "gemma4-assistant",
            {
                "attn_q.weight", "attn_gate.weight", "ffn_up_exps.weight", "exp_probs_b.bias",
                "nextn.embed_tokens.weight",
            },
        ),
    ],
)  # fmt: skip
def test_some_mtp_blocks_are_loaded_in_part(arch: str, kept: set[str]) -> None:
    """Some architectures forget the skip flag on parts of the block, which llama.cpp loads."""
    stems = (
        "attn_q.weight", "attn_gate.weight", "ffn_up_exps.weight", "exp_probs_b.bias",
        "nextn.embed_tokens.weight",
    )  # fmt: skip
    tensors = _assign(*(f"blk.3.{stem}" for stem in stems), arch=arch, n_nextn=1)
    assert {name.split(".", 2)[2] for name, t in tensors.items() if t.loaded} == kept


def test_large_per_layer_embeddings_stay_on_disk() -> None:
    """Above 4 GiB they are read row by row, where the architecture marks them."""
    size = LAZY_MIN_BYTES // 2
    infos = [info("per_layer_token_embd.weight", n, 1) for n in (size, size + 1)]
    for arch, expected in (("gemma4", [False, True]), ("gemma3n", [False, False])):
        tensors = assign_roles(infos, arch=ARCHS[arch], n_layer=1, n_layer_nextn=0)
        assert [t.lazy for t in tensors] == expected
