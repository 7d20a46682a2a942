"""`offload compare`: what do the placements people use hold, and how fast would each be?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.app import command, notify, print_answer, print_json
from offload.cli.asked import ask_here, speeds_here
from offload.cli.flags import ModelPath, PlanFlags, ProfileOption
from offload.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offload.contenders import Contender
    from offload.device import Device
    from offload.speeds import Speeds
    from tuner.contest import Contest

_EXIT_INTERRUPTED = 130


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
    measure: Annotated[
        bool, typer.Option("--measure", help="Run each placement that fits with llama-bench, too.")
    ] = False,
    time: Annotated[
        str, typer.Option("--time", metavar="TIME", help="About how long --measure may take.")
    ] = "3m",
    virtual: Annotated[
        bool,
        typer.Option("--virtual", help="With --measure: play the cards on this machine's CPU."),
    ] = False,
    n_threads: Annotated[
        int | None, typer.Option("-t", "--threads", help="With --measure: of the host's part.")
    ] = None,
    output: Annotated[
        CompareOutput, typer.Option("-o", "--output", help="What to print.")
    ] = CompareOutput.TABLE,
) -> int:
    """Lay our spread beside first, last, all, none, one card and llama.cpp's --fit."""
    if virtual and not measure:
        raise UsageError("--virtual is how --measure runs; give both")
    if cards and measure:
        raise UsageError("--measure times placements on this machine; --cards are other machines")
    if cards:
        from offload.cli.machines import compare_machines

        return compare_machines(model, flags, tuple(cards), profile, output.value)
    from offload.contenders import make_contenders
    from offload.errors import OffloadError
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
    contest = None
    if measure:
        contest = _run(contenders, machine.devices, flags.llama_server, time, virtual, n_threads)
    rows = [(one, make_forecast(one.plan, machine.host, speeds.measured)) for one in contenders]
    timings = None if contest is None else contest.timings
    if output is CompareOutput.JSON:
        print_json(contenders_to_json(rows, measured=timings))
    else:
        is_md = output is CompareOutput.MD
        print_answer(render_contenders(rows, markdown=is_md, measured=timings))
    if contest is not None and contest.is_interrupted:
        return _EXIT_INTERRUPTED
    if timings and all(one.error and not one.decode_t_s for one in timings.values()):
        raise OffloadError(
            "llama-bench could run none of the placements: are these the cards of this machine?"
            " --virtual plays them on the CPU"
        )
    return 0 if any(one.plan.feasible for one in contenders) else 1


def _run(
    contenders: list[Contender],
    devices: Sequence[Device],
    llama_server: str | None,
    time: str,
    virtual: bool,
    n_threads: int | None,
) -> Contest:
    """Those that fit, timed in turns by llama-bench."""
    from offload.cli.bench import need_numpy, parse_duration_s, show_progress
    from offload.engine.binaries import find_binary, read_build
    from offload.engine.serving.server_command import Program, check_cards
    from offload.engine.targets import n_cores
    from offload.errors import OffloadError

    need_numpy()
    from tuner.contest import run_contest
    from tuner.runners import LlamaBench

    time_s = parse_duration_s(time)
    program = find_binary("llama-bench", None if llama_server is None else Path(llama_server))
    if program is None:
        raise OffloadError("--measure needs llama-bench, which is not here; give --llama-server")
    if virtual and not devices:
        raise UsageError(
            "--virtual plays cards, and there are none; say which: --gpus 2 --vram 8GiB"
        )
    if not virtual:
        # cards that are not here would be timed as the host
        named = [device.name for device in devices if not device.endpoint]
        check_cards(Program(path=program, build=read_build(program)), named)
    contest = run_contest(
        contenders,
        devices,
        runner=LlamaBench(program=program),
        time_s=time_s,
        n_threads=n_threads or (1 if virtual else n_cores()),
        virtual=virtual,
        on_progress=show_progress,
    )
    for name, timing in contest.timings.items():
        if timing.error is not None:
            notify(f"{name} failed: {timing.error}")
    if contest.is_interrupted:
        notify("interrupted; what was timed by then is below")
    return contest


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
