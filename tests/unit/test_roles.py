"""Roles and homes of tensors, from names as converters write them."""

from __future__ import annotations

import pytest

from offload.ggml import TYPES_BY_NAME
from offload.gguf import TensorInfo
from offload.roles import Role, Tensor, assign_roles


def _assign(
    *names: str, arch: str = "qwen3moe", n_layer: int = 4, skipped: int = 0
) -> dict[str, Tensor]:
    infos = [
        TensorInfo(name=name, type=TYPES_BY_NAME["F32"], shape=(32,), offset_bytes=0, n_bytes=128)
        for name in names
    ]
    tensors = assign_roles(infos, arch=arch, n_layer=n_layer, n_layer_skipped=skipped)
    return {tensor.name: tensor for tensor in tensors}


@pytest.mark.parametrize(
    ("name", "role", "part"),
    [
        ("blk.3.ffn_up_exps.weight", Role.EXPERT, "weight"),
        ("blk.3.ffn_gate_up_exps.bias", Role.EXPERT, "bias"),
        ("blk.3.ffn_down_chexps.weight", Role.EXPERT, "weight"),
        ("blk.3.ffn_down_exps.scale", Role.EXPERT, "scale"),
        ("blk.3.ffn_norm_exps.weight", Role.NORM, "weight"),
        ("blk.3.ffn_down_shexp.weight", Role.SHARED_EXPERT, "weight"),
        ("blk.3.ffn_gate_inp_shexp.weight", Role.SHARED_EXPERT, "weight"),
        ("blk.3.ffn_gate_inp.weight", Role.ROUTER, "weight"),
        ("blk.3.exp_probs_b.bias", Role.ROUTER, "bias"),
        ("blk.3.attn_q_a_norm.weight", Role.NORM, "weight"),
        ("blk.3.attn_kv_b.weight", Role.ATTENTION, "weight"),
        ("blk.3.attn_sinks.weight", Role.ATTENTION, "weight"),
        ("blk.3.indexer.k_proj.weight", Role.ATTENTION, "weight"),
        ("blk.3.ssm_conv1d.weight", Role.RECURRENT, "weight"),
        ("blk.3.ssm_a", Role.RECURRENT, "weight"),
        ("blk.3.ffn_up.weight", Role.FFN, "weight"),
        ("blk.3.nextn.eh_proj.weight", Role.OTHER, "weight"),
        ("token_embd.weight", Role.INPUT, "weight"),
        ("per_layer_token_embd.weight", Role.INPUT, "weight"),
        ("output.weight", Role.OUTPUT, "weight"),
        ("output_norm.weight", Role.OUTPUT, "weight"),
    ],
)
def test_roles(name: str, role: Role, part: str) -> None:
    """Each name has the role its layer of the graph gives it."""
    tensor = _assign(name)[name]
    assert (tensor.role, tensor.part) == (role, part)


def test_homes() -> None:
    """Input stays on the host, output goes with the output layer, blocks with their owner."""
    tensors = _assign("token_embd.weight", "output.weight", "blk.2.attn_q.weight")
    assert [t.home for t in tensors.values()] == ["input", "output", "layer"]
    assert [t.il for t in tensors.values()] == [None, None, 2]


def test_mtp_blocks_are_not_loaded() -> None:
    """The last blocks are skipped, except what one architecture loads all the same."""
    names = ("blk.2.attn_q.weight", "blk.3.attn_q.weight", "blk.3.exp_probs_b.bias")
    assert [t.loaded for t in _assign(*names, skipped=1).values()] == [True, False, False]
    dsa = _assign(*names, arch="glm-dsa", skipped=1)
    assert [t.loaded for t in dsa.values()] == [True, False, True]


def test_frequency_tables_are_copied_and_other_tables_belong_to_block_0() -> None:
    """rope_freqs is duplicated per device; per-layer projections are created with block 0."""
    tensors = _assign("rope_freqs.weight", "per_layer_model_proj.weight")
    assert tensors["rope_freqs.weight"].duplicated
    assert tensors["per_layer_model_proj.weight"].il == 0


def test_one_name_two_meanings() -> None:
    """token_embd_norm is the output norm of lfm2 and an embedding norm elsewhere."""
    name = "token_embd_norm.weight"
    assert _assign(name, arch="lfm2moe")[name].home == "output"
    assert _assign(name, arch="nomic-bert-moe")[name].home == "layer"
