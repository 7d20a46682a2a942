"""`offload inspect`: what does the header of a GGUF file say?"""

from __future__ import annotations

from offload.cli.app import command, print_answer, print_json
from offload.cli.asked import read_model
from offload.cli.flags import ModelPath, Report, ReportOption


@command()
def inspect(model: ModelPath, output: ReportOption = Report.TABLE) -> int:
    """Show what a GGUF header says: hyper-parameters, layers, tensor roles, bytes."""
    from offload.render.inspect import inspect_to_json, render_inspect

    loaded = read_model(model)
    if output is Report.JSON:
        print_json(inspect_to_json(loaded))
    else:
        print_answer(render_inspect(loaded))
    return 0
