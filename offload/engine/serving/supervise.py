"""What happens next when a supervised llama-server is ready, ends, hangs or should stop?

A pure state machine: events with their times go in, one action comes out. It
starts nothing and sleeps never; offload/engine/serving/serve.py does what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How often and how soon a server is started again.

    Failures in a row are counted, and forgotten after `healthy_s` of service.
    Before the server was ever ready there is less to hope for: `first_tries_max`.
    """

    restarts_max: int = 5
    first_tries_max: int = 2
    first_delay_s: float = 1.0
    delay_factor: float = 2.0
    longest_delay_s: float = 60.0
    healthy_s: float = 300.0
    replans_max: int = 3

    def delay_s(self, n_failures: int) -> float:
        """Seconds to wait after the n-th failure in a row, counted from 1."""
        # the exponent is bounded: a policy may allow thousands of restarts
        power = min(n_failures - 1, 64)
        return float(min(self.first_delay_s * self.delay_factor**power, self.longest_delay_s))


class Phase(StrEnum):
    """Where the server stands."""

    LOADING = "loading"
    READY = "ready"
    WAITING = "waiting"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class BecameReady:
    """The server answers."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The process is gone, or hung and was ended by us (`hung`, exit code of no meaning).

    `short_of_memory`: it is known which device was short, so another plan may help.
    """

    at_s: float
    exit_code: int
    hung: bool = False
    short_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start the server, after a pause; `n_failures` in a row came before."""

    delay_s: float = 0.0
    n_failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """Plan again with what the failure taught, and start that; `i_try` counts from 1."""

    i_try: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Nothing to do but to watch."""


class Reason(StrEnum):
    """Why it is over."""

    STOPPED_ITSELF = "stopped by itself"
    REFUSED = "refused to load"
    STILL_SHORT = "still short of memory"
    TOO_MANY_FAILURES = "too many failures"


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """It is over. Only `Reason.STOPPED_ITSELF` is no failure."""

    reason: Reason
    n_failures: int = 0


Event = BecameReady | Ended
Action = Start | Replan | Serve | GiveUp
_EXIT_BY_SIGNAL: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """The state; `after` makes the next one."""

    policy: Policy = Policy()
    phase: Phase = Phase.LOADING
    ready_since_s: float | None = None
    was_ready: bool = False
    n_failures: int = 0
    n_replans: int = 0

    def after(self, event: Event) -> tuple[Supervision, Action]:
        """The state after `event`, and what to do now."""
        if isinstance(event, BecameReady):
            ready = replace(self, phase=Phase.READY, ready_since_s=event.at_s, was_ready=True)
            return ready, Serve()
        return self._rested(event.at_s)._after_end(event)

    def started(self) -> Supervision:
        """The state once what `Start` or `Replan` asked for runs."""
        return replace(self, phase=Phase.LOADING, ready_since_s=None)

    def _rested(self, at_s: float) -> Supervision:
        """Failures are forgotten after a healthy while."""
        if self.ready_since_s is None or at_s - self.ready_since_s < self.policy.healthy_s:
            return self
        return replace(self, n_failures=0, n_replans=0)

    def _after_end(self, event: Ended) -> tuple[Supervision, Action]:
        if event.short_of_memory:
            if self.n_replans >= self.policy.replans_max:
                return self._over(Reason.STILL_SHORT)
            n = self.n_replans + 1
            return replace(self, phase=Phase.WAITING, n_replans=n), Replan(i_try=n)
        if not event.hung:
            if self.phase is Phase.READY and event.exit_code == 0:
                return self._over(Reason.STOPPED_ITSELF)
            # it has decided so itself, knowing all there is to know: it would again
            if not self.was_ready and 0 <= event.exit_code < _EXIT_BY_SIGNAL:
                return self._over(Reason.REFUSED)
        return self._after_failure()

    def _after_failure(self) -> tuple[Supervision, Action]:
        n = self.n_failures + 1
        allowed = self.policy.restarts_max
        if not self.was_ready:
            allowed = min(allowed, self.policy.first_tries_max - 1)
        if n > allowed:
            return replace(self, n_failures=n)._over(Reason.TOO_MANY_FAILURES)
        waiting = replace(self, phase=Phase.WAITING, n_failures=n)
        return waiting, Start(delay_s=self.policy.delay_s(n), n_failures=n)

    def _over(self, reason: Reason) -> tuple[Supervision, Action]:
        return replace(self, phase=Phase.ENDED), GiveUp(reason=reason, n_failures=self.n_failures)
