"""Whether the machine was left alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tuner.quiet import LoadMeter, cpu_mhz, throttled_cards


class _Psutil:
    """Two processors of which others use `others_s` seconds and a child of ours `child_s`."""

    Error = OSError

    def __init__(self) -> None:
        self.now_s = self.others_s = self.child_s = 0.0

    def cpu_count(self) -> int:
        return 2

    def cpu_times(self) -> Any:
        class Times(tuple[float, ...]):
            idle = 7.0
            iowait = 3.0

        return Times((self.others_s + self.child_s, Times.idle, Times.iowait))

    def Process(self) -> Any:
        times = SimpleNamespace(
            user=self.child_s, system=0.0, children_user=0.0, children_system=0.0
        )
        child = SimpleNamespace(cpu_times=lambda: times)
        return SimpleNamespace(children=lambda recursive: [child])


def test_what_our_children_use_is_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processors ours is busy and others use a quarter of the other: an eighth."""
    fake = _Psutil()
    monkeypatch.setattr("tuner.quiet.time.monotonic", lambda: fake.now_s)
    usage = SimpleNamespace(ru_utime=0.0, ru_stime=0.0)
    monkeypatch.setattr("tuner.quiet.resource.getrusage", lambda who: usage)
    monkeypatch.setattr("tuner.quiet.importlib.import_module", lambda name: fake)
    meter = LoadMeter()
    fake.now_s, fake.child_s, fake.others_s = 4.0, 4.0, 1.0
    assert meter.read() == pytest.approx(0.125)
    fake.now_s, fake.child_s = 8.0, 8.0
    assert meter.read() == 0.0


def test_unknown_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psutil nobody claims that the machine was left alone; nor without a driver."""

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("tuner.quiet.importlib.import_module", missing)
    assert LoadMeter().read() is None
    assert cpu_mhz() is None
    assert throttled_cards() == ()
