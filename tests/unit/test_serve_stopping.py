"""Signals become a wish to stop, whatever they interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from offload.engine.serving.stopping import Flag, StopRequest, stop_on_signals


@pytest.mark.timeout(60)
def test_a_signal_in_the_middle_of_a_wait_is_heard() -> None:
    """A threading.Event in the flag's place hangs here for good within a few signals."""

    def strike(delay_s: float) -> None:
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGTERM)

    for i in range(100):
        with stop_on_signals() as request:
            threading.Thread(target=strike, args=(0.002 + i * 1e-5,)).start()
            while not request.stop.wait(0.0):
                pass
            assert request.signal_number == signal.SIGTERM


def test_the_second_signal_hurries() -> None:
    """One wish to end in good order, two to end now; the first signal is the one that is told."""
    request = StopRequest()
    request(signal.SIGINT)
    assert request.stop.is_set() and not request.hurry.is_set()
    request(signal.SIGTERM)
    assert request.hurry.is_set() and request.signal_number == signal.SIGINT


def test_waiting_ends_early_or_in_time() -> None:
    """`wait` says whether it was set, and does not outstay its time by much."""
    flag = Flag()
    start_s = time.monotonic()
    assert not flag.wait(0.1)
    assert time.monotonic() - start_s >= 0.1
    threading.Timer(0.1, flag.set).start()
    assert flag.wait(60.0)
    assert time.monotonic() - start_s < 30


def test_handlers_are_put_back() -> None:
    """After the block the process hears signals as before."""
    before = signal.getsignal(signal.SIGHUP)
    with stop_on_signals() as request:
        assert signal.getsignal(signal.SIGHUP) is request
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_signal_after_the_end_changes_nothing() -> None:
    """Ctrl-C twice: the second one comes when all is stopped, and must not spoil the exit code."""
    text = (
        "import os, signal; from offload.engine.serving.stopping import stop_on_signals\n"
        "with stop_on_signals(to_the_end=True) as request: os.kill(os.getpid(), signal.SIGINT)\n"
        "for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): os.kill(os.getpid(), n)\n"
        "raise SystemExit(7 if request.stop.is_set() else 8)"
    )
    assert subprocess.run([sys.executable, "-c", text], timeout=60).returncode == 7
