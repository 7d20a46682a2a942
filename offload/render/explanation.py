"""An explanation as a table with sentences, and as the `explanation` object of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from offload.cost.difference import Difference
from offload.explain import PHASES, Explanation, NextBest, Place
from offload.question import Answered
from offload.render.forecast import forecast_to_json
from offload.render.text import ranges, render_columns, seconds_text
from offload.shadow_prices import ShadowPrice
from offload.units import MIB

_COLUMNS: Final = (
    "link", "compute", "bandwidth", "attention", "context", "kernels", "waiting", "crossings",
    "always",
)  # fmt: skip


def render_explanation(explanation: Explanation) -> str:
    """Reasons, a table of what limits each place, the next best plan and the prices."""
    lines = ["why", *(f"  {reason}" for reason in explanation.reasons), ""]
    if explanation.answer.turn is None:
        return "\n".join([*lines, "nothing is known of its speed, so nothing has a price"])
    lines += [_turn_line(explanation), ""]
    lines += ["limited by", *_limits(explanation), ""]
    for phase in PHASES:
        lines += [*_shares(explanation, phase), ""]
    lines += [_next_line(explanation.next_best), ""]
    if explanation.prices:
        lines += ["planned again with one thing different:", *_price_rows(explanation)]
    lines.append(
        "(~ : too close to tell. What is wrong for both plans alike cancels; the doubt is about"
        " the work that differs)"
    )
    return "\n".join(lines)


def _turn_line(explanation: Explanation) -> str:
    answer = explanation.answer
    clock, turn = answer.clock, answer.turn
    assert turn is not None
    said = clock.speeds.turn
    return (
        f"a turn: {said.n_prompt} tokens read, {said.n_generate} written, after"
        f" {clock.prompt_depth} of context: {seconds_text(turn.seconds)} s"
        f" ({seconds_text(turn.low_s)} to {seconds_text(turn.high_s)}), decode"
        f" {_percent(explanation.phase_s('decode') / turn.seconds)} of it, prefill"
        f" {_percent(explanation.phase_s('prefill') / turn.seconds)}"
    )


def _limits(explanation: Explanation) -> Iterator[str]:
    """What holds each device back: memory, and what most of its seconds go to."""
    rows: list[tuple[str, ...]] = [("", "layers", "memory", *PHASES)]
    for place in explanation.places:
        if place.device is None:
            continue
        cells = []
        for phase in PHASES:
            limit, total = place.limit(phase), place.phase_s(phase)
            part = 0.0 if limit is None else place.seconds[phase][limit]
            cells.append(f"{limit} ({_percent(part / total)} of its seconds)" if total else "")
        memory = ""
        if place.is_full:
            assert place.headroom_bytes is not None and place.next_bytes is not None
            memory = (
                f"full: {max(place.headroom_bytes, 0) // MIB} MiB left, the next matrix"
                f" has {-(-place.next_bytes // MIB)}"
            )
        rows.append((place.name, _layers(explanation.answer, place), memory, *cells))
    yield from render_columns(rows, "<" * 5)


def _layers(answer: Answered, place: Place) -> str:
    split = answer.plan.split
    if place.device is None:
        return ""
    output = " + output" if split.output_owner == place.device else ""
    return f"{ranges(split.layers_of(place.device))}{output}".removeprefix(" + ")


def _shares(explanation: Explanation, phase: str) -> Iterator[str]:
    """Percent of a phase's seconds: a row for each place, a column for each limit."""
    places = [place for place in explanation.places if place.phase_s(phase)]
    kinds = [k for k in _COLUMNS if any(place.seconds[phase].get(k) for place in places)]
    total = explanation.phase_s(phase)
    rows: list[tuple[str, ...]] = [(f"{phase}: % of {seconds_text(total)} s", "all", *kinds)]
    for place in places:
        parts = place.seconds[phase]
        cells = (_share(parts.get(kind, 0.0), total) for kind in kinds)
        rows.append((place.name, _share(place.phase_s(phase), total), *cells))
    yield from render_columns(rows, "<>" + ">" * len(kinds))


def _next_line(found: NextBest | None) -> str:
    if found is None:
        return "next best plan: none, nothing else that people use fits or differs"
    return (
        f"next best plan: {found.name}, {_more(found.difference)} of a turn, {_rates(found.answer)}"
    )


def _rates(answer: Answered) -> str:
    data = forecast_to_json(answer.forecast)
    if data is None:
        return ""
    return f"decode {data['decode_t_s']:.1f} t/s, prefill {data['prefill_t_s']:.0f} t/s"


