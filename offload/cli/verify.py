"""`offload verify`: does llama.cpp itself say what the plan says?"""

from __future__ import annotations

from pathlib import Path

from offload.cli.app import command, print_answer, print_json
from offload.cli.asked import plan_or_saved
from offload.cli.flags import PlanFlags, PlanOrModel, Report, ReportOption


@command()
def verify(target: PlanOrModel, flags: PlanFlags, output: ReportOption = Report.TABLE) -> int:
    """Ask llama.cpp for a dry run of a plan, and plan again until it holds."""
    from offload.engine.confirm import confirm_plan
    from offload.engine.verify import find_judge
    from offload.forecast import forecast_of
    from offload.render import plan_to_json
    from offload.render.confirmation import confirmation_to_json, render_confirmation

    judge = find_judge(None if flags.llama_server is None else Path(flags.llama_server))
    plan, request = plan_or_saved(flags, target, judge.build)
    is_saved = plan.options != request.options
    confirmation = confirm_plan(plan, request, judge, improve=not is_saved)
    if output is Report.JSON:
        made = confirmation.plan
        forecast = forecast_of(made)
        print_json(confirmation_to_json(confirmation) | {"plan": plan_to_json(made, forecast)})
    else:
        print_answer(render_confirmation(confirmation))
    holds = confirmation.rounds[0] if is_saved else confirmation.best
    return 0 if holds.holds else 1
