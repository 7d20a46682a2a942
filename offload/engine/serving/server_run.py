"""One llama-server under a plan, from start to end: loaded, given its canary, watched, stopped.

What the end means and what comes next is not decided here: see offload/engine/serving/serve.py.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Final

from offload.engine.ports import is_reachable
from offload.engine.serving.canary import CanaryResult, run_canary
from offload.engine.serving.growth import margins_with_growth, record_growth
from offload.engine.serving.serve_options import ServeOptions, Voice
from offload.engine.serving.server import Server, Waited
from offload.engine.serving.server_api import Health
from offload.engine.serving.stopping import StopRequest
from offload.plan import Plan
from offload.units import MIB

_WATCH_S: Final = 0.25
_HEALTH_EVERY_S: Final = 5.0
_SILENT_S: Final = 60.0
_ABORT_S: Final = 10.0
_UNREAPED: Final = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How it ended. `lines` are those of the phase it ended in: of loading, or of serving.

    `stopped`: it was we who were asked to stop it. `ready_s` is when it became ready, on
    the monotonic clock. `in_canary`: it died of the canary, as far as one can tell.
    """

    at_s: float
    exit_code: int
    lines: tuple[str, ...]
    hung: bool = False
    stopped: bool = False
    ready_s: float | None = None
    in_canary: bool = False
    canary: CanaryResult | None = None


class ServerRun:
    """Watches over one server; `run` returns when it has ended."""

    def __init__(
        self, server: Server, plan: Plan, options: ServeOptions, stop: StopRequest, voice: Voice
    ) -> None:
        self._server, self._plan, self._options = server, plan, options
        self._stop, self._voice = stop, voice
        self._canary: CanaryResult | None = None
        self._in_canary = False

    def run(self, *, with_canary: bool) -> RunEnd:
        """Start it and stay until its end."""
        server, stop, ready_s, n_loading = self._server, self._stop.stop, None, 0
        with server:
            waited = server.wait_ready(self._options.patience, stop, self._voice.loading)
            self._voice.loading(None)
            if waited is Waited.READY:
                ready_s, n_loading = time.monotonic(), server.n_lines
                self._voice.ready(server.address.url)
                if with_canary:
                    self._run_canary()
                self._watch()
            hung = waited is Waited.HUNG
            stopped = server.exit_code is None and not hung
            server.stop(0.0 if hung else self._options.grace_s, self._stop.hurry)
        return RunEnd(
            at_s=time.monotonic(),
            exit_code=_UNREAPED if server.exit_code is None else server.exit_code,
            lines=tuple(server.lines(n_loading)),
            hung=hung,
            stopped=stopped,
            ready_s=ready_s,
            in_canary=self._in_canary,
            canary=self._canary,
        )

    def _watch(self) -> None:
        """Until the process ends or we are to stop."""
        answered_s = asked_s = time.monotonic()
        told = False
        while self._server.exit_code is None and not self._stop.stop.wait(_WATCH_S):
            now_s = time.monotonic()
            if now_s - asked_s < _HEALTH_EVERY_S:
                continue
            asked_s = now_s
            if self._server.health() is not Health.SILENT:
                if told:
                    self._voice.say("/health answers again")
                answered_s, told = now_s, False
            elif now_s - answered_s > _SILENT_S and not told:
                told = True
                self._voice.say(f"/health has not answered for {now_s - answered_s:.0f} s")

    def _run_canary(self) -> None:
        self._in_canary = True
        result = run_canary(
            self._server,
            self._plan,
            self._options.canary_tokens or 0,
            self._stop.stop,
            self._voice.reading,
        )
        self._voice.reading(0, 0)
        if result is None:
            return
        if not result.survived:
            self._await_end()
        self._canary = result
        self._in_canary = self._server.exit_code is not None
        self._record(result)
        if not self._in_canary:
            tell_canary(result, self._plan, self._voice)

    def _await_end(self) -> None:
        """A server that aborts breaks its connections off a while before it is gone."""
        deadline_s = time.monotonic() + _ABORT_S
        while self._server.exit_code is None and time.monotonic() < deadline_s:
            if self._stop.stop.wait(_WATCH_S):
                return

    def _record(self, result: CanaryResult) -> None:
        try:
            record_growth(
                self._plan,
                result.growth_bytes,
                n_tokens=result.n_tokens,
                survived=result.survived,
                path=self._options.state_file,
            )
        except OSError as error:
            self._voice.say(f"the canary could not be recorded: {error.strerror}")


def tell_canary(result: CanaryResult, plan: Plan, voice: Voice) -> None:
    """What a canary that the server outlived has shown, and the margin to plan with."""
    if not result.survived:
        voice.say(f"the canary prompt was not answered: {result.error}")
        return
    grown = ", ".join(f"{name} {n / MIB:+.0f} MiB" for name, n in result.growth_bytes.items())
    voice.say(f"canary: {result.n_tokens} tokens read; memory {grown or 'cannot be seen'}")
    wanted = margins_with_growth(plan.margins_bytes, plan.devices, result.growth_bytes)
    if wanted != tuple(plan.margins_bytes):
        texts = ",".join(f"{n // MIB}MiB" for n in wanted)
        voice.say(f"that is more than the margin: plan with --margin {texts}")


def lost_endpoints(plan: Plan) -> list[str]:
    """RPC servers of the plan that do not answer."""
    endpoints = dict.fromkeys(d.endpoint for d in plan.devices if d.endpoint)
    return [endpoint for endpoint in endpoints if not is_reachable(endpoint)]
