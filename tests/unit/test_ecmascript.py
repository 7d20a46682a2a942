"""Users' patterns: the meaning of std::regex, and never an endless search."""

from __future__ import annotations

import time

import pytest

from offload.ecmascript import compile_pattern
from offload.errors import UsageError


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        (r"blk\.[0-9]+\.ffn_.*_exps", "blk.12.ffn_up_exps.weight", True),
        (r"blk\.[[:digit:]]\.", "blk.7.attn_q.weight", True),
        (r"^output\.weight$", "output.weight", True),
        (r"(?!token)embd", "token_embd.weight", True),
        (r"\d", "blk.٣", False),
        (r"[[:alpha:]_]+\/", "a/", True),
        (r"a{2,3}b", "caab", True),
        (r"blk\.(?:1|2)\.", "blk.2.x", True),
        (r"[.]ffn[_]", "blk.0.ffn_up", True),
        (r"x.*?y", "x--y", True),
    ],
)
def test_same_meaning(pattern: str, name: str, found: bool) -> None:
    """What people write searches as std::regex does."""
    assert (compile_pattern(pattern).search(name) is not None) is found


@pytest.mark.parametrize(
    "pattern",
    [
        "*exps", "(a", "a)", "[a", "[]", "[^]x", "a**", "a++", "(?<=a)b", "(?P<n>a)", "(?i)a",
        r"\p{L}", r"\A", "a{", "}", r"a\\\\"[:2], "(?", "a{3,2}",
    ],
)  # fmt: skip
def test_what_stdregex_refuses_is_refused(pattern: str) -> None:
    """A pattern std::regex throws at, or reads otherwise, is named with the reason."""
    with pytest.raises(UsageError, match="-ot pattern"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|aa)+$", "(a*)*b", "((a+)b?)*c", ".*.*.*.*.*=", "(x+x+)+y", "(a|b|ab)*c"],
)
def test_patterns_that_could_run_for_ever_are_refused(pattern: str) -> None:
    """Nested or branching repetition is refused before anything is searched."""
    with pytest.raises(UsageError, match="for ever"):
        compile_pattern(pattern)


def test_the_worst_accepted_pattern_ends() -> None:
    """Four unbounded repeats over the longest tensor name llama.cpp allows come to an end."""
    search = compile_pattern("a*a*a*a*b").search
    started = time.monotonic()
    assert search("a" * 63) is None
    assert time.monotonic() - started < 60


def test_length_is_bounded() -> None:
    """A pattern of a megabyte is not compiled."""
    with pytest.raises(UsageError, match="characters"):
        compile_pattern("a" * 5000)
