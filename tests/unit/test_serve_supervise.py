"""The state machine that decides what happens to a supervised server, on a made-up clock."""

from __future__ import annotations

import pytest

from offload.engine.serving.supervise import (
    BecameReady,
    Ended,
    GiveUp,
    Phase,
    Policy,
    Reason,
    Replan,
    Serve,
    Start,
    Supervision,
)

POLICY = Policy(
    restarts_max=3, first_tries_max=2, first_delay_s=1, delay_factor=2, longest_delay_s=3,
    healthy_s=100, replans_max=2,
)  # fmt: skip
KILLED = 128 + 9


def ready(state: Supervision, at_s: float) -> Supervision:
    """The state after the server has become ready."""
    state, action = state.started().after(BecameReady(at_s=at_s))
    assert action == Serve()
    assert state.phase is Phase.READY
    return state


def test_back_off_grows_to_its_bound_and_then_it_gives_up() -> None:
    """Crashes in a row are answered with 1, 2, 3 (at most) seconds and then the end."""
    state = ready(Supervision(policy=POLICY), 0)
    delays = []
    for at_s in (1, 2, 3):
        state, action = state.after(Ended(at_s=at_s, exit_code=KILLED))
        assert isinstance(action, Start)
        delays.append(action.delay_s)
        state = ready(state, at_s)
    assert delays == [1, 2, 3]
    state, action = state.after(Ended(at_s=4, exit_code=KILLED))
    assert action == GiveUp(reason=Reason.TOO_MANY_FAILURES, n_failures=4)
    assert state.phase is Phase.ENDED


def test_a_healthy_while_forgets_failures_and_plans() -> None:
    """After 100 s of service the next crash counts as the first, and plans may be tried anew."""
    state = ready(Supervision(policy=POLICY), 0)
    state, _ = state.after(Ended(at_s=1, exit_code=KILLED))
    state, _ = ready(state, 2).after(Ended(at_s=3, exit_code=1, short_of_memory=True))
    assert (state.n_failures, state.n_replans) == (1, 1)
    _, early = ready(state, 10).after(Ended(at_s=109.9, exit_code=KILLED))
    _, late = ready(state, 10).after(Ended(at_s=110, exit_code=KILLED))
    assert early == Start(delay_s=2, n_failures=2)
    assert late == Start(delay_s=1, n_failures=1)
    _, again = ready(state, 10).after(Ended(at_s=110, exit_code=1, short_of_memory=True))
    assert again == Replan(i_try=1)


@pytest.mark.parametrize("exit_code", [0, 1, 127])
def test_a_server_that_refuses_at_first_is_not_asked_again(exit_code: int) -> None:
    """What it decided by itself before it was ever ready it would decide again."""
    _, action = Supervision(policy=POLICY).after(Ended(at_s=1, exit_code=exit_code))
    assert action == GiveUp(reason=Reason.REFUSED)


def test_a_server_that_dies_at_first_gets_a_second_try() -> None:
    """A signal may be bad luck, once: `first_tries_max` are two."""
    state, action = Supervision(policy=POLICY).after(Ended(at_s=1, exit_code=134))
    assert action == Start(delay_s=1, n_failures=1)
    _, action = state.started().after(Ended(at_s=2, exit_code=134))
    assert action == GiveUp(reason=Reason.TOO_MANY_FAILURES, n_failures=2)


def test_after_it_was_ready_once_a_refusal_is_tried_again() -> None:
    """Exit code 1 on a restart may be an RPC server that is not back yet."""
    state = ready(Supervision(policy=POLICY), 0)
    state, _ = state.after(Ended(at_s=1, exit_code=KILLED))
    _, action = state.started().after(Ended(at_s=2, exit_code=1))
    assert action == Start(delay_s=2, n_failures=2)


def test_a_server_that_ends_in_good_order_is_left_alone() -> None:
    """Exit code 0 after it was ready: somebody wanted it so."""
    _, action = ready(Supervision(policy=POLICY), 0).after(Ended(at_s=1, exit_code=0))
    assert action == GiveUp(reason=Reason.STOPPED_ITSELF)


def test_a_hung_server_counts_as_crashed_whatever_its_exit_code() -> None:
    """We have killed it ourselves: its code says nothing."""
    _, action = Supervision(policy=POLICY).after(Ended(at_s=1, exit_code=0, hung=True))
    assert action == Start(delay_s=1, n_failures=1)


def test_plans_are_tried_a_bounded_number_of_times() -> None:
    """Out of memory: another plan, twice; then the end, and no failures are counted."""
    state = Supervision(policy=POLICY)
    short = Ended(at_s=1, exit_code=1, short_of_memory=True)
    for i_try in (1, 2):
        state, action = state.after(short)
        assert action == Replan(i_try=i_try)
        state = state.started()
    state, action = state.after(short)
    assert action == GiveUp(reason=Reason.STILL_SHORT)
    assert state.n_failures == 0


def test_delays_of_thousands_of_failures_are_finite() -> None:
    """A policy without a practical bound must not overflow."""
    assert Policy(longest_delay_s=60).delay_s(100_000) == 60
