"""Placements side by side: memory per card, whether it fits, and how fast it would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from offload.contenders import Contender, Timing
from offload.render.forecast import forecast_to_json, rate_text
from offload.render.plan_json import SCHEMA_VERSION, devices_to_json
from offload.render.text import printable, ranges, render_columns, seconds_text
from offload.split import HOST
from offload.units import MIB

if TYPE_CHECKING:
    from offload.forecast import Forecast
    from offload.plan import Plan

_MARKS: Final = {True: "", False: "!"}


_ERROR_MAX: Final = 60
Timings = Mapping[str, Timing]


def render_contenders(
    rows: Sequence[tuple[Contender, Forecast | None]],
    *,
    markdown: bool = False,
    measured: Timings | None = None,
) -> str:
    """One line per placement; `!` marks a card that is short, `*` the shortest turn that fits.

    With `measured`, by name, what was timed stands beside what is predicted.
    """
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
    if any(contender.turn is not None for contender, _ in rows):
        best = _fastest(rows)
        turns = ["turn s", *(_turn(contender, contender is best) for contender, _ in rows)]
        table = [(*row, cell) for row, cell in zip(table, turns, strict=True)]
        head = table[0]
    if measured is not None:
        titles = ("decode measured", "prefill measured", "runs")
        cells = [titles, *(_measured_cells(one, measured) for one, _ in rows)]
        table = [(*row, *more) for row, more in zip(table, cells, strict=True)]
        head = table[0]
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in table]
        return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])
    align = "<" + ">" * len(names) + "><<<"
    return "\n".join(render_columns(table, align.ljust(len(head), ">")))


def _fastest(rows: Sequence[tuple[Contender, Forecast | None]]) -> Contender | None:
    """The placement that fits and whose turn is shortest; the first of equal ones."""
    timed = [(one.turn.seconds, one) for one, _ in rows if one.turn and one.plan.feasible]
    return min(timed, key=lambda pair: pair[0])[1] if timed else None


def _turn(contender: Contender, is_best: bool) -> str:
    if contender.turn is None:
        return ""
    return f"{seconds_text(contender.turn.seconds)}{'*' if is_best else ''}"


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


def _measured_cells(contender: Contender, measured: Timings) -> tuple[str, str, str]:
    """Medians with the slowest and the fastest run, or why there are none."""
    timing = measured.get(contender.name)
    if timing is None:
        return ("-" if not contender.plan.feasible else "no time", "-", "0")
    if not timing.decode_t_s:
        why = printable(" ".join((timing.error or "").split())).replace("|", "/")
        return (f"failed: {why[:_ERROR_MAX]}", "-", "0")
    data = timing_to_json(timing)
    runs = f"{len(timing.decode_t_s)}{', then failed' if timing.error else ''}"
    texts = [rate_text(data, phase) for phase in ("decode", "prefill")]
    if len(timing.decode_t_s) == 1:  # no ends to tell
        texts = [text.partition(" ")[0] for text in texts]
    return (texts[0], texts[1], runs)


def timing_to_json(timing: Timing) -> dict[str, Any]:
    """The median and the ends of all runs under the names of `prediction`; null without runs."""
    out: dict[str, Any] = {}
    for phase, rates in (("decode", timing.decode_t_s), ("prefill", timing.prefill_t_s)):
        out[f"{phase}_t_s"] = median(rates) if rates else None
        out[f"{phase}_low_t_s"] = min(rates, default=None)
        out[f"{phase}_high_t_s"] = max(rates, default=None)
        out[f"{phase}_samples_t_s"] = list(rates)
    return out | {
        "n_depth": 0,
        "n_prompt": timing.n_prompt,
        "n_gen": timing.n_gen,
        "n_runs": len(timing.decode_t_s),
        "error": timing.error,
    }


def _card(plan: Plan, device: int) -> str:
    return (
        f"{plan.memory.devices[device].total_bytes // MIB}{_MARKS[device not in plan.short_bytes]}"
    )


def contenders_to_json(
    rows: Sequence[tuple[Contender, Forecast | None]], *, measured: Timings | None = None
) -> dict[str, Any]:
    """Devices as in `offload plan`, `prediction` too; `name` says whose placement it is.

    With `measured`, each has that key too: null for a placement that was not run.
    """

    def timed(name: str) -> dict[str, Any]:
        if measured is None:
            return {}
        timing = measured.get(name)
        return {"measured": None if timing is None else timing_to_json(timing)}

    best = _fastest(rows)
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
                "turn_s": None if contender.turn is None else contender.turn.seconds,
                "fastest": contender is best,
                **timed(contender.name),
            }
            for contender, forecast in rows
        ],
    }
