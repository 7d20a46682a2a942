"""Is the speed still what was predicted, is what was measured, and is it enough?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.check.config import RATES, ModelEntry
from tuner.check.outcome import Finding


def prediction_findings(
    was: Mapping[str, Any], now: Mapping[str, Any] | None, entry: ModelEntry
) -> tuple[Finding, ...]:
    """Three questions for decode and prefill each: drifted, contradicted, too slow?"""
    if now is None:
        return (
            Finding(
                code="prediction-gone",
                text="nothing predicts the speed any more; was a profile removed?",
            ),
        )
    found = []
    for rate in RATES:
        phase = rate.partition("-")[0]
        value, low, high = (float(now[f"{phase}{end}_t_s"]) for end in ("", "_low", "_high"))
        was_low, was_high = (float(was[f"{phase}{end}_t_s"]) for end in ("_low", "_high"))
        if not was_low <= value <= was_high:
            text = (
                f"{phase} is predicted at {value:.4g} t/s,"
                f" outside the recorded {was_low:.4g} to {was_high:.4g}"
            )
            was_value = float(was[f"{phase}_t_s"])
            found.append(Finding(code="prediction-moved", text=text, was=was_value, now=value))
        measured = entry.measured.get(rate)
        if measured is not None and not low <= measured <= high:
            text = (
                f"{phase} was measured at {measured:.4g} t/s, outside the predicted"
                f" {low:.4g} to {high:.4g}; offload bench makes a profile of this machine"
            )
            found.append(Finding(code="measured-outside", text=text, was=measured, now=value))
        budget = entry.budgets.get(rate)
        if budget is not None and value < budget:
            text = f"{phase} is predicted at {value:.4g} t/s, below the budget of {budget:.4g}"
            found.append(Finding(code="below-budget", text=text, was=budget, now=value))
    return tuple(found)
