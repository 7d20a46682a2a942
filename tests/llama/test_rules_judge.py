"""std::regex itself judges our patterns, and our reading of others' patterns.

A small C++ program does what llama.cpp does with each `-ot` pattern: it compiles
a `std::regex` and searches every tensor name.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from offload.ecmascript import byte_text, compile_pattern
from offload.errors import UsageError
from offload.rules import RULES_MAX, cpu_moe_rule, make_rules, n_cpu_moe_rules, replay
from tests.missing import missing
from tests.property.test_rules import random_moved, random_names

PROGRAM = r"""
#include <iostream>
#include <regex>
#include <string>
int main() {  // lines "P<pattern>" and "N<name>"; prints a line of 0 and 1 per pattern, or "bad"
    std::string line;
    std::regex pattern;
    bool known = false;
    while (std::getline(std::cin, line)) {
        if (line[0] == 'P') {
            try { pattern = std::regex(line.substr(1)); known = true; std::cout << '\n'; }
            catch (const std::regex_error &) { known = false; std::cout << "\nbad"; }
        } else if (known) {
            std::cout << std::regex_search(line.substr(1), pattern);
        }
    }
}
"""

Judge = Callable[[Sequence[str], Sequence[str]], list[str]]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Ask std::regex about each pattern on all names: a text of 0 and 1, or `bad`."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        missing("no C++ compiler")
    folder = tmp_path_factory.mktemp("judge")
    (folder / "judge.cpp").write_text(PROGRAM)
    program = folder / "judge"
    subprocess.run([compiler, "-O1", "-std=c++17", "-o", program, folder / "judge.cpp"], check=True)

    def ask(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
        lines = [line for p in patterns for line in (f"P{p}", *(f"N{name}" for name in names))]
        answer = subprocess.run(
            [program], input="\n".join(lines).encode(), capture_output=True, check=True, timeout=600
        ).stdout.decode()
        return answer.split("\n")[1:]

    return ask


def test_emitted_patterns_find_the_same(judge: Judge) -> None:
    """For std::regex too our rules match exactly the tensors they were made for."""
    for seed in range(30):
        rng = random.Random(seed)
        names, experts = random_names(rng)
        moved = random_moved(rng, experts)
        for rule, found in zip(
            rules := make_rules(moved, names),
            judge([rule.pattern for rule in rules], names),
            strict=True,
        ):
            expected = (str(int(moved.get(name) == rule.buffer_type)) for name in names)
            assert found == "".join(expected), rule.pattern


def test_llama_cpps_own_patterns_find_the_same(judge: Judge) -> None:
    """-cmoe and -ncmoe are replayed as std::regex reads them."""
    names, _ = random_names(random.Random(7))
    for rule in (cpu_moe_rule(), *n_cpu_moe_rules(3)):
        placed = replay((rule,), names)
        (found,) = judge([rule.pattern], names)
        assert found == "".join(str(int(name in placed)) for name in names)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (",".join(["x=CPU"] * RULES_MAX), ""),
        (",".join(["x=CPU"] * (RULES_MAX + 1)), "not terminated with empty pattern"),
        ("exps=CPU,", "invalid value"),
        ("exps", "invalid value"),
        ("exps=CUDA7", "unknown buffer type"),
        ("exps=", "unknown buffer type"),
        ("=CPU", ""),  # taken, and every tensor goes: we refuse it
    ],
    ids=["most rules", "too many", "ends in comma", "no equals", "unknown", "empty", "all"],
)
def test_what_llama_cpp_says_of_override_values(value: str, words: str, fit_params: Path) -> None:
    """llama.cpp refuses what we refuse, and else gets as far as the missing file."""
    answer = subprocess.run(
        [fit_params, "-m", "missing.gguf", "-ot", value],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )
    said = answer.stdout + answer.stderr
    if words:
        assert words in said
    else:  # what it says of the missing file is sometimes lost when it exits
        assert answer.returncode == 1
        assert "error while handling argument" not in said


ATOMS = (
    "a", "b", "1", "0", "_", ".", r"\.", "[ab]", "[^a]", "[0-9]", "[a-c_]", r"\d", r"\w", r"\D",
    r"\W", r"\s", "[[:digit:]]", "[[:alpha:]_]+", r"[\d_]", r"[^\w]", "[]", "[^]", "[-a]", "[a-]",
    "[a-b-1]", "[+--]", "[[]", "[]a]", r"[\]a]", r"\-", r"\/", r"\_", "]", "}", "blk", "ffn_",
    "exps", r"\x61", r"\u0062", "(?:ab)", "(a|b)", "(a|)", "(|b)", "()", r"\1", r"\2",
    "[[:UPPER:]a]", "é", "[é]", r"[\b]", r"\0", "-", "/", r"\B", r"\b", "^", "$", "(?=a)", "(?!b)",
    "(?=.*1)", r"[^\d\w]", r"[\W1]",
)  # fmt: skip
BAD_ATOMS = ("{", "\\", r"[a-\d]", r"[\d-a]", "[b-a]", "(", ")", "[", "*", "[[:nope:]]", "(?<a)")
QUANTIFIERS = (
    *([""] * 6), "*", "+", "?", "*?", "+?", "??", "{2}", "{0}", "{1,2}", "{0,}", "{2}?", "**",
    "++", "{2}{2}",
)  # fmt: skip
NAMES = (
    "a", "b", "ab", "aab", "a1b", "_1", "blk.0.ffn_a", "blk.10.exps", "ba-/]}", "1", "A b", "aé",
    "é", "a{b", "abab", "aa11", "\bx", "a,=b", "[", "-", ".", "_a_", "a\rb",
)  # fmt: skip


def random_pattern(rng: random.Random, depth: int = 0) -> str:
    """Something like a regular expression, not always a valid one."""
    text = ""
    for _ in range(rng.randint(0, 4)):
        if depth < 3 and rng.random() < 0.2:
            text += rng.choice(("(", "(?:", "(?=", "(?!")) + random_pattern(rng, depth + 1) + ")"
        else:
            text += rng.choice(BAD_ATOMS if rng.random() < 0.02 else ATOMS)
        text += rng.choice(QUANTIFIERS)
    return f"{text}|{random_pattern(rng, depth + 1)}" if rng.random() < 0.25 else text


def our_answer(pattern: str) -> str:
    """What we say about `pattern` on NAMES, in the judge's words."""
    try:
        search = compile_pattern(pattern).search
    except UsageError as error:
        return "for ever" if "for ever" in str(error) or "states" in str(error) else "bad"
    return "".join(str(int(search(byte_text(name)) is not None)) for name in NAMES)


@pytest.mark.skipif(
    sys.platform != "linux", reason="other standard libraries read oddities otherwise"
)
def test_users_patterns_find_the_same(judge: Judge) -> None:
    """On thousands of random patterns we refuse what std::regex refuses and find what it finds."""
    rng = random.Random(11434)
    ours = {pattern: our_answer(pattern) for pattern in (random_pattern(rng) for _ in range(4000))}
    asked = [pattern for pattern, answer in ours.items() if answer != "for ever"]
    differences = {
        pattern: (ours[pattern], theirs)
        for pattern, theirs in zip(asked, judge(asked, NAMES), strict=True)
        if ours[pattern] != theirs
    }
    assert not differences
    assert sum(ours[pattern] != "bad" for pattern in asked) > 1000
