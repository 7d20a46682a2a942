"""Streamed text never shows half a character or any part of a stop word."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from offload.engine.text_stream import TextStream


def run(pieces: list[bytes], stops: list[str]) -> tuple[list[str], bool]:
    """What is shown after each piece and at the end, and whether a stop word ended it."""
    stream = TextStream(stops)
    return [*(stream.add(piece) for piece in pieces), stream.rest()], stream.is_stopped


def test_characters_wait_until_they_are_whole() -> None:
    """Bytes of one character over three tokens show as one character, once."""
    euro = "€".encode()
    assert run([euro[:1], euro[1:2], euro[2:], b"!"], [])[0] == ["", "", "€", "!", ""]


def test_broken_characters_are_shown_as_such() -> None:
    """A character that is never finished shows as a replacement, not as an error."""
    assert run([b"a\xe2\x82"], [])[0] == ["a", "�"]


def test_a_stop_word_over_several_tokens() -> None:
    """Its beginning is held back, and it is cut off with all that follows."""
    shown, is_stopped = run([b"a#", b"#", b"#end", b"more"], ["###"])
    assert shown == ["a", "", "", "", ""]
    assert is_stopped


def test_what_only_began_like_a_stop_word_is_shown() -> None:
    """Held-back text comes out when the word does not."""
    assert run([b"a#", b"#b"], ["###"])[0] == ["a", "##b", ""]
    assert run([b"a#"], ["###"])[0] == ["a", "#"]


def test_the_earliest_stop_word_wins() -> None:
    """Whichever was given first."""
    assert run([b"one two three"], ["three", "two"])[0][0] == "one "


def texts(min_size: int, max_size: int) -> st.SearchStrategy[str]:
    """Few characters, so that stop words occur."""
    return st.lists(st.sampled_from("ab€#"), min_size=min_size, max_size=max_size).map("".join)


@given(
    text=texts(0, 30),
    cuts=st.lists(st.integers(0, 60)),
    stops=st.lists(texts(1, 4), max_size=3),
)
def test_cuts_do_not_matter(text: str, cuts: list[int], stops: list[str]) -> None:
    """However the bytes are cut into tokens, what is shown is the text before a stop word."""
    raw = text.encode()
    edges = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    shown, is_stopped = run([raw[a:b] for a, b in pairwise(edges)], stops)
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    assert is_stopped == bool(found)
    if len(edges) == 2:
        assert "".join(shown) == (text[: min(found)] if found else text)
    # cut finer, a shorter word may be complete before one that begins earlier
    assert text.startswith("".join(shown))
    assert not any(stop in "".join(shown) for stop in stops)
