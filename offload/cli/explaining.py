"""`offload plan --explain`: which question was this plan the answer to, and why is it so?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from offload.cli.app import print_answer, print_json
from offload.cli.asked import ask_here, speeds_here
from offload.explain import Explanation, explain
from offload.question import Question, answered, question_of
from offload.render import plan_to_json, render_plan
from offload.render.explanation import explanation_to_json, render_explanation

if TYPE_CHECKING:
    from offload.cli.flags import PlanFlags
    from offload.forecast import Forecast
    from offload.machine import Machine
    from offload.plan import Plan


def print_explained(
    flags: PlanFlags,
    made: Plan,
    machine: Machine,
    forecast: Forecast | None,
    argv: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """The plan as without the flag, and what is said of it: below, or under one more key."""
    explanation = _explained(flags, made, machine)
    if as_json:
        answer = plan_to_json(made, forecast, argv)
        print_json({**answer, "explanation": explanation_to_json(explanation)})
    else:
        said = render_explanation(explanation)
        print_answer(f"{render_plan(made, argv, forecast)}\n\n{said}")


def _explained(flags: PlanFlags, made: Plan, machine: Machine) -> Explanation:
    speeds = made.speeds or speeds_here(flags, machine)
    question = question_of(made, speeds)
    if made.offered_devices != machine.devices:
        question = _with_cards_left_out(question, flags, machine)
    return explain(answered(question, made))


def _with_cards_left_out(question: Question, flags: PlanFlags, machine: Machine) -> Question:
    """A plan for one card alone still chose among all: what changes is asked of all of them."""
    asked = ask_here(flags, question.model.path)[2]
    chosen = question.options
    return question._replace(
        devices=machine.devices,
        options=replace(
            asked,
            n_ctx=chosen.n_ctx,
            type_k=chosen.type_k,
            type_v=chosen.type_v,
            n_ubatch=chosen.n_ubatch,
            n_batch=chosen.n_batch,
            llama_build=chosen.llama_build,
        ),
    )
