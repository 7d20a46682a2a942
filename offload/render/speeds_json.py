"""What a plan was priced with, as JSON, so that a saved plan is priced alike when read back.

`speeds_to_json` and `speeds_of_json` are each other's inverse; like a profile, the object
names no host and no user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from offload.cost import ROUTING_SKEW, Coefficient, Coefficients
from offload.errors import OffloadError, UsageError
from offload.machine import Machine, machine_of_document, machine_to_document
from offload.speeds import Measured, Speeds
from offload.turn import Turn

_TOKENS_MAX: Final = 1 << 30
_VALUE_MAX: Final = 1e300


def speeds_to_json(speeds: Speeds | None) -> dict[str, Any] | None:
    """The turn, the host, and what was measured; None where nothing was known."""
    if speeds is None:
        return None
    return {
        "turn": speeds.turn._asdict(),
        "host": machine_to_document(Machine(host=speeds.host))["host"],
        "measured": None if speeds.measured is None else _measured_to_json(speeds.measured),
        "routing_skew": speeds.routing_skew,
        "may_drop_cards": speeds.may_drop_cards,
    }


def _measured_to_json(measured: Measured) -> dict[str, Any]:
    known = measured.coefficients
    return {
        "device_of": dict(measured.device_of),
        "coefficients": [c._asdict() for c in known.table.values()],
        "covariance": [[a, b, value] for (a, b), value in known.covariance.items()],
        "residual_sds": dict(known.residual_sds),
        "source": known.source,
    }


def speeds_of_json(data: object) -> Speeds | None:
    """Read what `speeds_to_json` wrote; None for the plans of before, which have nothing.

    Raises UsageError that names what is of another form.
    """
    if data is None:
        return None
    try:
        top = _table(data, "it")
        measured = top.get("measured")
        skew = top.get("routing_skew", ROUTING_SKEW)
        return Speeds(
            turn=_turn(_table(top.get("turn"), "turn")),
            host=machine_of_document({"host": top.get("host", {})}).host,
            measured=None if measured is None else _measured(_table(measured, "measured")),
            routing_skew=_number(skew, "routing_skew"),
            may_drop_cards=top.get("may_drop_cards") is not False,
        )
    except OffloadError as error:
        raise UsageError(f"the plan's 'speeds' cannot be read: {error}; plan again") from None


def _turn(data: Mapping[str, Any]) -> Turn:
    depth = data.get("n_depth")
    return Turn(
        n_prompt=_whole(data.get("n_prompt"), "n_prompt"),
        n_generate=_whole(data.get("n_generate"), "n_generate"),
        n_depth=None if depth is None else _whole(depth, "n_depth"),
    )


def _measured(data: Mapping[str, Any]) -> Measured:
    table = {}
    for row in _list(data.get("coefficients"), "coefficients"):
        known = _coefficient(_table(row, "a coefficient"))
        table[known.name] = known
    covariance = {}
    for row in _list(data.get("covariance"), "covariance"):
        if len(_list(row, "a covariance")) != 3 or not {str(row[0]), str(row[1])} <= set(table):
            raise UsageError("a covariance is not two coefficients and a number")
        covariance[str(row[0]), str(row[1])] = _signed(row[2], "a covariance")
    sds = _table(data.get("residual_sds"), "residual_sds")
    return Measured(
        coefficients=Coefficients(
            table=table,
            covariance=covariance,
            residual_sds={key: _number(value, key) for key, value in sds.items()},
            source=_text(data.get("source"), "source"),
        ),
        device_of={
            key: _text(value, "device_of")
            for key, value in _table(data.get("device_of"), "device_of").items()
        },
    )


def _coefficient(row: Mapping[str, Any]) -> Coefficient:
    return Coefficient(
        name=_text(row.get("name"), "name"),
        value=_number(row.get("value"), "value"),
        unit=_text(row.get("unit"), "unit"),
        standard_error=_number(row.get("standard_error"), "standard_error"),
        n_samples=_whole(row.get("n_samples"), "n_samples"),
        source=_text(row.get("source"), "source"),
    )


def _table(value: object, what: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise UsageError(f"{what} is not an object")


def _list(value: object, what: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise UsageError(f"{what} is not a list")


def _text(value: object, what: str) -> str:
    if isinstance(value, str):
        return value
    raise UsageError(f"{what} is not text")


def _whole(value: object, what: str) -> int:
    if isinstance(value, int) and type(value) is int and 0 <= value <= _TOKENS_MAX:
        return value
    raise UsageError(f"{what} is not a number of tokens or runs")


def _signed(value: object, what: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, int | float) and is_number and abs(value) < _VALUE_MAX:
        return value  # a NaN is not below anything
    raise UsageError(f"{what} is not a number")


def _number(value: object, what: str) -> float:
    number = _signed(value, what)
    if number >= 0:
        return number
    raise UsageError(f"{what} is below 0")