def _price_rows(explanation: Explanation) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("", "turn", "90 % interval", "decode t/s", "prefill t/s", "")]
    for price in explanation.prices:
        rows.append(_price_cells(price))
    yield from render_columns(rows, "<>>>><")


def _price_cells(price: ShadowPrice) -> tuple[str, ...]:
    text = price.change.text
    if price.after is None:
        return (text, "", "", "", "", f"cannot be: {price.refused}")
    if not price.after.plan.feasible:
        return (text, "", "", "", "", "does not fit")
    note = "same places" if price.same_places else ""
    if price.before.clock.prompt_depth != price.after.clock.prompt_depth:
        note = f"{note}, as in its context".removeprefix(", ")
    decode, prefill = ("", "")
    new = forecast_to_json(price.after.forecast)
    old = forecast_to_json(price.before.forecast)
    if new is not None and old is not None:
        decode = f"{old['decode_t_s']:.1f} -> {new['decode_t_s']:.1f}"
        prefill = f"{old['prefill_t_s']:.0f} -> {new['prefill_t_s']:.0f}"
    if price.difference is None:
        fits = "fits then" if not price.before.plan.feasible else "no price"
        return (text, "", "", decode, prefill, fits)
    one = price.difference
    if not (one.low_s or one.high_s):
        return (text, "no change", "", decode, prefill, note)
    interval = f"{one.low_s:+.2f} to {one.high_s:+.2f} s"
    turn = f"{one.seconds:+.2f} s" if one.is_told else f"~ {one.seconds:+.2f} s"
    return (text, turn, interval, decode, prefill, note)


def _more(one: Difference) -> str:
    told = "" if one.is_told else ", too close to tell"
    return f"{one.seconds:+.2f} s ({one.low_s:+.2f} to {one.high_s:+.2f}{told})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _share(seconds: float, total: float) -> str:
    """Whole percent; one digit more below ten, nothing for nothing."""
    if not seconds or not total:
        return ""
    percent = 100 * seconds / total
    return f"{percent:.0f}" if percent >= 10 else f"{percent:.1f}"


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Shares of each phase's seconds by place and limit; prices as planned again."""
    answer = explanation.answer
    said, turn = answer.clock.speeds.turn, answer.turn
    return {
        "turn": {
            "n_prompt": said.n_prompt,
            "n_generate": said.n_generate,
            "n_depth": answer.clock.prompt_depth,
            "seconds": None if turn is None else turn.seconds,
            "low_s": None if turn is None else turn.low_s,
            "high_s": None if turn is None else turn.high_s,
            "source": answer.clock.source,
        },
        "reasons": list(explanation.reasons),
        "places": [_place_to_json(explanation, place) for place in explanation.places],
        "next_best": _next_to_json(explanation.next_best),
        "shadow_prices": [_price_to_json(price) for price in explanation.prices],
    }


def _place_to_json(explanation: Explanation, place: Place) -> dict[str, Any]:
    split = explanation.answer.plan.split
    out: dict[str, Any] = {
        "name": place.name,
        "layers": [] if place.device is None else list(split.layers_of(place.device)),
        "headroom_bytes": place.headroom_bytes,
        "next_matrix_bytes": place.next_bytes,
        "limited_by": {
            "memory": place.is_full,
            **{phase: place.limit(phase) for phase in PHASES},
        },
    }
    for phase in PHASES:
        total = explanation.phase_s(phase)
        out[f"{phase}_share"] = place.phase_s(phase) / total if total else 0.0
        out[f"{phase}_shares"] = {
            kind: seconds / total for kind, seconds in place.seconds[phase].items() if total
        }
    return out


def difference_to_json(one: Difference | None) -> dict[str, Any] | None:
    """Seconds of a turn more, with a 90 % interval, and whether the sign is beyond the doubt."""
    if one is None:
        return None
    return {
        "seconds": one.seconds,
        "low_s": one.low_s,
        "high_s": one.high_s,
        "within_doubt": not one.is_told,
    }


def _next_to_json(found: NextBest | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "name": found.name,
        "difference": difference_to_json(found.difference),
        "prediction": forecast_to_json(found.answer.forecast),
    }


def _price_to_json(price: ShadowPrice) -> dict[str, Any]:
    after = price.after
    return {
        "code": price.change.code,
        "text": price.change.text,
        "feasible": after is not None and after.plan.feasible,
        "refused": price.refused or None,
        "same_places": price.same_places,
        "n_depth": None if after is None else after.clock.prompt_depth,
        "turn_seconds": None if after is None or after.turn is None else after.turn.seconds,
        "difference": difference_to_json(price.difference),
        "prediction": None if after is None else forecast_to_json(after.forecast),
    }
