"""A plan as a table a person can read: one row per card, numbers in MiB, a bar of its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from offload.emit import emit_server_args, make_launch, quote_for_terminal
from offload.memory import MemoryBytes
from offload.plan import Plan
from offload.render.choice import choice_line
from offload.render.forecast import forecast_line
from offload.render.text import printable, ranges, render_columns
from offload.split import HOST
from offload.units import MIB, format_gib

if TYPE_CHECKING:
    from offload.forecast import Forecast

_BAR_CELLS: Final = 24
_BAR_MARKS: Final = (("#", "model_bytes"), ("k", "context_bytes"), ("c", "compute_bytes"))
_BAR_KEY: Final = "# weights  k context  c compute  . headroom  m margin  ! over"


def render_plan(
    plan: Plan, argv: Sequence[str] | None = None, forecast: Forecast | None = None
) -> str:
    """The whole answer: model, cards, rules, remarks and the command to paste."""
    if argv is None:
        argv = emit_server_args(make_launch(plan))
    lines = [*_head(plan), "", *_table(plan), ""]
    if forecast is not None:
        lines.append(forecast_line(forecast))
    if plan.choice is not None:
        lines.append(choice_line(plan.choice))
    if forecast is not None or plan.choice is not None:
        lines.append("")
    lines += [f"rule  {rule.pattern}={rule.buffer_type}" for rule in plan.rules]
    lines += [f"{advice.code}: {printable(advice.text)}" for advice in plan.advice]
    if plan.rules or plan.advice:
        lines.append("")
    said = "by llama.cpp's dry run" if plan.compute_source == "dry-run" else "estimated"
    verdict = f"fits (compute buffers {said})" if plan.feasible else "DOES NOT FIT"
    return "\n".join([*lines, verdict, quote_for_terminal(argv)])


def _head(plan: Plan) -> Iterator[str]:
    model, context, options = plan.model, plan.context, plan.options
    experts = (
        f", {model.n_expert} experts ({model.n_expert_used} used),"
        f" {format_gib(model.expert_bytes)} of routed experts"
        if model.n_expert
        else ""
    )
    yield (
        f"{printable(model.name or model.path)}: {printable(model.arch)}, {model.n_layer} layers,"
        f" {format_gib(model.size_bytes)}{experts}"
    )
    kv = f"{options.type_k.name.lower()}/{options.type_v.name.lower()}"
    shared = "unified" if context.kv_unified else "split"
    yield (
        f"-c {context.n_ctx}, -ub {context.n_ubatch}, {context.n_parallel} slots over {shared}"
        f" {kv} KV, strategy {options.strategy}"
    )


def _table(plan: Plan) -> Iterator[str]:
    head = ("MiB", "layers", "experts kept", "on host", "weights", "context", "compute", "headroom")
    rows = [(*head, "")]
    for d, device in enumerate(plan.devices):
        own = plan.split.layers_of(d)
        away = plan.experts_on_host(d)
        elsewhere = plan.experts_elsewhere(d)
        with_experts = set(plan.model.expert_layers).intersection(own)
        n_kept = len(with_experts) - len({*away, *elsewhere})
        output = " + output" if plan.split.output_owner == d else ""
        rows.append(
            (
                device.name,
                f"{ranges(own) or 'none'}{output}",
                f"{n_kept} of {len(with_experts)}",
                ranges(away) or "none",
                *_numbers(plan.memory.devices[d]),
                f"{plan.headroom_bytes(d) // MIB}",
                _bar(plan, d),
            )
        )
    rows.append(
        (
            "host",
            ranges(plan.split.layers_of(HOST)) or "none",
            "",
            "",
            *_numbers(plan.memory.host),
            "" if plan.host_free_bytes is None else f"{_host_left(plan) // MIB}",
            "",
        )
    )
    yield from render_columns(rows, "<<<<>>>><")
    for d, device in enumerate(plan.devices):
        if guests := plan.guests(d):
            owners = {_owner(plan, il) for il in guests}
            yield f"{device.name} holds experts of {ranges(guests)} too, layers of {_and(owners)}"
    for one in plan.companions:
        places = [*one.cards.items(), *((("host", one.host),) if one.host.total_bytes else ())]
        for name, memory in places:
            weights, context, compute = _numbers(memory)
            yield (
                f"{one.name} {printable(one.path)}: {name} {weights} weights + {context} context"
                f" + {compute} compute, kept free beside the plan"
            )
    yield f"bars: {_BAR_KEY}" if plan.devices else ""


def _owner(plan: Plan, il: int) -> str:
    owner = plan.split.owners[il]
    return "the host" if owner == HOST else plan.devices[owner].name


def _and(names: set[str]) -> str:
    return " and ".join(sorted(names))


def _host_left(plan: Plan) -> int:
    return (plan.host_free_bytes or 0) - plan.memory.host.total_bytes


def _numbers(memory: MemoryBytes) -> tuple[str, str, str]:
    return (
        f"{memory.model_bytes / MIB:.0f}",
        f"{memory.context_bytes / MIB:.0f}",
        f"{memory.compute_bytes / MIB:.0f}",
    )


def _bar(plan: Plan, device: int) -> str:
    """Free memory as a bar: what is planned, what is left, what is kept as margin."""
    free = max(plan.devices[device].memory_free_bytes, 1)
    memory, cells, position = plan.memory.devices[device], "", 0
    for mark, key in _BAR_MARKS:
        position += getattr(memory, key)
        cells += mark * (min(round(_BAR_CELLS * position / free), _BAR_CELLS) - len(cells))
    margin = min(round(_BAR_CELLS * plan.margins_bytes[device] / free), _BAR_CELLS)
    cells = cells[: _BAR_CELLS - 1] + "!" if position > free else cells
    cells += "." * (_BAR_CELLS - margin - len(cells))
    cells += "m" * (_BAR_CELLS - len(cells))
    return f"[{cells}] {format_gib(free)}"
