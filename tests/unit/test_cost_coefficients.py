"""What do coefficients predict, and how wide?"""

from __future__ import annotations

import pytest

from offload.cost import Coefficient, Coefficients, Work, predict


def coefficients(residual_sd: float = 0.0, **values: float) -> Coefficients:
    """Coefficients by name, `__` standing for a dot, known to 1 %."""
    table = {}
    for key, value in values.items():
        name = key.replace("__", ".")
        table[name] = Coefficient(name=name, value=value, unit="s", standard_error=value / 100)
    return Coefficients(
        table=table, covariance={}, residual_sds={"decode": residual_sd}, source="measured"
    )


def test_seconds_add() -> None:
    """The prediction is the sum of amounts times coefficients."""
    work = Work(amounts={"decode.const": 1.0, "decode.hop": 4.0})
    found = predict(work, coefficients(decode__const=0.5, decode__hop=0.25))
    assert found is not None and found.seconds == pytest.approx(1.5)
    assert found.low_s < 1.5 < found.high_s
    assert not found.borrowed and not found.unknown


def test_nothing_known_predicts_nothing() -> None:
    """Where no feature has a coefficient there is no prediction."""
    assert predict(Work(amounts={"decode.hop": 4.0}), coefficients(prefill__hop=1.0)) is None


def test_unmeasured_type_borrows_from_its_nearest_and_widens() -> None:
    """A tensor type without a coefficient takes that of the most similar one, less surely."""
    known = coefficients(decode__read__CUDA0__Q4_K=1.0, decode__read__CUDA0__F16=9.0)
    same = predict(Work(amounts={"decode.read.CUDA0.Q4_K": 1.0}), known)
    other = predict(Work(amounts={"decode.read.CUDA0.Q5_K": 1.0}), known)
    assert same is not None and other is not None
    assert other.borrowed == {"decode.read.CUDA0.Q5_K": "decode.read.CUDA0.Q4_K"}
    assert other.seconds == pytest.approx(1.0)
    assert other.high_s / other.low_s > 1.5 > same.high_s / same.low_s


def test_a_type_is_never_borrowed_from_another_device() -> None:
    """The host's speed says nothing about a card's."""
    known = coefficients(decode__read__CPU__Q4_K=1.0)
    assert predict(Work(amounts={"decode.read.CUDA0.Q4_K": 1.0}), known) is None


def test_opposite_errors_cancel() -> None:
    """Coefficients known only by their sum predict that sum narrowly."""
    names = ("decode.const", "decode.hop")
    table = {n: Coefficient(name=n, value=1.0, unit="s", standard_error=0.5) for n in names}
    known = Coefficients(table=table, covariance={names: -0.25}, residual_sds={}, source="measured")
    both = predict(Work(amounts=dict.fromkeys(names, 1.0)), known)
    assert both is not None and both.high_s / both.low_s == pytest.approx(1.0)
