"""`offload plan`: where does every tensor go, and which command puts it there?"""

from __future__ import annotations

from pathlib import Path

from offload.cli.app import command, print_answer, print_json
from offload.cli.flags import ModelPath, Output, OutputOption, PlanFlags


@command()
def plan(model: ModelPath, flags: PlanFlags, output: OutputOption = Output.TABLE) -> int:
    """Place every tensor so that each card holds its share, and print the command."""
    from offload.emit import emit_server_args, make_launch, quote_argv
    from offload.render import plan_to_json, render_plan

    made = flags.plan(model)
    known = None
    program = "llama-server"
    if flags.llama_server is not None:
        from offload.engine.binaries import supported_flags

        known, program = supported_flags(Path(flags.llama_server)), flags.llama_server
    argv = emit_server_args(make_launch(made), program, known)
    if output is Output.JSON:
        print_json(plan_to_json(made) | {"argv": list(argv)})
    elif output is Output.ARGS:
        print_answer(quote_argv(argv))
    else:
        print_answer(render_plan(made, argv))
    return 0 if made.feasible else 1
