"""How is a plan served: llama-server started, watched, started again, planned again, stopped?

The loop between the pure decisions (supervise.py, readiness.py, replan.py) and one
process after the other (server_run.py). It prints nothing: what there is to say goes
to `Voice`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import replace
from typing import Final

from offload.emit import make_launch
from offload.engine.log import last_words, telling_line
from offload.engine.ports import held_port
from offload.engine.process import describe_exit
from offload.engine.remedy import remedy
from offload.engine.serving.canary import CanaryResult
from offload.engine.serving.replan import (
    MemoryFailure,
    describe_change,
    describe_failure,
    find_memory_failure,
    lost_cards,
    replan,
)
from offload.engine.serving.serve_options import Outcome, ServeOptions, Voice
from offload.engine.serving.server import Server
from offload.engine.serving.server_command import (
    PROGRAM,
    check_extra,
    make_address,
    make_command,
    warnings_of,
)
from offload.engine.serving.server_log import LogFile
from offload.engine.serving.server_run import RunEnd, ServerRun, lost_endpoints
from offload.engine.serving.stopping import StopRequest, stop_on_signals
from offload.engine.serving.supervise import (
    BecameReady,
    Ended,
    GiveUp,
    Reason,
    Replan,
    Start,
    Supervision,
)
from offload.errors import LlamaCppError, OffloadError
from offload.plan import Plan
from offload.render.request_json import Request

__all__ = ["Outcome", "ServeOptions", "StopRequest", "Voice", "serve", "stop_on_signals"]

_LOST_CARD: Final = re.compile(r"Remote RPC server crashed")
_ABORTED: Final = 128 + signal.SIGABRT
"""How llama.cpp itself ends when an RPC server cannot be reached."""


def serve(
    plan: Plan, request: Request, options: ServeOptions, stop: StopRequest, voice: Voice
) -> Outcome:
    """Serve `plan` until it is stopped, or nothing more can be done.

    `request` is what `plan` answers; it is planned again when memory runs out.
    Raises UsageError before anything is started: a port in use, a log that cannot be
    written, flags that do not go together.
    """
    check_extra(options.extra)
    make_address(options.host, options.port, options.extra, os.environ)
    with contextlib.ExitStack() as stack:
        # held to the end: nobody else may have it while a server is started again
        port = stack.enter_context(held_port(options.host, options.port))
        service = _Service(plan, request, replace(options, port=port), stop, voice)
        for warning in warnings_of(service.address, options.extra, os.environ):
            voice.say(warning)
        # a command that cannot be made is known before there is a log
        service.command()
        log = LogFile(options.log, voice.say)
        stack.callback(log.close)
        if log.path is not None:
            voice.say(f"llama-server's log: {log.path}")
        return service.run(log)


class _Service:
    """The state of one `serve` call."""

    def __init__(
        self, plan: Plan, request: Request, options: ServeOptions, stop: StopRequest, voice: Voice
    ) -> None:
        self.plan, self.request, self.options = plan, request, options
        self.stop, self.voice = stop, voice
        self.address = make_address(options.host, options.port, options.extra, os.environ)
        self.state = Supervision(policy=options.policy)
        self.canary: CanaryResult | None = None
        self.canary_due = options.canary_tokens is not None

    def command(self) -> tuple[str, ...]:
        """The argv of the present plan."""
        launch = make_launch(self.plan)
        return make_command(launch, self.options.program, self.address, self.options.extra)

    def run(self, log: LogFile) -> Outcome:
        """Start, watch and decide, over and over."""
        while not self.stop.stop.is_set():
            gone = lost_endpoints(self.plan)
            end = _unreachable() if gone else self._run_once(log)
            if end.stopped or self.stop.stop.is_set():
                break
            failure = None if gone else self._memory_failure(end)
            error = self._error(end, gone)
            self.state, action = self.state.after(
                Ended(
                    at_s=end.at_s,
                    exit_code=end.exit_code,
                    hung=end.hung,
                    short_of_memory=failure is not None,
                )
            )
            if isinstance(action, GiveUp):
                return self._give_up(action, error, failure)
            if isinstance(action, Replan):
                assert failure is not None
                if over := self._plan_again(failure, action, error):
                    return over
            elif isinstance(action, Start):
                self._announce(action, error)
                self.stop.stop.wait(action.delay_s)
            self.state = self.state.started()
        return self._outcome(None)

    def _run_once(self, log: LogFile) -> RunEnd:
        total_bytes = self.plan.model.size_bytes
        server = Server(self.command(), self.address, log, total_bytes=total_bytes)
        run = ServerRun(server, self.plan, self.options, self.stop, self.voice)
        end = run.run(with_canary=self.canary_due)
        if end.ready_s is not None:
            self.state, _ = self.state.after(BecameReady(at_s=end.ready_s))
            self.canary, self.canary_due = end.canary or self.canary, False
        return end

    def _memory_failure(self, end: RunEnd) -> MemoryFailure | None:
        """The shortage it died of; None where it died of something else."""
        if end.hung:
            return None
        serving = end.ready_s is not None
        failure = find_memory_failure(end.lines, self.plan, while_serving=serving)
        if failure is None and end.in_canary and any(map(_LOST_CARD.search, end.lines)):
            failure = lost_cards(self._suspects(), self.plan, end.lines)
        return failure

    def _suspects(self) -> list[int]:
        """The cards whose server is gone; all behind servers where one has only hung up."""
        cards = [d for d, device in enumerate(self.plan.devices) if device.endpoint]
        gone = lost_endpoints(self.plan)
        return [d for d in cards if self.plan.devices[d].endpoint in gone] or cards

    def _plan_again(
        self, failure: MemoryFailure, action: Replan, error: LlamaCppError
    ) -> Outcome | None:
        """Take the next plan; the outcome where there is none."""
        try:
            again, learnt = replan(self.plan, self.request, failure, action.i_try)
        except OffloadError as refused:
            return self._outcome(_with(error, f"{describe_failure(failure)}; {refused}"))
        if not again.feasible:
            short = [a.text for a in again.advice if a.code.startswith(("short-", "try-"))]
            why = f"{describe_failure(failure)}, and no plan helps: {'; '.join(short)}"
            return self._outcome(_with(error, why))
        self.voice.say(
            f"{describe_failure(failure)}; planned again"
            f" ({action.i_try} of {self.options.policy.replans_max}):"
            f" {describe_change(self.plan, again)}"
        )
        self.plan, self.request = again, learnt
        self.canary_due = self.options.canary_tokens is not None
        return None

    def _announce(self, action: Start, error: LlamaCppError) -> None:
        policy = self.options.policy
        most = policy.restarts_max if self.state.was_ready else policy.first_tries_max - 1
        self.voice.say(
            f"{error}; starting again in {action.delay_s:g} s ({action.n_failures} of {most})"
        )

    def _error(self, end: RunEnd, gone: list[str]) -> LlamaCppError:
        """What happened, in llama.cpp's words where it has any, and what to try."""
        advice = words = ""
        if gone:
            text = f"the RPC server at {', '.join(gone)} does not answer"
            advice = "start it, and check its address"
        elif end.hung:
            text = "llama-server showed no sign of life for longer than a load of its size explains"
        else:
            text = f"llama-server {describe_exit(end.exit_code)}"
            words, advice = telling_line(end.lines), remedy(end.exit_code, end.lines, PROGRAM)
        text = f"{text}: {words}" if words else text
        return LlamaCppError(
            f"{text}; {advice}" if advice else text,
            argv=self.command(),
            exit_code=end.exit_code,
            last_lines=last_words(end.lines),
        )

    def _give_up(
        self, action: GiveUp, error: LlamaCppError, failure: MemoryFailure | None
    ) -> Outcome:
        if action.reason is Reason.STOPPED_ITSELF:
            self.voice.say("llama-server ended in good order; it is not started again")
            return self._outcome(None)
        if action.reason is Reason.STILL_SHORT and failure is not None:
            n = self.options.policy.replans_max
            error = _with(
                error,
                f"{describe_failure(failure)}, after {n} other plans; say what it has"
                " with --vram or --gpu, or leave more with --margin",
            )
        elif action.reason is Reason.TOO_MANY_FAILURES and action.n_failures > 1:
            error = _with(error, f"{error} (given up after {action.n_failures} failures)")
        return self._outcome(error)

    def _outcome(self, error: LlamaCppError | None) -> Outcome:
        return Outcome(
            was_ready=self.state.was_ready, error=error, plan=self.plan, canary=self.canary
        )


def _unreachable() -> RunEnd:
    """What starting a server whose RPC servers are gone would come to."""
    return RunEnd(at_s=time.monotonic(), exit_code=_ABORTED, lines=())


def _with(error: LlamaCppError, message: str) -> LlamaCppError:
    return LlamaCppError(
        message, argv=error.argv, exit_code=error.exit_code, last_lines=error.last_lines
    )
