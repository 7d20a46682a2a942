"""`-ot` values as llama.cpp reads them."""

from __future__ import annotations

import pytest

from offload.errors import UsageError
from offload.rules import (
    Rule,
    cpu_moe_rule,
    make_rules,
    n_cpu_moe_rules,
    parse_overrides,
    render_overrides,
    replay,
)

NAMES = (
    "token_embd.weight",
    "blk.1.ffn_down_exps.weight",
    "blk.1.ffn_down_exps.bias",
    "blk.1.ffn_gate_inp.weight",
    "blk.10.ffn_down_exps.weight",
    "blk.10.ffn_down_shexp.weight",
)


def test_first_match_wins() -> None:
    """A later rule never moves what an earlier one placed."""
    rules = parse_overrides("blk.1.*bias=CUDA1,exps=CPU")
    placed = replay(rules, NAMES)
    assert placed["blk.1.ffn_down_exps.bias"] == "CUDA1"
    assert placed["blk.1.ffn_down_exps.weight"] == "CPU"
    assert "blk.10.ffn_down_shexp.weight" not in placed


def test_patterns_are_searched_anywhere() -> None:
    """`blk.1` finds blk.10 too: the trap people fall into is mirrored, not mended."""
    assert len(replay(parse_overrides("blk.1=CPU"), NAMES)) == 5


def test_value_is_split_at_commas_then_at_the_first_equals() -> None:
    """What follows the first `=` is the buffer type, whatever it holds."""
    assert parse_overrides("a=RPC0[127.0.0.1:50052],b=x=y") == (
        Rule(pattern="a", buffer_type="RPC0[127.0.0.1:50052]"),
        Rule(pattern="b", buffer_type="x=y"),
    )


@pytest.mark.parametrize("text", ["", "exps", "=CPU", "exps=", "a=CPU,", "a=CPU,,b=CPU"])
def test_what_is_no_override(text: str) -> None:
    """A missing pattern, `=` or buffer type is refused with the form to use."""
    with pytest.raises(UsageError, match="PATTERN=BUFFER"):
        parse_overrides(text)


def test_render_and_parse_are_inverse() -> None:
    """What is emitted reads back as the same rules."""
    rules = (Rule(pattern=r"blk\.1\.ffn_.*exps", buffer_type="CPU"),)
    assert parse_overrides(render_overrides(rules)) == rules


def test_llama_cpps_own_patterns() -> None:
    """-ncmoe and -cmoe move biases and fused or channel experts too, and no shared expert."""
    names = ["blk.0.ffn_gate_up_exps.weight", "blk.0.ffn_up_chexps.weight", *NAMES]
    assert len(replay((cpu_moe_rule(),), names)) == 5
    placed = replay(n_cpu_moe_rules(2), names)
    assert "blk.10.ffn_down_exps.weight" not in placed
    assert placed["blk.1.ffn_down_exps.bias"] == "CPU"


def test_tensors_outside_the_layers_cannot_be_moved() -> None:
    """No rule is made for a tensor that belongs to no layer."""
    with pytest.raises(UsageError, match="token_embd"):
        make_rules({"token_embd.weight": "CPU"}, NAMES)


def test_moving_nothing_needs_no_rules() -> None:
    """No tensors, no rules."""
    assert make_rules({}, NAMES) == ()


def test_all_experts_need_no_layer_numbers() -> None:
    """When every layer's experts move the rule names no layers."""
    moved = {name: "CPU" for name in NAMES if "_exps" in name}
    (rule,) = make_rules(moved, NAMES)
    assert "blk" not in rule.pattern
    assert replay((rule,), NAMES) == moved
