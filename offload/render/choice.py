"""Why this placement: the turn, what was weighed and what is proven, as JSON and as one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from offload.render.text import seconds_text

if TYPE_CHECKING:
    from offload.choice import Baseline, Choice

_OTHERS_MAX: Final = 4


def choice_to_json(choice: Choice | None) -> dict[str, Any] | None:
    """The `choice` object of a plan; None where placements were not weighed by their seconds."""
    if choice is None:
        return None
    turn = choice.turn
    return {
        "name": choice.name,
        "turn": {
            "n_prompt": turn.n_prompt,
            "n_generate": turn.n_generate,
            "n_depth": choice.n_depth,
        },
        "turn_s": choice.prediction.seconds,
        "turn_low_s": choice.prediction.low_s,
        "turn_high_s": choice.prediction.high_s,
        "bound_s": choice.bound_s,
        "gap": choice.gap,
        "source": choice.source,
        "left_out": list(choice.left_out),
        "baselines": [
            {
                "name": str(one.name),
                "feasible": one.feasible,
                "turn_s": one.turn_s,
                "is_bound": one.is_bound,
            }
            for one in choice.baselines
        ],
    }


def choice_line(choice: Choice) -> str:
    """`turn   14.2 s for 2048 tokens read, 512 written …: fastest; even 15 s, …`."""
    turn = choice.turn
    said = (
        f"turn   {seconds_text(choice.turn_s)} s ({seconds_text(choice.prediction.low_s)} to"
        f" {seconds_text(choice.prediction.high_s)}) for {turn.n_prompt} tokens read and"
        f" {turn.n_generate} written after {choice.n_depth}: {choice.name}"
    )
    if choice.gap is not None:
        said += f", proven within {100 * choice.gap:.1f} % on these cards in this order"
    others = sorted(
        (one for one in choice.baselines if one.name != choice.name and one.turn_s is not None),
        key=lambda one: (one.feasible is False, one.turn_s or 0.0),
    )
    parts = [_said(one) for one in others[:_OTHERS_MAX]]
    return f"{said}; {', '.join(parts)}" if parts else said


def _said(one: Baseline) -> str:
    least = "at least " if one.is_bound else ""
    does_not = " (does not fit)" if one.feasible is False else ""
    return f"{one.name} {least}{seconds_text(one.turn_s or 0.0)} s{does_not}"
