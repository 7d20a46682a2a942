"""Readable and exact regexes for sets of tensor names."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from offload.name_regex import escape, name_regex, part_regex

DENSE = ("attn_q.weight", "attn_q_norm.weight", "ffn_norm.weight", "ffn_gate_inp.weight")
SHARED = ("ffn_up_shexp.weight", "ffn_down_shexp.weight")
EXPERTS = ("ffn_up_exps", "ffn_gate_exps", "ffn_down_exps")
WEIGHTS = tuple(f"{base}.weight" for base in EXPERTS)
BIASES = tuple(f"{base}.bias" for base in EXPERTS)


def blocks(layers: Iterable[int], parts: Iterable[str]) -> set[str]:
    """Names of these parts in these layers."""
    parts = tuple(parts)
    return {f"blk.{il}.{part}" for il in layers for part in parts}


def model(n_layer: int, *parts: str, n_dense: int = 0) -> list[str]:
    """Names of a model whose first layers have no experts."""
    names = {"token_embd.weight", "output.weight", "output_norm.weight"}
    names |= blocks(range(n_layer), (*DENSE, *SHARED)) | blocks(range(n_dense, n_layer), parts)
    return sorted(names)


@pytest.mark.parametrize(
    ("wanted", "names", "expected"),
    [
        (blocks(range(36), WEIGHTS), model(36, *WEIGHTS), "exps"),
        (blocks(range(3, 61), WEIGHTS), model(61, *WEIGHTS, n_dense=3), "exps"),
        (blocks(range(36), WEIGHTS), model(36, *WEIGHTS, *BIASES), r"exps\.weight"),
        (blocks(range(12), WEIGHTS), model(36, *WEIGHTS), r"blk\.(\d|1[01])\.ffn_.*exps"),
        (
            blocks(range(12), WEIGHTS),
            model(36, *WEIGHTS, *BIASES),
            r"blk\.(\d|1[01])\.ffn_.*exps\.weight",
        ),
        (
            blocks(range(36), WEIGHTS),
            model(36, *WEIGHTS, "ffn_norm_exps.weight"),
            "ffn_(up|down|gate)_exps",
        ),
        (
            blocks(range(9), WEIGHTS[:2]) | blocks((9,), WEIGHTS[:1]),
            model(36, *WEIGHTS),
            r"blk\.(\d\.ffn_up_exps|[0-8]\.ffn_gate_exps)",
        ),
        (
            blocks((5, 6, 7), WEIGHTS) | blocks((8,), (WEIGHTS[2], BIASES[2])),
            model(36, *WEIGHTS, *BIASES),
            r"blk\.([5-7]\.ffn_.*exps\.weight|8\.ffn_down_exps)",
        ),
        (
            # layers with down, some of them with up as well
            blocks(range(36), WEIGHTS[2:]) | blocks((3, 4), WEIGHTS[:1]),
            model(36, *WEIGHTS),
            r"blk\.(\d+\.ffn_down_exps|[34]\.ffn_up_exps)",
        ),
        (
            blocks((1,), ("ffn_up_exps.weight", "ffn_up_chexps.weight")),
            model(4, *WEIGHTS, "ffn_up_chexps.weight", "ffn_down_chexps.weight"),
            r"blk\.1\.ffn_up_(|ch)exps",
        ),
        (blocks((2,), ("attn_q.weight",)), model(4, *WEIGHTS), r"blk\.2\.attn_q\."),
        ({"output.weight"}, model(4, *WEIGHTS), r"output\.weight"),
        ({"output.weight"}, model(4, "attn_output.weight"), r"^output\.weight"),
        ({"token_embd.weight"}, [*model(4), "per_layer_token_embd.weight"], r"^token_embd"),
        (
            {"output.weight", *blocks((3,), WEIGHTS)},
            model(4, *WEIGHTS),
            r"output\.weight|blk\.3\.ffn_.*exps",
        ),
        ({"blk.0.ssm_a"}, ["blk.0.ssm_a", "blk.0.ssm_alpha.weight"], "ssm_a$"),
    ],
)
def test_recognisable(wanted: set[str], names: list[str], expected: str) -> None:
    """Common sets of tensors get the pattern an experienced user would write, or a shorter one."""
    assert name_regex(wanted, names) == expected


def test_layers_of_two_makes_share_one_product() -> None:
    """Fused and separate experts, or with and without biases, are one text where all go."""
    fused = ("ffn_gate_up_exps.weight", "ffn_down_exps.weight", "ffn_down_exps.bias")
    names = [*model(20, *WEIGHTS), *blocks(range(20, 40), fused)]
    wanted = blocks(range(15, 20), WEIGHTS) | blocks(range(20, 25), fused)
    assert name_regex(wanted, names) == r"blk\.(1[5-9]|2[0-4])\.ffn_.*exps"


def test_names_no_model_has() -> None:
    """Whatever the names are, the pattern is exact."""
    names = ["blk.1.a", "enc.blk.1.a", "blk.01.a", "blk.1.a.b", "x,=;'y", "blk.1.", "b\nc", "é.é"]
    for wanted in ({"blk.1.a"}, {"x,=;'y", "é.é"}, {"blk.01.a", "blk.1."}, {"b\nc"}, set(names)):
        pattern = name_regex(wanted, names)
        assert {name for name in names if re.search(pattern, name)} == wanted
        assert not set(pattern) & set(",=;' ")


def test_escape() -> None:
    """Nothing that ends a rule, a `-ot` value or a shell word is left in a pattern."""
    assert escape("blk.0.a-b_c") == r"blk\.0\.a-b_c"
    assert re.fullmatch(escape("".join(map(chr, range(128)))), "".join(map(chr, range(128))))
    assert not set(escape("".join(map(chr, range(128))))) & set(" ,=;'\"`!&<>~#%@\n")


def test_parts_are_matched_from_their_start() -> None:
    """`ffn_up` does not match inside another name, nor a longer name that begins alike."""
    assert part_regex({"attn_q.weight"}, {"attn_q_norm.weight", "attn_qkv.weight"}) == r"attn_q\."
    assert part_regex({"a.weight", "b.bias"}, {"a.bias", "b.weight"}) == r"(a\.weight|b\.bias)"
