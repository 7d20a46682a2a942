"""docs/check.md names what there is: every finding's code, every check, every key."""

from __future__ import annotations

import re
from pathlib import Path

from offload.cli.check import CheckOutput
from tuner.check.config import CHECKS
from tuner.check.outcome import Verdict

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")


def test_every_code_is_named() -> None:
    """A script that reads codes finds each of them in the docs."""
    sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tuner/check").glob("*.py"))
    codes = set(re.findall(r'code="([a-z-]+)"', sources)) | {"rule-dropped", "rule-added"}
    codes |= {"memory-more", "memory-less"}
    assert len(codes) > 15
    assert not {code for code in codes if f"`{code}`" not in TEXT}


def test_every_word_is_named() -> None:
    """Checks, verdicts and outputs."""
    words = [*CHECKS, *(str(v) for v in Verdict)]
    assert not [word for word in words if f"`{word}`" not in TEXT]
    assert not [one.value for one in CheckOutput if f"-o {one.value}" not in TEXT]
