"""`offload lint`: what is wrong with a pasted llama.cpp command, or why did its run fail?"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from offload.cli.app import command, print_answer, print_json
from offload.cli.asked import read_model
from offload.cli.flags import MachineFlags, parse_sizes

if TYPE_CHECKING:
    from offload.lint import Machine
    from offload.model import Model

_LOG_MAX_BYTES = 64 << 20


class LintOutput(StrEnum):
    """What stdout carries."""

    TABLE = "table"
    JSON = "json"
    MD = "md"


@command(pass_on=True)
def lint(
    ctx: typer.Context,
    flags: MachineFlags,
    margin: Annotated[
        str, typer.Option("--margin", metavar="SIZE[,SIZE…]", help="To leave free on each card.")
    ] = "1GiB",
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="FILE", help="Read this file instead of the command's -m."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log", metavar="FILE", help="A failed run's log; repeat for each try, - reads stdin."
        ),
    ] = None,
    output: Annotated[
        LintOutput, typer.Option("-o", "--output", help="What to print.")
    ] = LintOutput.TABLE,
) -> int:
    """Lay a llama-server, llama-cli or llama-bench command, after --, over model and cards."""
    from offload.emit.build import NEWEST
    from offload.lint import (
        lint as lint_,
    )
    from offload.lint import (
        lint_to_json,
        parse_command,
        read_settings,
        render_lint,
        render_lint_markdown,
    )

    logs = [_read_log(path) for path in log or ()]
    build = NEWEST
    if flags.llama_server is not None:
        from offload.engine.binaries import read_build

        build = read_build(Path(flags.llama_server))
    if not ctx.args and logs:
        report = lint_(None, logs=logs)
    else:
        parsed = parse_command(ctx.args, build.flags)
        loaded, refusal = _model(model or read_settings(parsed).model_path)
        report = lint_(
            parsed,
            model=loaded,
            model_refusal=refusal,
            machine=_machine(flags, margin),
            logs=logs,
            build=build,
        )
    if output is LintOutput.JSON:
        print_json(lint_to_json(report))
    else:
        render = render_lint if output is LintOutput.TABLE else render_lint_markdown
        print_answer(render(report))
    return 1 if report.has_errors else 0


def _model(path: str | None) -> tuple[Model | None, str]:
    """The command's model, or why not: pasted commands name files that are elsewhere."""
    from offload.errors import OffloadError

    if path is None:
        return None, ""
    try:
        return read_model(path), ""
    except OffloadError as why:
        return None, str(why)


def _machine(flags: MachineFlags, margin: str) -> Machine:
    from offload.lint import Machine

    found = flags.machine()
    return Machine(
        devices=found.devices or (() if flags.gpus == 0 else None),
        host_free_bytes=flags.host_free_bytes(found),
        margin_bytes=parse_sizes(margin, "--margin"),
    )


def _read_log(path: str) -> list[str]:
    """The lines of a log, whatever bytes are in it; the end counts where it is huge."""
    from offload.errors import UsageError

    try:
        if path != "-":
            with open(path, "rb") as file:
                data = _end_of(file)
        elif sys.stdin is None:
            raise UsageError("--log -: stdin is closed")
        else:
            data = _end_of(sys.stdin.buffer)
    except OSError as error:
        raise UsageError(f"--log {path}: {error.strerror or error}; name a file to read") from None
    return data.decode("utf-8", "replace").splitlines()


def _end_of(file: BinaryIO) -> bytes:
    """The last bytes of a file, or of what comes through a pipe."""
    if file.seekable():
        size = file.seek(0, 2)
        file.seek(max(size - _LOG_MAX_BYTES, 0))
        return file.read(_LOG_MAX_BYTES)
    before, last = b"", file.read(_LOG_MAX_BYTES)
    while len(last) == _LOG_MAX_BYTES:
        before, last = last, file.read(_LOG_MAX_BYTES)
    return (before + last)[-_LOG_MAX_BYTES:]
