"""What cannot be understood is one line on stderr, says where to look, and exits with 2."""

from __future__ import annotations

import sys

import pytest

import offload.cli.plan
import offload.cli.serve  # noqa: F401  # both are asked for below
from offload.cli.app import run


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("plan", "Missing argument 'MODEL'; see offload plan --help"),
        ("plan --foo x", "No such option: --foo; see offload plan --help"),
        ("plan a b", "Got unexpected extra argument(s) (b); see offload plan --help"),
        ("plan x --gpus", "Option '--gpus' requires an argument; see offload plan --help"),
        ("plan x -c many", "-c 'many': a number of tokens, auto or max"),
        ("plan x -np many", "'many' is not a valid int; see offload plan --help"),
        ("serve x --restarts -1", "-1 is not in the range x>=0; see offload serve --help"),
        ("foo", "No such command 'foo'; see offload --help"),
        ("--foo", "No such option: --foo; see offload --help"),
    ],
)
def test_one_line(
    typed: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parser's four lines are made one, as all our errors are."""
    monkeypatch.setattr(sys, "argv", ["offload", *typed.split()])
    with pytest.raises(SystemExit) as ended:
        run()
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert err.startswith("offload: ") and err.count("\n") == 1
    assert said in err


def test_nothing_typed_is_answered_with_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever types `offload` alone wants to see what there is."""
    monkeypatch.setattr(sys, "argv", ["offload"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert "Usage: offload" in capsys.readouterr().err
