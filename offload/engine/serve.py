"""How is a plan served: llama-server started, watched, started again, planned again, stopped?

The loop between the pure decisions (supervise.py, readiness.py, replan.py) and the
processes (server.py). It prints nothing: what there is to say goes to `Voice`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from offload.emit import make_launch
from offload.engine.canary import CanaryResult, run_canary
from offload.engine.growth import margins_with_growth, record_growth
from offload.engine.log import last_words, telling_line
from offload.engine.ports import held_port, is_reachable
from offload.engine.process import describe_exit
from offload.engine.readiness import LoadProgress, Patience
from offload.engine.remedy import remedy
from offload.engine.replan import (
    MemoryFailure,
    describe_change,
    describe_failure,
    find_memory_failure,
    lost_cards,
    replan,
)
from offload.engine.server import Server, Waited
from offload.engine.server_api import Health
from offload.engine.server_command import (
    Program,
    check_extra,
    make_address,
    make_command,
    warnings_of,
)
from offload.engine.server_log import LogFile
from offload.engine.supervise import (
    BecameReady,
    Ended,
    GiveUp,
    Policy,
    Reason,
    Replan,
    Start,
    Supervision,
)
from offload.errors import LlamaCppError, OffloadError
from offload.plan import Plan
from offload.render.request_json import Request
from offload.units import MIB

_WATCH_S: Final = 0.25
_HEALTH_EVERY_S: Final = 5.0
_SILENT_S: Final = 60.0
_ABORT_S: Final = 10.0
_LOST_CARD: Final = re.compile(r"Remote RPC server crashed|RPC server at .* does not answer")
_ABORTED: Final = 128 + signal.SIGABRT
"""How llama.cpp ends when an RPC server cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Everything but the plan. `canary_tokens` None: no canary; 0: as long as a slot."""

    program: Program
    host: str = "127.0.0.1"
    port: int = 8080
    log: Path | None = None
    extra: tuple[str, ...] = ()
    canary_tokens: int | None = None
    grace_s: float = 20.0
    policy: Policy = field(default_factory=Policy)
    patience: Patience = field(default_factory=Patience)
    state_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """Whom to tell: sentences, progress of a load or a canary, and the address once it serves."""

    say: Callable[[str], None]
    loading: Callable[[LoadProgress | None], None] = lambda _: None
    reading: Callable[[int, int], None] = lambda n_read, n_sent: None
    ready: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class StopRequest:
    """Set by signal handlers: `stop` to end in good order, `hurry` to end now."""

    stop: threading.Event = field(default_factory=threading.Event)
    hurry: threading.Event = field(default_factory=threading.Event)
    signal_number: int | None = None

    def __call__(self, number: int, _frame: object = None) -> None:
        """A signal came; the second one hurries."""
        if self.stop.is_set():
            self.hurry.set()
        self.signal_number = self.signal_number or number
        self.stop.set()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request for the length of the `with` block."""
    request = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup and shells that start us in the background have a say
    heard = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, request) for number in heard}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How serving ended. `error` is None for a clean stop."""

    was_ready: bool
    error: LlamaCppError | None = None
    plan: Plan | None = None
    canary: CanaryResult | None = None


def serve(
    plan: Plan, request: Request, options: ServeOptions, stop: StopRequest, voice: Voice
) -> Outcome:
    """Serve `plan` until it is stopped, or nothing more can be done.

    `request` is what `plan` answers; it is planned again when memory runs out.
    Raises UsageError before anything is started: a port in use, a log that cannot be
    written, flags that do not go together.
    """
    check_extra(options.extra)
    with contextlib.ExitStack() as stack:
        # held to the end: nobody else may have it while a server is started again
        port = stack.enter_context(held_port(options.host, options.port))
        service = _Service(plan, request, replace(options, port=port), stop, voice)
        for warning in warnings_of(service.address, options.extra, os.environ):
            voice.say(warning)
        # a command that cannot be made is known before there is a log
        service.command()
        stack.callback(service.log.close)
        if service.log.path is not None:
            voice.say(f"llama-server's log: {service.log.path}")
        return service.run()


class _Service:
    """The state of one `serve` call."""

    def __init__(
        self, plan: Plan, request: Request, options: ServeOptions, stop: StopRequest, voice: Voice
    ) -> None:
        self.plan, self.request, self.options = plan, request, options
        self.stop, self.voice = stop, voice
        self.address = make_address(options.host, options.port, options.extra, os.environ)
        self.log = LogFile(options.log, voice.say)
        self.state = Supervision(policy=options.policy)
        self.canary: CanaryResult | None = None
        self.canary_due = options.canary_tokens is not None
        self.in_canary = False

    def command(self) -> tuple[str, ...]:
        """The argv of the present plan."""
        launch = make_launch(self.plan)
        return make_command(launch, self.options.program, self.address, self.options.extra)

    def run(self) -> Outcome:
        """Start, watch and decide, over and over."""
        while not self.stop.stop.is_set():
            ended, lines = self._run_once()
            if ended is None or self.stop.stop.is_set():
                break
            failure = self._memory_failure(ended, lines)
            event = replace(ended, short_of_memory=failure is not None)
            self.state, action = self.state.after(event)
            error = self._error(ended, lines)
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

    def _run_once(self) -> tuple[Ended | None, Sequence[str]]:
        """One process from start to end; None where it was we who stopped it."""
        if gone := self._lost_endpoints():
            text = f"the RPC server at {', '.join(gone)} does not answer"
            return Ended(at_s=time.monotonic(), exit_code=_ABORTED), [f"error: {text}"]
        total_bytes = self.plan.model.size_bytes
        server = Server(self.command(), self.address, self.log, total_bytes=total_bytes)
        with server:
            waited = server.wait_ready(self.options.patience, self.stop.stop, self.voice.loading)
            self.voice.loading(None)
            if waited is Waited.READY:
                self.state, _ = self.state.after(BecameReady(at_s=time.monotonic()))
                self.voice.ready(self.address.url)
                self._watch(server)
            if server.exit_code is None and (self.stop.stop.is_set() or waited is Waited.HUNG):
                self._stop(server, 0.0 if waited is Waited.HUNG else self.options.grace_s)
                if waited is not Waited.HUNG:
                    return None, ()
        code = server.exit_code if server.exit_code is not None else _ABORTED
        ended = Ended(at_s=time.monotonic(), exit_code=code, hung=waited is Waited.HUNG)
        return ended, server.lines()

    def _stop(self, server: Server, grace_s: float) -> None:
        server.stop(grace_s, self.stop.hurry)

    def _watch(self, server: Server) -> None:
        """Until the process ends or we are to stop."""
        if self.canary_due:
            self._run_canary(server)
        answered_s = asked_s = time.monotonic()
        told = False
        while server.exit_code is None and not self.stop.stop.wait(_WATCH_S):
            now_s = time.monotonic()
            if now_s - asked_s < _HEALTH_EVERY_S:
                continue
            asked_s = now_s
            if server.health() is Health.SILENT:
                if now_s - answered_s > _SILENT_S and not told:
                    told = True
                    self.voice.say(f"/health has not answered for {now_s - answered_s:.0f} s")
            else:
                if told:
                    self.voice.say("/health answers again")
                answered_s, told = now_s, False

    def _run_canary(self, server: Server) -> None:
        self.in_canary, self.canary_due = True, False
        tokens = self.options.canary_tokens or 0
        result = run_canary(server, self.plan, tokens, self.stop.stop, self.voice.reading)
        self.voice.reading(0, 0)
        if result is None:
            return
        if not result.survived:
            self._await_end(server)
        self.canary = result
        with contextlib.suppress(OSError):
            record_growth(
                self.plan,
                result.growth_bytes,
                n_tokens=result.n_tokens,
                survived=result.survived,
                path=self.options.state_file,
            )
        if server.exit_code is None:
            self.in_canary = False
            self._tell_canary(result)

    def _await_end(self, server: Server) -> None:
        """A server that aborts breaks its connections off a while before it is gone."""
        deadline_s = time.monotonic() + _ABORT_S
        while server.exit_code is None and time.monotonic() < deadline_s:
            if self.stop.stop.wait(_WATCH_S):
                return

    def _tell_canary(self, result: CanaryResult) -> None:
        if not result.survived:
            self.voice.say(f"the canary prompt was not answered: {result.error}")
            return
        grown = ", ".join(f"{k} {n / MIB:+.0f} MiB" for k, n in result.growth_bytes.items())
        self.voice.say(f"canary: {result.n_tokens} tokens read; memory {grown or 'cannot be seen'}")
        margins = self.plan.margins_bytes
        wanted = margins_with_growth(margins, self.plan.devices, result.growth_bytes)
        if wanted != tuple(margins):
            texts = ",".join(f"{n // MIB}MiB" for n in wanted)
            self.voice.say(f"that is more than the margin: plan with --margin {texts}")

    def _lost_endpoints(self) -> list[str]:
        endpoints = dict.fromkeys(d.endpoint for d in self.plan.devices if d.endpoint)
        return [endpoint for endpoint in endpoints if not is_reachable(endpoint)]

    def _memory_failure(self, ended: Ended, lines: Sequence[str]) -> MemoryFailure | None:
        if ended.hung or not lines:
            return None
        in_canary, self.in_canary = self.in_canary, False
        was_ready = self.state.ready_since_s is not None
        failure = find_memory_failure(lines, self.plan, while_serving=was_ready)
        if failure is None and in_canary and any(_LOST_CARD.search(line) for line in lines[-60:]):
            failure = lost_cards(self._likely_lost(), self.plan, lines)
        return failure

    def _likely_lost(self) -> list[int]:
        """The cards whose server is gone; all behind servers where one has only hung up."""
        cards = [d for d, device in enumerate(self.plan.devices) if device.endpoint]
        gone = self._lost_endpoints()
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
            advice = "; ".join(a.text for a in again.advice if "short" in a.code or "fit" in a.code)
            why = f"{describe_failure(failure)}, and no plan leaves it more; {advice}"
            return self._outcome(_with(error, why.rstrip("; ")))
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

    def _error(self, ended: Ended, lines: Sequence[str]) -> LlamaCppError:
        if ended.hung:
            how = "showed no sign of life for longer than a load of this size explains"
        else:
            how = describe_exit(ended.exit_code)
        words = telling_line(lines)
        advice = "" if ended.hung else remedy(ended.exit_code, lines)
        text = f"llama-server {how}{': ' + words if words else ''}"
        return LlamaCppError(
            f"{text}; {advice}" if advice else text,
            argv=self.command(),
            exit_code=ended.exit_code,
            last_lines=last_words(lines),
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
                error, f"{describe_failure(failure)}, after {n} other plans; give it more --margin"
            )
        elif action.reason is Reason.TOO_MANY_FAILURES and action.n_failures > 1:
            error = _with(error, f"{error} (given up after {action.n_failures} failures)")
        return self._outcome(error)

    def _outcome(self, error: LlamaCppError | None) -> Outcome:
        return Outcome(
            was_ready=self.state.was_ready, error=error, plan=self.plan, canary=self.canary
        )


def _with(error: LlamaCppError, message: str) -> LlamaCppError:
    return LlamaCppError(
        message, argv=error.argv, exit_code=error.exit_code, last_lines=error.last_lines
    )
