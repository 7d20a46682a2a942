"""Placements side by side: memory per card, whether it fits, and how fast it would be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from offload.contenders import Contender
from offload.render.forecast import forecast_to_json, rate_text
from offload.render.plan_json import SCHEMA_VERSION, devices_to_json
from offload.render.text import ranges, render_columns
from offload.split import HOST
from offload.units import MIB

if TYPE_CHECKING:
    from offload.forecast import Forecast
    from offload.plan import Plan

_MARKS: Final = {True: "", False: "!"}


def render_contenders(
    rows: Sequence[tuple[Contender, Forecast | None]], *, markdown: bool = False
) -> str:
    """One line per placement; `!` marks a card that is short."""
    names = list(dict.fromkeys(d.name for c, _ in rows for d in c.plan.devices))
    head = (
        "placement",
        *(f"{n} MiB" for n in names),
        "host MiB",
        "fits",
        "decode t/s",
        "prefill t/s",
    )
    table = [head, *(_cells(contender, forecast, names) for contender, forecast in rows)]
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in table]
        return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])
    return "\n".join(render_columns(table, "<" + ">" * len(names) + "><<<"))


def _cells(
    contender: Contender, forecast: Forecast | None, names: Sequence[str]
) -> tuple[str, ...]:
    plan = contender.plan
    index = {device.name: d for d, device in enumerate(plan.devices)}
    cards = (_card(plan, index[name]) if name in index else "-" for name in names)
    host = f"{plan.memory.host.total_bytes // MIB}{_MARKS[HOST not in plan.short_bytes]}"
    data = forecast_to_json(forecast)
    speeds = ("", "") if data is None else (rate_text(data, "decode"), rate_text(data, "prefill"))
    short = sum(plan.short_bytes.values())
    fits = "yes" if plan.feasible else f"short by {-(-short // MIB)} MiB"
    return (contender.name, *cards, host, fits, *speeds)


def _card(plan: Plan, device: int) -> str:
    return (
        f"{plan.memory.devices[device].total_bytes // MIB}{_MARKS[device not in plan.short_bytes]}"
    )


def contenders_to_json(rows: Sequence[tuple[Contender, Forecast | None]]) -> dict[str, Any]:
    """Devices as in `offload plan`, `prediction` too; `name` says whose placement it is."""
    return {
        "schema_version": SCHEMA_VERSION,
        "placements": [
            {
                "name": contender.name,
                "feasible": contender.plan.feasible,
                "devices": devices_to_json(contender.plan),
                "host_bytes": contender.plan.memory.host.total_bytes,
                "host_layers": ranges(contender.plan.split.layers_of(HOST)),
                "prediction": forecast_to_json(forecast),
            }
            for contender, forecast in rows
        ],
    }
