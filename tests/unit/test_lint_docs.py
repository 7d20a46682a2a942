"""docs/lint.md lists exactly the codes there are, and each of its examples yields its finding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offload.lint import CODES, lint
from tests.lint_examples import codes, lint_example

DOC = Path(__file__).parents[2] / "docs" / "lint.md"
SECTION = re.compile(r"^### `([a-z0-9-]+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"```sh\n# ([^\n]*)\n(.*?)\n```", re.DOTALL)
LOG = re.compile(r"```text\n(.*?)\n```", re.DOTALL)
SECTIONS = SECTION.findall(DOC.read_text(encoding="utf-8"))


def test_every_code_has_one_section() -> None:
    """No code is undocumented, none is documented twice, and none is there that does not exist."""
    names = [name for name, _ in SECTIONS]
    assert sorted(names) == sorted(CODES)


@pytest.mark.parametrize(("code", "text"), SECTIONS, ids=[name for name, _ in SECTIONS])
def test_the_example_yields_its_finding(code: str, text: str) -> None:
    """The documented command or log really gives the finding it stands for, of its severity."""
    if log := LOG.search(text):
        report = lint(None, logs=[log[1].splitlines()])
    else:
        command = COMMAND.search(text)
        assert command is not None
        shape, cards, *host = (part.strip() for part in command[1].split(";"))
        report = lint_example(command[2], shape, cards, host[0][5:] if host else "")
    found = [finding for finding in report.findings if finding.code == code]
    assert found, codes(report)
    stated = text.strip().split("*")[1]
    assert any(str(finding.severity) in stated for finding in found)
    assert all(finding.text for finding in found)
