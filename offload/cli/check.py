"""`offload check`: is everything still as it was recorded?"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.app import command, print_answer, print_json
from offload.errors import UsageError

if TYPE_CHECKING:
    from offload.cli.flags import PlanFlags
    from offload.engine.verify import Judge
    from offload.forecast import Forecast
    from offload.plan import Plan
    from tuner.check.config import CheckConfig, ModelEntry
    from tuner.check.outcome import Report
    from tuner.check.run import Checker
    from tuner.check.speed import SpeedSettings


class CheckOutput(StrEnum):
    """What stdout carries."""

    TABLE = "table"
    JSON = "json"
    MD = "md"
    JUNIT = "junit"


@command()
def check(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]…", help="Models of the file [all].")
    ] = None,
    config: Annotated[
        str, typer.Option("--config", metavar="FILE", help="What to check.")
    ] = "offload.toml",
    update: Annotated[bool, typer.Option("--update", help="Record how everything is now.")] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="CHECK,…", help="plan, memory, prediction, speed [all but speed]."
        ),
    ] = None,
    llama_server: Annotated[
        str | None, typer.Option("--llama-server", metavar="PATH", help="The build to ask.")
    ] = None,
    builds: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--builds",
            metavar="OLD NEW",
            help="Two llama-servers (or llama-cpp-python) side by side.",
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option("--history", metavar="FILE", help="Add what was measured to this file."),
    ] = None,
    junit: Annotated[
        str | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML there too.")
    ] = None,
    output: Annotated[
        CheckOutput, typer.Option("-o", "--output", help="What to print.")
    ] = CheckOutput.TABLE,
) -> int:
    """Lay today's plans, llama.cpp's memory and predictions beside what was recorded."""
    from tuner.check.config import parse_checks, read_config
    from tuner.check.junit import report_to_junit

    asked = read_config(config)
    checks = asked.checks if only is None else parse_checks(only.split(","), "--only")
    entries = _chosen(asked, models)
    if builds is not None:
        if update or llama_server is not None:
            raise UsageError("--builds names both builds and records nothing; leave the others out")
        report = _compare_builds(asked, checks, entries, *builds)
    else:
        checker = _checker(asked, checks, entries, llama_server or _server(asked))
        report = checker.update(entries) if update else checker.check(entries)
    _print(report, output)
    if history is not None:
        from tuner.check.history import keep_history

        keep_history(report, history)
    if junit is not None:
        Path(junit).write_text(report_to_junit(report), encoding="utf-8")
    return report.exit_code


def _checker(
    config: CheckConfig,
    checks: tuple[str, ...],
    entries: tuple[ModelEntry, ...],
    server: str | None,
) -> Checker:
    from tuner.check.run import Checker

    return Checker(
        config=config,
        checks=checks,
        plan_today=_planner(config, entries, server),
        judge=_judge(server) if "memory" in checks else None,
        server=server,
        speed=_speed(config) if "speed" in checks else None,
    )


def _compare_builds(
    config: CheckConfig,
    checks: tuple[str, ...],
    entries: tuple[ModelEntry, ...],
    old: str,
    new: str,
) -> Report:
    """Memory, and speed where it is named, of today's plans for the newer build."""
    from offload.engine.virtual_cards import IN_PROCESS
    from tuner.check.builds import Builds

    if not {"memory", "speed"} & set(checks):
        raise UsageError("--builds compares memory and speed; name one of them with --only")
    return Builds(
        config=config,
        plan_today=_planner(config, entries, None if new == IN_PROCESS else new),
        old=old,
        new=new,
        judges=(_judge(old), _judge(new)) if "memory" in checks else None,
        speed=_speed(config) if "speed" in checks else None,
    ).compare(entries)


def _speed(config: CheckConfig) -> SpeedSettings:
    from tuner.check.speed import SpeedSettings
    from tuner.paired import SpeedOptions

    usual = SpeedOptions()
    options = SpeedOptions(
        time_s=config.speed_time_s or usual.time_s,
        decode_tolerance=config.decode or usual.decode_tolerance,
        prefill_tolerance=config.prefill or usual.prefill_tolerance,
    )
    return SpeedSettings(options=options, n_threads=config.n_threads)


def _planner(
    config: CheckConfig, entries: tuple[ModelEntry, ...], server: str | None
) -> Callable[[ModelEntry], tuple[Plan, Forecast | None]]:
    """Plans as the file says; what is wrong with any of its tables is told before the first."""
    flags_of = {entry.name: _flags(config, entry, server) for entry in entries}

    def plan_today(entry: ModelEntry) -> tuple[Plan, Forecast | None]:
        return _plan_today(config, entry, *flags_of[entry.name])

    return plan_today


def _print(report: Report, output: CheckOutput) -> None:
    from tuner.check.junit import report_to_junit
    from tuner.check.text import render_markdown, render_report, report_to_json

    if output is CheckOutput.JSON:
        print_json(report_to_json(report))
    elif output is CheckOutput.MD:
        print_answer(render_markdown(report))
    elif output is CheckOutput.JUNIT:
        print_answer(report_to_junit(report))
    else:
        print_answer(render_report(report))


def _server(config: CheckConfig) -> str | None:
    """A path from the file is seen from its folder, a bare name is one on PATH."""
    named = config.llama_server
    return str(config.locate(named)) if named and "/" in named else named


def _judge(server: str | None) -> Judge:
    from offload.engine.verify import find_judge

    return find_judge(None if server is None else Path(server))


def _chosen(config: CheckConfig, names: list[str] | None) -> tuple[ModelEntry, ...]:
    if not names:
        return config.models
    by_name = {entry.name: entry for entry in config.models}
    for name in names:
        if name not in by_name:
            raise UsageError(f"{config.path}: no model named {name!r}; one of {', '.join(by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(names))


def _flags(
    config: CheckConfig, entry: ModelEntry, server: str | None
) -> tuple[PlanFlags, str | None]:
    from offload.cli.check_flags import plan_flags

    return plan_flags(
        config.machine,
        config.options,
        entry.options,
        path=config.path,
        model=entry.name,
        llama_server=server,
    )


def _plan_today(
    config: CheckConfig, entry: ModelEntry, flags: PlanFlags, profile: str | None
) -> tuple[Plan, Forecast | None]:
    from offload.cli.asked import plan_here
    from offload.forecast import make_forecast

    plan, machine = plan_here(flags, str(config.locate(entry.path)), None, profile)
    measured = None if plan.speeds is None else plan.speeds.measured
    return plan, make_forecast(plan, machine.host, measured)
