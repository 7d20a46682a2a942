"""Recorded failures of real people: lint says what was wrong, or the file says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offload.lint import CODES, lint
from tests.lint_examples import codes, example_machine, example_model, lint_example

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "failures.json").read_text(encoding="utf-8")
)["cases"]
SHOWN = [case for case in CASES if "why_not" not in case]


def test_every_case_is_explained() -> None:
    """Each case has an expected finding with an existing code, or a reason why there is none."""
    assert len(CASES) == 31
    assert len(SHOWN) == 28
    for case in CASES:
        expected = (*case.get("expect", ()), *case.get("log_expect", ()))
        assert bool(expected) != bool(case.get("why_not"))
        assert set(expected) <= CODES


@pytest.mark.parametrize("case", SHOWN, ids=[case["name"] for case in SHOWN])
def test_the_command_gets_its_finding(case: dict[str, Any]) -> None:
    """The command alone shows what went wrong; what would go right instead has no error in it."""
    cards = " ".join(case["cards"])
    report = lint_example(case["command"], case["shape"], cards)
    assert set(case["expect"]) <= codes(report)
    assert report.fixed_argv
    again = lint(
        parse(report.fixed_argv), model=example_model(case["shape"]), machine=example_machine(cards)
    )
    assert not again.has_errors, again.findings


@pytest.mark.parametrize(
    "case", [c for c in SHOWN if "log" in c], ids=[c["name"] for c in SHOWN if "log" in c]
)
def test_the_log_gets_its_finding(case: dict[str, Any]) -> None:
    """What llama.cpp printed then is explained, with and without the command."""
    assert set(case["log_expect"]) <= codes(lint(None, logs=[case["log"]]))
    both = lint(
        parse([case["command"]]),
        model=example_model(case["shape"]),
        machine=example_machine(" ".join(case["cards"])),
        logs=[case["log"]],
    )
    assert {*case["log_expect"], *case["expect"]} <= codes(both)


def parse(words: Any) -> Any:
    """The command in these words."""
    from offload.lint import parse_command

    return parse_command(words)
