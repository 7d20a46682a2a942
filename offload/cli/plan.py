"""`offload plan`: where does every tensor go, and which command puts it there?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.app import command, notify, print_answer, print_json
from offload.cli.asked import plan_here
from offload.cli.flags import (
    ModelPath,
    Output,
    OutputOption,
    PlanFlags,
    ProfileOption,
)
from offload.errors import UsageError

if TYPE_CHECKING:
    from offload.engine.verify import Judge
    from offload.plan import Plan


@command()
def plan(
    model: ModelPath,
    flags: PlanFlags,
    verify: Annotated[
        bool, typer.Option("--verify", help="Have llama.cpp confirm it, and plan again if not.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why, and what one thing more would change.")
    ] = False,
    profile: ProfileOption = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Place every tensor so that each card holds its share, and print the command."""
    from offload.emit import emit_server_args, make_launch, quote_argv
    from offload.forecast import make_forecast
    from offload.render import plan_to_json, render_plan

    if explain and output is Output.ARGS:
        raise UsageError("--explain has no place in -o args; leave one of them out")
    if output is Output.JSON:
        model = os.path.abspath(model)  # a saved plan is read from anywhere
        flags.draft = flags.draft and os.path.abspath(flags.draft)
        flags.mmproj = flags.mmproj and os.path.abspath(flags.mmproj)
    judge = _judge(flags) if verify else None
    made, machine = plan_here(flags, model, None if judge is None else judge.build, profile)
    if judge is not None:
        made = _confirmed(made, judge)
    if flags.llama_server is None:
        argv = emit_server_args(make_launch(made))
    else:
        from offload.engine.binaries import read_build

        build = read_build(Path(flags.llama_server))
        argv = emit_server_args(make_launch(made), flags.llama_server, build=build)
    if output is Output.ARGS:
        print_answer(quote_argv(argv))
        return 0 if made.feasible else 1
    forecast = make_forecast(
        made, machine.host, None if made.speeds is None else made.speeds.measured
    )
    if explain:
        from offload.cli.explaining import print_explained

        print_explained(flags, made, machine, forecast, argv, as_json=output is Output.JSON)
    elif output is Output.JSON:
        print_json(plan_to_json(made, forecast, argv))
    else:
        print_answer(render_plan(made, argv, forecast))
    return 0 if made.feasible else 1


def _judge(flags: PlanFlags) -> Judge:
    from offload.engine.verify import find_judge

    return find_judge(None if flags.llama_server is None else Path(flags.llama_server))


def _confirmed(made: Plan, judge: Judge) -> Plan:
    """The plan with llama.cpp's own numbers; what it changed is told on stderr."""
    from offload.engine.confirm import confirm_plan
    from offload.errors import LlamaCppError
    from offload.render.confirmation import changes
    from offload.render.request_json import request_of_plan

    confirmation = confirm_plan(made, request_of_plan(made), judge)
    for text in changes(confirmation.rounds[0], confirmation.best):
        notify(f"llama.cpp's own numbers changed the plan: {text}")
    if not confirmation.best.verification.places_equal:
        wrong = confirmation.best.verification
        raise LlamaCppError(
            f"llama.cpp places {len(wrong.wrong_owners)} layers and {len(wrong.wrong_tensors)}"
            " tensors otherwise than planned; offload verify shows which"
        )
    return confirmation.plan
