"""When is a card slower because it waits?"""

from __future__ import annotations

import pytest

from offload.cost import Coefficient, Coefficients, Work, add_waiting, predict

VALUES = {"decode.const": 0.0, "decode.read.CUDA0.Q4_K": 1e-12, "decode.read.CPU.Q4_K": 1e-11}


def waiting(host_bytes: float, card_bytes: float = 1e9) -> float:
    """The wait amount of a card that reads 1 ms beside a host."""
    amounts = {"decode.read.CUDA0.Q4_K": card_bytes, "decode.read.CPU.Q4_K": host_bytes}
    return add_waiting(Work(amounts=amounts), VALUES).amounts.get("decode.wait.CUDA0", 0.0)


def test_a_busy_card_is_not_slowed() -> None:
    """Up to a tenth of the time without work nothing is added."""
    assert waiting(0.0) == 0.0
    assert waiting(1e7) == 0.0


def test_a_waiting_card_is_slowed_up_to_a_limit() -> None:
    """The amount grows with the time the card waits and ends at the card's own seconds."""
    few, some, many, more = (waiting(h) for h in (2e7, 5e7, 1e8, 1e9))
    assert 0.0 < few < some < many == more == pytest.approx(1e-3)


def test_other_cards_and_crossings_are_waited_for() -> None:
    """A card waits while another computes, while activations cross, while experts stream."""
    values = {"prefill.flops.CUDA0.F16": 1.0, "prefill.stream.CUDA0": 1.0, "prefill.const": 1.0}
    amounts = {"prefill.flops.CUDA0.F16": 1.0, "prefill.stream.CUDA0": 5.0}
    assert add_waiting(Work(amounts=amounts), values).amounts["prefill.wait.CUDA0"] == 1.0
    amounts = {"prefill.flops.CUDA0.F16": 1.0, "prefill.const": 5.0}
    assert "prefill.wait.CUDA0" not in add_waiting(Work(amounts=amounts), values).amounts


def test_it_is_computed_anew() -> None:
    """An amount that is already there is replaced, so that rounds of a fit do not pile up."""
    work = Work(amounts={"decode.read.CUDA0.Q4_K": 1e9, "decode.read.CPU.Q4_K": 1e9})
    once = add_waiting(work, VALUES)
    assert add_waiting(once, VALUES) == once


def test_predictions_use_it_where_it_was_measured() -> None:
    """A wait coefficient of one half makes a card that mostly waits half as slow again."""
    values = VALUES | {"decode.wait.CUDA0": 0.5}
    table = {
        name: Coefficient(name=name, value=value, unit="s", standard_error=0.0)
        for name, value in values.items()
    }
    known = Coefficients(table=table, covariance={}, residual_sds={}, source="measured")
    work = Work(amounts={"decode.read.CUDA0.Q4_K": 1e9, "decode.read.CPU.Q4_K": 1e9})
    found = predict(work, known)
    assert found is not None and found.seconds == pytest.approx(1.5e-3 + 10e-3)
    assert not found.unknown
