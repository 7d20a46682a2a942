"""`offload compare`: what do the placements people use hold, and how fast would each be?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.app import command, notify, print_answer, print_json
from offload.cli.asked import ask_here, speeds_here
from offload.cli.flags import ModelPath, PlanFlags, ProfileOption

if TYPE_CHECKING:
    from offload.contenders import Contender
    from offload.speeds import Speeds


class CompareOutput(StrEnum):
    """What stdout carries."""

    TABLE = "table"
    JSON = "json"
    MD = "md"


@command()
def compare(
    model: ModelPath,
    flags: PlanFlags,
    cards: Annotated[
        list[str] | None,
        typer.Option(
            "--cards",
            metavar="CARDS",
            help="Another machine, e.g. 3x24GiB:936GB/s, 'RTX 3090,12GiB', '+RTX 3060', -CUDA1 or"
            " CUDA0=RTX 4090; repeat for each. Compares machines instead of placements.",
        ),
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit/--no-fit", help="Ask llama.cpp's --fit too, where it is here.")
    ] = True,
    profile: ProfileOption = None,
    output: Annotated[
        CompareOutput, typer.Option("-o", "--output", help="What to print.")
    ] = CompareOutput.TABLE,
) -> int:
    """Lay our spread beside first, last, all, none, one card and llama.cpp's --fit."""
    if cards:
        from offload.cli.machines import compare_machines

        return compare_machines(model, flags, tuple(cards), profile, output.value)
    from offload.contenders import make_contenders
    from offload.forecast import make_forecast
    from offload.render.contenders import contenders_to_json, render_contenders

    read, machine, options = ask_here(flags, model)
    speeds = speeds_here(flags, machine, profile)
    host_free = flags.host_free_bytes(machine)
    contenders = list(
        make_contenders(read, machine.devices, options, host_free_bytes=host_free, speeds=speeds)
    )
    for notice in machine.warnings:
        notify(notice.text)
    if fit and contenders[0].plan.devices:
        asked = next((one for one in contenders if one.name == "even"), contenders[0])
        contenders += _by_fit(asked, flags.llama_server, speeds)
    rows = [(one, make_forecast(one.plan, machine.host, speeds.measured)) for one in contenders]
    if output is CompareOutput.JSON:
        print_json(contenders_to_json(rows))
    else:
        print_answer(render_contenders(rows, markdown=output is CompareOutput.MD))
    return 0 if any(one.plan.feasible for one in contenders) else 1


def _by_fit(ours: Contender, llama_server: str | None, speeds: Speeds) -> list[Contender]:
    """`--fit`'s own choice, where its program is here and it makes one; else why not, on stderr."""
    from offload.contenders import fit_contender
    from offload.engine.binaries import find_binary
    from offload.engine.fit_choice import ask_fit
    from offload.engine.fit_params import BINARY
    from offload.errors import LlamaCppError

    program = find_binary(BINARY, None if llama_server is None else Path(llama_server))
    if program is None:
        notify(f"{BINARY} is not here, so --fit is left out; give --llama-server PATH or --no-fit")
        return []
    plan = ours.plan
    try:
        answer = ask_fit(plan, program)
    except LlamaCppError as error:
        notify(f"--fit is left out: {error}")
        return []
    return [
        fit_contender(
            plan.model,
            plan.offered_devices,
            plan.options,
            answer,
            host_free_bytes=plan.host_free_bytes,
            speeds=speeds,
        )
    ]
