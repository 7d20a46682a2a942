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
    with_user_rules,
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


def test_a_negative_number_of_layers() -> None:
    """`-ncmoe -1` is refused as by llama.cpp."""
    with pytest.raises(UsageError, match="-ncmoe"):
        n_cpu_moe_rules(-1)


def test_unknown_tensors_cannot_be_moved() -> None:
    """A tensor that the model lacks, or that the user has placed, is named."""
    with pytest.raises(UsageError, match="no such tensor"):
        make_rules({"blk.9.x": "CPU"}, NAMES)
    with pytest.raises(UsageError, match="token_embd"):
        make_rules({"token_embd.weight": "CPU"}, NAMES, fixed=["token_embd.weight"])


def test_a_set_of_names_goes_to_the_host() -> None:
    """Without buffer types the host is meant."""
    (rule,) = make_rules(frozenset({"token_embd.weight"}), NAMES)
    assert rule == Rule(pattern="token_embd", buffer_type="CPU")


def test_one_rule_for_each_buffer_type() -> None:
    """Fewer cannot be, more is never needed, and their order does not matter."""
    moved = {NAMES[1]: "CPU", NAMES[2]: "CUDA1", NAMES[4]: "CPU", NAMES[0]: "RPC0[1.2.3.4:50052]"}
    rules = make_rules(moved, NAMES)
    assert len(rules) == 3
    assert replay(rules, NAMES) == replay(rules[::-1], NAMES) == moved


def test_what_the_user_placed_does_not_lengthen_our_rules() -> None:
    """Tensors of the user's rules may match ours too: the user's come first and win."""
    users = parse_overrides(r"blk\.10\.ffn_down_exps=CUDA1")
    owned = replay(users, NAMES)
    assert set(owned) == {"blk.10.ffn_down_exps.weight"}
    ours = make_rules(
        {name: "CPU" for name in NAMES if "blk.1.ffn_down_exps" in name}, NAMES, fixed=owned
    )
    assert render_overrides(ours) == "exps=CPU"
    placed = replay(with_user_rules(users, ours), NAMES)
    assert placed["blk.10.ffn_down_exps.weight"] == "CUDA1"
    assert placed["blk.1.ffn_down_exps.bias"] == "CPU"


def test_llama_cpp_takes_4095_rules() -> None:
    """One more is refused, wherever it comes from."""
    rule = Rule(pattern="x", buffer_type="CPU")
    assert len(with_user_rules([rule] * 4094, [rule])) == 4095
    with pytest.raises(UsageError, match="4095"):
        with_user_rules([rule] * 4095, [rule])
    with pytest.raises(UsageError, match="4095"):
        n_cpu_moe_rules(1 << 40)
    with pytest.raises(UsageError, match="4095"):
        parse_overrides(",".join(["x=CPU"] * 4096))


def test_unknown_buffer_types_are_named() -> None:
    """Where the buffer types are known, others are refused as llama.cpp does."""
    with pytest.raises(UsageError, match=r"CUDA7.*CPU, CUDA0"):
        parse_overrides("exps=CUDA7", ("CPU", "CUDA0"))


def test_names_are_searched_as_bytes() -> None:
    """`.` is one byte of UTF-8, as in std::regex."""
    assert replay(parse_overrides("^a..b$=CPU"), ["a\u00e9b", "aeb"]) == {"a\u00e9b": "CPU"}


def test_moving_nothing_needs_no_rules() -> None:
    """No tensors, no rules."""
    assert make_rules({}, NAMES) == ()


def test_all_experts_need_no_layer_numbers() -> None:
    """When every layer's experts move the rule is the one that everybody writes."""
    moved = {name: "CPU" for name in NAMES if "_exps" in name}
    rules = make_rules(moved, NAMES)
    assert render_overrides(rules) == "exps=CPU"
    assert replay(rules, NAMES) == moved
