"""Turns: their text form, their depth, their seconds."""

from __future__ import annotations

import pytest

from offload.errors import UsageError
from offload.turn import Turn, parse_turn


def test_parts_come_in_any_order_and_keep_their_defaults() -> None:
    """What is left out stands at llama-server-like defaults."""
    assert parse_turn("generate=16,prompt=100") == Turn(n_prompt=100, n_generate=16)
    assert parse_turn("depth=0").n_depth == 0


@pytest.mark.parametrize(
    "text", ["", "prompt", "prompt=", "prompt=-1", "tokens=4", "prompt=1,prompt=2", "prompt=1e3"]
)
def test_what_is_no_turn_is_refused(text: str) -> None:
    """One line that names the part."""
    with pytest.raises(UsageError, match="--turn"):
        parse_turn(text)


def test_a_turn_fits_its_context() -> None:
    """Half the context by default, less where prompt and answer would not fit behind it."""
    assert Turn().depth_in(32768) == 16384
    assert Turn().depth_in(4096) == 4096 - 2048 - 512
    assert Turn().depth_in(1024) == 0
    assert Turn(n_depth=100).depth_in(32768) == 100


def test_seconds_add_up() -> None:
    """The prompt once, a token as often as one is written."""
    assert Turn(n_generate=10).seconds(prompt_s=2.0, token_s=0.5) == 7.0
