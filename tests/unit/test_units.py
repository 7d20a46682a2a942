"""Sizes and rates as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.errors import UsageError
from offload.units import GIB, MIB, format_gib, format_mib, parse_bandwidth_bytes_per_s
from offload.units import parse_size_bytes as parse


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("24GiB", 24 * GIB), ("24G", 24 * GIB), ("24576MiB", 24 * GIB), ("24GB", 24 * 10**9),
        ("1024", 1024), ("22.5GiB", 45 * GIB // 2), ("512 m", 512 * MIB), ("0", 0),
    ],
)  # fmt: skip
def test_sizes(text: str, n_bytes: int) -> None:
    """Binary by default, decimal with an explicit B."""
    assert parse(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "24GiBs", "1.2.3G", "٣G", "9" * 400])
def test_what_is_not_a_size(text: str) -> None:
    """Anything else is refused, with the text and an example."""
    with pytest.raises(UsageError, match="size"):
        parse(text)


@given(st.integers(0, 1 << 59))
def test_plain_bytes_are_exact(n_bytes: int) -> None:
    """An integer is never rounded through a float."""
    assert parse(str(n_bytes)) == n_bytes


def test_bandwidth_is_decimal_as_in_data_sheets() -> None:
    """936GB/s is 936e9 bytes per second; the /s may be left out."""
    assert parse_bandwidth_bytes_per_s("936GB/s") == 936 * 10**9
    assert parse_bandwidth_bytes_per_s("936GB") == 936 * 10**9


def test_formats() -> None:
    """MiB whole as llama.cpp prints, GiB with one decimal."""
    assert format_mib(1536 * MIB) == "1,536 MiB"
    assert format_gib(3 * GIB // 2) == "1.5 GiB"
