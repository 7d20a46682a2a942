"""The doubt about a difference is about what differs, not about what both have."""

from __future__ import annotations

from math import exp

import pytest

from offload.cost import Coefficient, Coefficients, Work
from offload.cost.coefficients import INTERVAL_Z
from offload.cost.difference import Side, difference


def known(residual: float = 0.0, **values: tuple[float, float]) -> Coefficients:
    """Coefficients of reads by place: seconds per unit and standard error."""
    table = {
        f"decode.read.{place}": Coefficient(f"decode.read.{place}", value, "s/byte", error)
        for place, (value, error) in values.items()
    }
    return Coefficients(table, {}, {"decode": residual}, "measured")


def work(**amounts: float) -> Work:
    """Reads by place."""
    return Work(amounts={f"decode.read.{place}": amount for place, amount in amounts.items()})


def test_the_same_work_differs_by_nothing() -> None:
    """However little is known, equal work takes equally long."""
    side = Side(work(CUDA0=5.0, CPU=2.0), known(0.4, CUDA0=(1.0, 0.9), CPU=(3.0, 2.0)))
    assert difference(side, side) == (0.0, 0.0, 0.0)


def test_what_both_have_is_no_doubt() -> None:
    """A thousand uncertain seconds on both sides leave the difference as sure as it is."""
    speeds = known(0.2, CUDA0=(1.0, 0.3), CPU=(3.0, 0.3))
    small = difference(Side(work(CPU=1.0), speeds), Side(work(CPU=2.0), speeds))
    large = difference(
        Side(work(CUDA0=1000.0, CPU=1.0), speeds), Side(work(CUDA0=1000.0, CPU=2.0), speeds)
    )
    assert large == pytest.approx(small)
    assert small.seconds == 3.0 and small.low_s < 3.0 < small.high_s


def test_work_that_is_only_added_takes_time() -> None:
    """No doubt about a coefficient makes more of everything faster."""
    for error in (0.1, 0.9, 3.0, 50.0):
        speeds = known(0.45, CUDA0=(1.0, error), CPU=(2.0, error))
        more = difference(Side(work(CUDA0=1.0), speeds), Side(work(CUDA0=2.0, CPU=0.1), speeds))
        assert more.low_s >= 0.0 and more.seconds == pytest.approx(1.2)
        assert more.high_s > more.seconds


def test_a_trade_is_told_only_where_it_is_larger_than_its_doubt() -> None:
    """A byte moved from card to host: ten times dearer is told, a tenth dearer is not."""
    for host_s, told in ((10.0, True), (1.1, False)):
        speeds = known(CUDA0=(1.0, 0.3), CPU=(host_s, 0.3 * host_s))
        moved = difference(Side(work(CUDA0=10.0), speeds), Side(work(CUDA0=9.0, CPU=1.0), speeds))
        assert moved.seconds == pytest.approx(host_s - 1.0)
        assert moved.is_told is told
        assert moved.low_s < moved.seconds < moved.high_s


def test_there_and_back_is_the_same_with_the_other_sign() -> None:
    """Which plan comes first does not matter."""
    speeds = known(0.2, CUDA0=(1.0, 0.3), CPU=(4.0, 1.0))
    a, b = Side(work(CUDA0=9.0, CPU=1.0), speeds), Side(work(CUDA0=2.0, CPU=8.0), speeds)
    there, back = difference(a, b), difference(b, a)
    assert back == pytest.approx((-there.seconds, -there.high_s, -there.low_s))


def test_a_known_multiple_is_no_stranger() -> None:
    """Half the seconds per byte with the same relative error: sure to save, by about half."""
    slow, fast = known(CUDA0=(2.0, 1.0)), known(CUDA0=(1.0, 0.5))
    same_card = difference(Side(work(CUDA0=4.0), slow), Side(work(CUDA0=4.0), fast))
    assert same_card.seconds == -4.0 and same_card.is_told
    assert same_card.low_s == pytest.approx(-4.0 * exp(INTERVAL_Z * 0.5))
    other_card = difference(
        Side(work(CUDA0=4.0), slow), Side(work(CUDA0=4.0), fast), frozenset({"CUDA0"})
    )
    assert other_card.seconds == -4.0 and not other_card.is_told


def test_a_coefficient_that_may_be_nothing_still_leaves_doubt() -> None:
    """A fit that put a cost at zero is not sure of it."""
    speeds = known(CUDA0=(0.0, 0.5), CPU=(1.0, 0.0))
    one = difference(Side(work(CPU=2.0), speeds), Side(work(CUDA0=2.0, CPU=1.0), speeds))
    assert one.seconds == -1.0 and one.high_s > 0.0 and not one.is_told


def test_a_borrowed_coefficient_is_doubted_on_the_work_that_differs() -> None:
    """A tensor type measured as another one widens the difference it makes."""
    table = {"decode.read.CUDA0.Q4_K": Coefficient("decode.read.CUDA0.Q4_K", 1.0, "s/byte", 0.0)}
    speeds = Coefficients(table, {}, {}, "measured")

    def between(name: str) -> float:
        less, more = (Work(amounts={f"decode.read.CUDA0.{name}": n}) for n in (5.0, 6.0))
        return difference(Side(less, speeds), Side(more, speeds)).high_s

    assert between("Q4_K") == pytest.approx(1.0)
    assert between("Q5_K") > 1.5
