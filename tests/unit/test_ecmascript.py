"""Users' patterns: the meaning of std::regex, and never an endless search."""

from __future__ import annotations

import time

import pytest

from offload.ecmascript import byte_text, compile_pattern
from offload.errors import UsageError


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        (r"blk\.[0-9]+\.ffn_.*_exps", "blk.12.ffn_up_exps.weight", True),
        (r"blk\.[[:digit:]]\.", "blk.7.attn_q.weight", True),
        (r"^output\.weight$", "output.weight", True),
        (r"weight$", "output.weight\n", False),  # Python's own `$` would find it
        (r"a.b", "a\rb", False),
        (r"(?!token)embd", "token_embd.weight", True),
        (r"^(?!token)", "token_embd.weight", False),
        (r"\d", "blk.٣", False),
        (r"^..$", "é", True),  # two bytes
        (r"[^a]{2}", "é", True),
        (r"é+$", "x\u00e9", True),
        (r"[[:alpha:]_]+\/", "a/", True),
        (r"[[:DIGIT:][:punct:]]", "abc", False),
        (r"a{2,3}b", "caab", True),
        (r"blk\.(?:1|2)\.", "blk.2.x", True),
        (r"[.]ffn[_]", "blk.0.ffn_up", True),
        (r"x.*?y", "x--y", True),
        (r"a[]b", "a]b", False),  # nothing is in `[]`
        (r"a[^]b", "a]b", True),  # everything is in `[^]`
        (r"[]a]", "a]", False),
        (r"a}b]", "a}b]", True),
        (r"[a\]]x", "]x", True),
        (r"[\d-]", "-", True),
        (r"[a-c-e]", "d", False),
        (r"[[]", "[", True),
        (r"\x62lk\u002e", "blk.", True),
        (r"\_\-\/\:\"", '_-/:"', True),
        (r"a++b", "aab", None),  # to Python a possessive repeat
        (r"a{2}{2}", "aaaa", True),
        (r"(a|b)\1", "abb", True),
        (r"(a)\10", "aa0", None),
        ("", "anything", True),
        ("|x", "anything", True),
        (r"\bffn", "blk.0.ffn_up", True),
        (r"[\b]", "a b", False),
    ],
)
def test_same_meaning(pattern: str, name: str, found: bool | None) -> None:
    """What people write searches as std::regex does; None: refused."""
    if found is None:
        with pytest.raises(UsageError):
            compile_pattern(pattern)
    else:
        assert (compile_pattern(pattern).search(byte_text(name)) is not None) is found


@pytest.mark.parametrize(
    ("pattern", "position", "why"),
    [
        ("*exps", 0, "glob"), ("blk.|*exps", 5, "glob"), ("^*", 1, "repeat"),
        ("(?=a)*", 5, "repeat"),
        ("(a", 2, "not closed"), ("a)", 1, "without"), ("[a", 2, "not closed"),
        ("[a-", 3, "not closed"), ("(?<=a)b", 0, "ECMAScript"), ("(?P<n>a)", 0, "ECMAScript"),
        ("(?i)a", 0, "ECMAScript"), ("(?", 0, "ECMAScript"), (r"\p{L}", 0, "ECMAScript"),
        (r"x\A", 1, "ECMAScript"), ("a{", 1, "count"), ("{2}", 0, "repeat"), ("a{x}", 1, "count"),
        ("a{3,2}", 1, "counts down"), ("a\\", 1, "ECMAScript"), ("[b-a]", 4, "no range"),
        (r"[\w-z]", 5, "range"), (r"[a-\d]", 5, "range"), ("[[:nope:]]", 1, "class"),
        ("[[=a=]]", 1, "class"), (r"\1", 0, "group"), (r"(a\1)", 2, "group"), (r"\x1", 0, "two"),
        (r"\u1234", 0, "byte"), (r"\cA", 0, "ECMAScript"), ("(" * 60 + ")" * 60, 51, "deeper"),
        ("(a{1000}){1000}", 15, "states"),
    ],
)  # fmt: skip
def test_what_stdregex_refuses_is_refused(pattern: str, position: int, why: str) -> None:
    """A pattern std::regex throws at, or its kinds read otherwise, is named with the reason."""
    with pytest.raises(UsageError, match="-ot pattern") as caught:
        compile_pattern(pattern)
    assert f"at character {position}:" in str(caught.value)
    assert why in str(caught.value).replace("wants 2 hex", "wants two hex")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$", "(a|aa)+$", "(a*)*b", "((a+)b?)*c", "x.*.*.*.*.*=", "(x+x+)+y", "(a|b|ab)*c",
        "(a?){40}b", "(a|a){30}b", "x" + "a?" * 40 + "b", "(?=(a+)+b)", "a**b", "(a{1,9}){9}b",
    ],
)  # fmt: skip
def test_patterns_that_could_run_for_ever_are_refused(pattern: str) -> None:
    """Nested or branching repetition is refused before anything is searched."""
    with pytest.raises(UsageError, match="for ever"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r".*blk\..*\.ffn_.*(up|down|gate)_.*exps.*",  # what stands at the ends costs nothing
        r"blk.(?:[x]|[5-9][0-9]).ffn.*",
        r"blk\.(5|6|7|8|9|10|11|57|58|59)\.ffn_(up|down|gate|gate_up)_(ch|)exps.*.*.*",
        r"\.(\d+)\..*_exps\.",
    ],
)
def test_what_people_write_is_not_refused(pattern: str) -> None:
    """The bound leaves room for several `.*` and for long alternations."""
    assert compile_pattern(pattern).search("blk.57.ffn_up_exps.weight")


@pytest.mark.parametrize("pattern", ["a*a*a*a*b", "(a|a){12}b", "(a?){12}b"])
def test_the_worst_accepted_pattern_ends(pattern: str) -> None:
    """The search of the longest tensor name that llama.cpp allows comes to an end."""
    search = compile_pattern(pattern).search
    started = time.monotonic()
    assert search("a" * 63) is None
    assert time.monotonic() - started < 60


def test_length_is_bounded() -> None:
    """A pattern of a megabyte is not compiled."""
    with pytest.raises(UsageError, match="characters"):
        compile_pattern("a" * 2**20)
