"""A forecast as the `prediction` object of a plan, and as one line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from offload.cost import PRIOR
from offload.forecast import Forecast

_WHO: Final = {
    PRIOR: "guessed, not measured here: offload bench measures",
    "profile": "from measurements of this machine",
    "profile+prior": "measured in part, the rest guessed",
}


def forecast_to_json(forecast: Forecast | None) -> dict[str, Any] | None:
    """Tokens per second with the ends of a 90 % interval; None where nothing is known."""
    if forecast is None:
        return None
    decode, prefill, n = forecast.decode, forecast.prefill, forecast.n_prompt
    return {
        "decode_t_s": 1 / decode.seconds,
        "decode_low_t_s": 1 / decode.high_s,
        "decode_high_t_s": 1 / decode.low_s,
        "prefill_t_s": n / prefill.seconds,
        "prefill_low_t_s": n / prefill.high_s,
        "prefill_high_t_s": n / prefill.low_s,
        "n_depth": forecast.n_depth,
        "n_prompt": n,
        "source": forecast.source,
        "borrowed": dict(forecast.borrowed),
    }


def forecast_line(forecast: Forecast) -> str:
    """`speed  decode 46 t/s (31 to 69), prefill …`, and who says so."""
    data = forecast_to_json(forecast)
    assert data is not None
    parts = [f"{phase} {rate_text(data, phase, unit=' t/s')}" for phase in ("decode", "prefill")]
    borrowed = sorted({name.rpartition(".")[2] for name in forecast.borrowed if ".read." in name})
    never = f"; types never measured: {', '.join(borrowed)}" if borrowed else ""
    return f"speed  {', '.join(parts)}; {_WHO[forecast.source]}{never}"


def rate_text(prediction: Mapping[str, Any], phase: str, *, unit: str = "") -> str:
    """`46 (31 to 69)` tokens per second of a `prediction` object's `phase`."""
    value, low, high = (_rate(prediction[f"{phase}{end}_t_s"]) for end in ("", "_low", "_high"))
    return f"{value}{unit} ({low} to {high})"


def _rate(t_s: float) -> str:
    """Three digits at most after which nobody would look."""
    return f"{t_s:.2f}" if t_s < 1 else f"{t_s:.1f}" if t_s < 10 else f"{t_s:.0f}"
