"""`offload emit`: what is a saved plan in another program's words?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from offload.cli.app import command, print_answer
from offload.cli.flags import LlamaServerOption


class EmitFormat(StrEnum):
    """Whose command line to print."""

    ARGS = "args"
    BENCH = "bench"


@command()
def emit(
    plan_file: Annotated[
        str, typer.Argument(metavar="PLAN", help="A plan saved with -o json; - reads stdin.")
    ],
    form: Annotated[
        EmitFormat, typer.Option("--format", help="llama-server or llama-bench arguments.")
    ] = EmitFormat.ARGS,
    llama_server: LlamaServerOption = None,
) -> int:
    """Print the command line of a saved plan for another program."""
    from offload.emit import emit_bench_args, emit_server_args, quote_argv
    from offload.saved import read_launch

    launch = read_launch(plan_file)
    if form is EmitFormat.BENCH:
        print_answer(quote_argv(emit_bench_args(launch)))
        return 0
    known = None
    if llama_server is not None:
        from offload.engine.binaries import supported_flags

        known = supported_flags(Path(llama_server))
    print_answer(quote_argv(emit_server_args(launch, llama_server or "llama-server", known)))
    return 0
