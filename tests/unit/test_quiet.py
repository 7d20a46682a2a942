"""Whether the machine was left alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tuner.quiet import LoadMeter, cpu_mhz, throttled_cards


class _Psutil:
    """Two processors: a child of ours uses `child_s` of the first, others `others_s` of each."""

    Error = OSError

    def __init__(self) -> None:
        self.now_s = self.others_s = self.child_s = 0.0

    def cpu_times(self, *, percpu: bool) -> Any:
        class Times(tuple[float, ...]):
            idle = 7.0
            iowait = 3.0

        assert percpu
        return [
            Times((self.others_s + child_s, Times.idle, Times.iowait))
            for child_s in (self.child_s, 0.0)
        ]

    def Process(self) -> Any:
        times = SimpleNamespace(
            user=self.child_s, system=0.0, children_user=0.0, children_system=0.0
        )
        child = SimpleNamespace(cpu_times=lambda: times)
        return SimpleNamespace(children=lambda recursive: [child])


def test_what_our_children_use_is_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others use an eighth of each of two processors, our child the rest of one.

    Where only the first is ours, what others do on the second is none of our business.
    """
    fake = _Psutil()
    ours = {0, 1}
    monkeypatch.setattr("tuner.quiet.os.sched_getaffinity", lambda pid: ours, raising=False)
    monkeypatch.setattr("tuner.quiet.time.monotonic", lambda: fake.now_s)
    usage = SimpleNamespace(ru_utime=0.0, ru_stime=0.0)
    monkeypatch.setattr("tuner.quiet.resource.getrusage", lambda who: usage)
    monkeypatch.setattr("tuner.quiet.importlib.import_module", lambda name: fake)
    meter = LoadMeter()
    fake.now_s, fake.child_s, fake.others_s = 4.0, 3.5, 0.5
    assert meter.read() == pytest.approx(0.125)
    fake.now_s, fake.child_s = 8.0, 7.5
    assert meter.read() == 0.0
    ours.remove(1)
    meter = LoadMeter()
    fake.now_s, fake.others_s = 12.0, 1.5
    assert meter.read() == pytest.approx(0.25)


def test_unknown_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psutil nobody claims that the machine was left alone; nor without a driver."""

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("tuner.quiet.importlib.import_module", missing)
    assert LoadMeter().read() is None
    assert cpu_mhz() is None
    assert throttled_cards() == ()
