"""`offload serve`: a plan, carried out by a llama-server that is watched over."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.app import command, notify, print_answer
from offload.cli.asked import plan_or_saved
from offload.cli.flags import PlanFlags, PlanOrModel
from offload.errors import UsageError

if TYPE_CHECKING:
    from offload.engine.serving.readiness import LoadProgress
    from offload.engine.serving.serve import ServeOptions
    from offload.plan import Plan
    from offload.render.request_json import Request


@command(pass_on=True)
def serve(
    ctx: typer.Context,
    target: PlanOrModel,
    flags: PlanFlags,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 for any.")] = 8080,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="FILE", help="llama-server's log [a private file]."),
    ] = None,
    canary: Annotated[
        bool, typer.Option("--canary", help="First read one prompt as long as a slot's context.")
    ] = False,
    canary_tokens: Annotated[
        int | None, typer.Option("--canary-tokens", metavar="N", help="The same, of N tokens.")
    ] = None,
    restarts: Annotated[
        int, typer.Option("--restarts", min=0, help="Failures in a row before giving up.")
    ] = 5,
    grace: Annotated[
        float, typer.Option("--grace", min=0.0, metavar="S", help="Seconds to stop in.")
    ] = 20.0,
) -> int:
    """Load a plan with llama-server and keep it running; flags after -- are llama-server's."""
    from offload.engine.serving.serve import ServeOptions
    from offload.engine.serving.server_command import check_cards, check_extra, find_program
    from offload.engine.serving.supervise import Policy

    if canary_tokens is not None and canary_tokens < 1:
        raise UsageError(f"--canary-tokens {canary_tokens}: at least 1")
    extra = _passed_on(ctx.args)
    check_extra(extra)
    try:
        program = find_program(None if flags.llama_server is None else Path(flags.llama_server))
        plan, request = plan_or_saved(flags, target, program.build.number)
        if plan.feasible:
            check_cards(program, [d.name for d in plan.devices if not d.endpoint])
    except KeyboardInterrupt:
        notify("interrupted; nothing was started")
        return 130
    if not plan.feasible:
        for advice in plan.advice:
            notify(advice.text)
        notify("it does not fit, so it is not started")
        return 1
    options = ServeOptions(
        program=program,
        host=host,
        port=port,
        log=None if log is None else Path(log),
        extra=extra,
        canary_tokens=canary_tokens if canary_tokens is not None else 0 if canary else None,
        grace_s=grace,
        policy=Policy(restarts_max=restarts),
    )
    return _serve(plan, request, options)


def _serve(plan: Plan, request: Request, options: ServeOptions) -> int:
    """Until it is stopped: 0 where it served before, else 128 + signal."""
    from offload.engine.serving.serve import Voice, stop_on_signals
    from offload.engine.serving.serve import serve as serve_plan

    screen = _Screen()
    voice = Voice(
        say=screen.say, loading=screen.loading, reading=screen.reading, ready=screen.ready
    )
    with stop_on_signals(to_the_end=True) as stop:
        outcome = serve_plan(plan, request, options, stop, voice)
    if outcome.error is not None:
        raise outcome.error
    if stop.signal_number is None:
        return 0
    screen.say("stopped")
    return 0 if outcome.was_ready else 128 + stop.signal_number


def _passed_on(args: list[str]) -> tuple[str, ...]:
    """What follows `--`; an unknown flag before it is a mistake, not llama-server's."""
    typed = sys.argv
    after = typed[typed.index("--") + 1 :] if "--" in typed else []
    if list(args) != after:
        unknown = next((a for a in args if a not in after), args[0] if args else "")
        raise UsageError(f"{unknown} is unknown; flags for llama-server go after --")
    return tuple(after)


class _Screen:
    """What stderr shows: sentences, and a progress line that rewrites itself on a terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._open = False
        self._shown = -1
        self._announced = False

    def say(self, text: str) -> None:
        """One line."""
        self._end_line()
        try:
            notify(text)
        except (OSError, ValueError):
            sys.stderr = None  # the terminal is gone; the server goes on

    def loading(self, progress: LoadProgress | None) -> None:
        """How far loading is; None once it is over."""
        if progress is None:
            self._shown = -1
            self._end_line()
            return
        done, total = progress.done_bytes / 1e9, progress.total_bytes / 1e9
        rate = f", {progress.bytes_per_s / 1e6:.0f} MB/s" if progress.bytes_per_s else ""
        self._progress(
            progress.percent,
            f"loading: {progress.percent} % read, {done:.1f} of {total:.1f} GB{rate}",
        )

    def reading(self, n_read: int, n_sent: int) -> None:
        """How far the canary prompt is read; 0, 0 once it is over."""
        if not n_sent:
            self._shown = -1
            self._end_line()
            return
        self._progress(100 * n_read // n_sent, f"canary: {n_read} of {n_sent} tokens read")

    def ready(self, url: str) -> None:
        """The address is the answer, printed once; later it is news."""
        if self._announced:
            self.say(f"serving again at {url}")
            return
        self._announced = True
        self._end_line()
        try:
            if sys.stdout is not None:
                print_answer(url)
            self.say("ready" if sys.stdout is not None else f"ready at {url}")
        except OSError as error:  # a full disk: no reason to end a server that is up
            self.say(f"ready at {url}; stdout cannot be written ({error.strerror})")

    def _progress(self, percent: int, text: str) -> None:
        if self._is_terminal:
            self._write(f"\r\x1b[Koffload: {text}")
            self._open = True
        elif percent // 10 != self._shown // 10 or self._shown < 0:
            self._write(f"offload: {text}\n")
        self._shown = percent

    def _end_line(self) -> None:
        if self._open:
            self._write("\r\x1b[K")
            self._open = False

    def _write(self, text: str) -> None:
        try:
            if sys.stderr is not None:
                sys.stderr.write(text)
                sys.stderr.flush()
        except (OSError, ValueError):
            sys.stderr = None
