"""Reading metadata: what is taken, what is refused, and that the key is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offload.errors import GGUFError
from offload.gguf import SkippedArray, Value
from offload.metadata import Metadata


def _keys(value: Value) -> Metadata:
    return Metadata({"a.k": value}, "a", "f.gguf")


def test_scalars() -> None:
    """Whole numbers, booleans and floats come as they are, missing ones as the default."""
    assert _keys(7).uint("k") == 7
    assert _keys(7).uint("other", 3) == 3
    assert _keys(True).flag("k", False) is True
    assert _keys(True).flag("other", False) is False
    assert _keys(2).number("k", 0.0) == 2.0
    assert _keys(2.5).number("other", 1.5) == 1.5


def test_per_layer_values() -> None:
    """A scalar stands for every layer, an array has exactly one value for each."""
    assert _keys(7).uints("k", 3) == (7, 7, 7)
    assert _keys((1, 2, 3)).uints("k", 3) == (1, 2, 3)
    assert _keys((True, False)).uints("k", 2) == (1, 0)
    assert _keys(7).uints("other", 2, (5, 6)) == (5, 6)


def test_patterns() -> None:
    """Layers beyond a pattern's end are 0, a scalar is no pattern."""
    assert _keys((1, 1)).array("k", 4) == (1, 1, 0, 0)
    assert _keys((True, False, True)).array("k", 2) == (1, 0)
    assert _keys(6).array("k", 4) is None
    assert _keys(6).array("other", 4) is None


def test_lengths() -> None:
    """Of arrays that were read and of those that were stepped over."""
    assert _keys((1, 2)).length("k") == 2
    assert _keys(SkippedArray(element_type="str", length=9)).length("k") == 9
    assert _keys(2).length("k") is None


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("text", lambda keys: keys.uint("k")),
        (1.0, lambda keys: keys.uint("k")),
        (True, lambda keys: keys.uint("k")),
        (-1, lambda keys: keys.uint("k")),
        (1 << 31, lambda keys: keys.uint("k")),
        (65, lambda keys: keys.uint("k", at_most=64)),
        ((1, 2), lambda keys: keys.uint("k")),
        ((1, 2), lambda keys: keys.uints("k", 3)),
        ((1, 2.0), lambda keys: keys.uints("k", 2)),
        ((1, -2), lambda keys: keys.uints("k", 2)),
        (SkippedArray(element_type="u32", length=1 << 20), lambda keys: keys.uints("k", 2)),
        (SkippedArray(element_type="u32", length=1 << 20), lambda keys: keys.array("k", 2)),
        ((0,) * 513, lambda keys: keys.array("k", 2)),
        ((1.5,), lambda keys: keys.array("k", 2)),
        (1, lambda keys: keys.flag("k", False)),
        ("yes", lambda keys: keys.flag("k", False)),
        ("1.0", lambda keys: keys.number("k", 0.0)),
        (True, lambda keys: keys.number("k", 0.0)),
    ],
)
def test_refused(value: Value, read: Callable[[Metadata], object]) -> None:
    """Values of the wrong type, length or size are refused, naming key and file."""
    with pytest.raises(GGUFError) as caught:
        read(_keys(value))
    assert (caught.value.key, caught.value.path) == ("a.k", "f.gguf")


def test_missing_keys_are_named() -> None:
    """A required key that is not there is an error about that key."""
    with pytest.raises(GGUFError, match=r"a\.other.*missing"):
        _keys(1).uint("other")
    with pytest.raises(GGUFError, match=r"a\.other.*missing"):
        _keys(1).uints("other", 2)
