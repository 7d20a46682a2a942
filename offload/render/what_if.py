"""Machines side by side: what fits, what is left, how fast, and how that compares to the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offload.plan import Plan
from offload.render.explanation import difference_to_json
from offload.render.forecast import forecast_to_json, rate_text
from offload.render.plan_json import SCHEMA_VERSION, devices_to_json
from offload.render.text import printable, ranges, render_columns, seconds_text
from offload.split import HOST
from offload.units import MIB, format_gib
from offload.what_if import Row

_HEAD = (
    "machine",
    "fits",
    "experts on host",
    "left MiB",
    "decode t/s",
    "prefill t/s",
    "turn s",
    "beside the first that fits",
)


def render_machines(rows: Sequence[Row], *, markdown: bool = False) -> str:
    """One line per machine; `~` where the doubt is larger than the difference."""
    table: list[tuple[str, ...]] = [_HEAD, *(_cells(row) for row in rows)]
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in table]
        return "\n".join([lines[0], "|---" * len(_HEAD) + "|", *lines[1:], "", _who(rows)])
    return "\n".join([*render_columns(table, "<<><<<<<"), "", _who(rows)])


def _who(rows: Sequence[Row]) -> str:
    clock = rows[0].answer.clock
    turn = clock.speeds.turn
    sources = dict.fromkeys(row.answer.clock.source for row in rows)
    return (
        f"turn: {turn.n_prompt} tokens read and {turn.n_generate} written after"
        f" {clock.prompt_depth}; speeds: {', '.join(sources)}; in brackets 90 % intervals"
    )


def _cells(row: Row) -> tuple[str, ...]:
    plan, turn = row.answer.plan, row.answer.turn
    short = sum(plan.short_bytes.values())
    data = forecast_to_json(row.answer.forecast)
    left = "/".join(f"{plan.headroom_bytes(d) // MIB}" for d in range(len(plan.devices)))
    return (
        _name(row),
        "yes" if plan.feasible else f"short by {-(-short // MIB)} MiB",
        format_gib(experts_on_host_bytes(plan)),
        left or "-",
        "" if data is None else rate_text(data, "decode"),
        "" if data is None else rate_text(data, "prefill"),
        ""
        if turn is None
        else f"{seconds_text(turn.seconds)} ({seconds_text(turn.low_s)}"
        f" to {seconds_text(turn.high_s)})",
        _beside(row),
    )


def _name(row: Row) -> str:
    """The text, and the cards that the plan leaves out."""
    plan = row.answer.plan
    left_out = () if plan.choice is None else plan.choice.left_out
    text = printable(row.machine.text)
    return f"{text} (without {', '.join(left_out)})" if left_out else text


def _beside(row: Row) -> str:
    one, turn = row.difference, row.answer.turn
    if one is None or turn is None:
        return ""
    if not (one.low_s or one.high_s):
        return "the same"
    factor = turn.seconds / (turn.seconds - one.seconds)
    told = "" if one.is_told else "~ "
    return f"{told}x {factor:.2f}, {one.seconds:+.2f} s ({one.low_s:+.2f} to {one.high_s:+.2f})"


def experts_on_host_bytes(plan: Plan) -> int:
    """Routed experts that rules or whole layers put on the host."""
    placed, owners = plan.placement.placed, plan.split.owners
    return sum(
        tensor.n_bytes
        for tensor in plan.model.expert_tensors
        if placed.get(tensor.name, owners[tensor.il or 0]) == HOST
    )


def machines_to_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Devices and prediction as in `offload plan`; `difference` is beside the first that fits."""
    return {
        "schema_version": SCHEMA_VERSION,
        "machines": [_row_to_json(row) for row in rows],
    }


def _row_to_json(row: Row) -> dict[str, Any]:
    plan, turn, clock = row.answer.plan, row.answer.turn, row.answer.clock
    return {
        "cards": row.machine.text,
        "feasible": plan.feasible,
        "short_bytes": sum(plan.short_bytes.values()),
        "devices": devices_to_json(plan),
        "left_out": [] if plan.choice is None else list(plan.choice.left_out),
        "host_bytes": plan.memory.host.total_bytes,
        "host_layers": ranges(plan.split.layers_of(HOST)),
        "experts_on_host_bytes": experts_on_host_bytes(plan),
        "turn": None
        if turn is None
        else {
            "n_prompt": clock.speeds.turn.n_prompt,
            "n_generate": clock.speeds.turn.n_generate,
            "n_depth": clock.prompt_depth,
            "seconds": turn.seconds,
            "low_s": turn.low_s,
            "high_s": turn.high_s,
        },
        "difference": difference_to_json(row.difference),
        "prediction": forecast_to_json(row.answer.forecast),
    }
