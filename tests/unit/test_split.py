"""Layer ownership: what `-ngl` and `-ts` mean, in llama.cpp's float32."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.errors import UsageError
from offload.split import HOST, split_by_counts, split_layers


def _owners_by_numpy(n_layer: int, n_gpu_layers: int, shares: list[float]) -> list[int]:
    """The same rule in numpy's float32, written independently of the code under test."""
    ends = np.cumsum(np.array(shares, dtype=np.float32), dtype=np.float32)
    ends = (ends / ends[-1]).astype(np.float32)
    active = min(n_gpu_layers, n_layer + 1)
    start = n_layer + 1 - active
    owners = [HOST] * start
    for unit in range(active):
        position = np.float32(unit) / np.float32(active)
        owners.append(int(np.searchsorted(ends, position, side="right")))
    return owners


@given(
    n_layer=st.integers(1, 200),
    n_gpu_layers=st.integers(1, 220),
    shares=st.lists(st.floats(0, 1e6, width=32, allow_nan=False), min_size=1, max_size=8).filter(
        lambda s: sum(s) > 1e-3
    ),
)
def test_owners_equal_float32_upper_bound(
    n_layer: int, n_gpu_layers: int, shares: list[float]
) -> None:
    """Every unit goes to the first device whose cumulated float32 share exceeds its position."""
    split = split_layers(n_layer, n_gpu_layers, shares)
    assert list(split.owners) == _owners_by_numpy(n_layer, n_gpu_layers, shares)


@given(counts=st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(lambda c: sum(c) >= 2))
def test_integer_counts_reproduce_themselves(counts: list[int]) -> None:
    """Counts that sum to the number of units give exactly those counts as `-ts`."""
    n_layer = sum(counts) - 1
    split = split_layers(n_layer, -1, counts)
    assert split.counts(len(counts)) == tuple(counts)
    assert split == split_by_counts(n_layer, counts)


def test_thirds_round_as_float32_does() -> None:
    """Shares that are equal in decimals but not in binary fall where float32 puts them."""
    split = split_layers(36, 99, (0.1, 0.2, 0.7))
    assert split.counts(3) == (4, 8, 25)


def test_ngl_leaves_the_first_layers_on_the_host() -> None:
    """`-ngl` counts from the output layer backwards."""
    split = split_layers(10, 4, (1.0,))
    assert split.layers_of(HOST) == (0, 1, 2, 3, 4, 5, 6)
    assert split.layers_of(0) == (7, 8, 9)
    assert split.output_owner == 0
    assert split.n_gpu_layers == 4


@pytest.mark.parametrize("n_gpu_layers", [-1, -2, 11, 99])
def test_all_layers(n_gpu_layers: int) -> None:
    """Negative and large `-ngl` both mean every layer and the output."""
    assert split_layers(10, n_gpu_layers, (1.0,)).n_gpu_layers == 11


def test_no_devices_or_no_layers_is_the_host() -> None:
    """Without cards or with `-ngl 0` everything stays on the host."""
    assert set(split_layers(5, 0, (1.0,)).owners) == {HOST}
    assert set(split_layers(5, 99, ()).owners) == {HOST}


@pytest.mark.parametrize("shares", [(0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0), (float("inf"),)])
def test_shares_that_mean_nothing_are_refused(shares: tuple[float, ...]) -> None:
    """All zeros, negative and non-finite shares are refused with the flag named."""
    with pytest.raises(UsageError, match="-ts"):
        split_layers(5, 99, shares)


def test_too_many_counts_are_refused() -> None:
    """Counts beyond the number of units are refused."""
    with pytest.raises(UsageError, match="places 8 of 6"):
        split_by_counts(5, (4, 4))
