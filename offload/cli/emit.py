"""`offload emit`: what is a saved plan in another program's words?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.app import command, notify, print_answer
from offload.cli.flags import LlamaServerOption
from offload.emit.formats import FORMATS, Format, emit_as, find_format

if TYPE_CHECKING:
    from offload.emit import Launch
    from offload.emit.target import Target

_FORMATS = "; ".join(f"{form.name}: {form.summary}" for form in FORMATS)


@command()
def emit(
    plan_file: Annotated[
        str, typer.Argument(metavar="PLAN", help="A plan saved with -o json; - reads stdin.")
    ],
    form: Annotated[str, typer.Option("--format", metavar="NAME", help=f"{_FORMATS}.")] = "args",
    llama_server: LlamaServerOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="PATH", help="Where the model lies for its reader [the plan's]."
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="To listen on [127.0.0.1].")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="To listen on [8080].")] = None,
    alias: Annotated[
        str | None, typer.Option("--alias", metavar="NAME", help="The model's name [its file's].")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="IMAGE", help="Container image [llama.cpp's own]."),
    ] = None,
) -> int:
    """Print a saved plan as a command line or a configuration file of another program."""
    from dataclasses import replace

    from offload.emit.target import Target
    from offload.saved import read_launch

    chosen = find_format(form)
    launch = read_launch(plan_file)
    if model is not None or chosen.is_file:
        launch = replace(launch, model_path=_whole_path(model, launch))
    target = _with_build(
        Target(host=host, port=port, alias=alias, image=image), chosen, llama_server
    )
    print_answer(emit_as(launch, form, target))
    if form == "bench" and (launch.draft_path or launch.mmproj_path):
        notify("llama-bench times the model alone: the draft or projector is left out")
    if host is not None and not host.startswith(("127.", "localhost", "::1", "[::1]")):
        notify(f"--host {host}: whoever reaches that address can use the server without a key")
    return 0


def _whole_path(model: str | None, launch: Launch) -> str:
    """The path as given, or the plan's own made absolute where we are."""
    return os.path.abspath(launch.model_path) if model is None else model


def _with_build(target: Target, form: Format, llama_server: str | None) -> Target:
    """The target for the given build, whose program of the format's kind is the one to run."""
    from dataclasses import replace

    if llama_server is None:
        return target
    from offload.engine.binaries import find_binary, read_build
    from offload.errors import LlamaCppError

    given = Path(llama_server)
    program = find_binary(form.program, given)
    if program is None:
        raise LlamaCppError(f"{llama_server}: no {form.program} there that can be run")
    spoken = str(given if given.is_file() and form.program == "llama-server" else program)
    if form.is_file:
        spoken = os.path.abspath(spoken)
    return replace(target, program=spoken, build=read_build(program))
