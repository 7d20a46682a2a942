"""Was the machine left alone while something was timed?

The share of our processors that others used meanwhile (time stolen by a hypervisor
included), clocks, and whether a card says that it is throttled. Nothing here judges: the
numbers go beside each sample, and a fit weighs them. [edge]
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import time
from typing import Any, Final

LOAD_NOISY: Final = 0.1
"""Above this share of our processors a sample is marked as disturbed."""

_THROTTLED: Final = 0x8 | 0x20 | 0x40 | 0x80
"""nvmlClocksThrottleReason: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrake."""


class LoadMeter:
    """What the machine did since the meter was made or last read."""

    def __init__(self) -> None:
        """Start measuring."""
        self._psutil: Any = None
        with contextlib.suppress(ImportError):
            self._psutil = importlib.import_module("psutil")
        self._start_s, self._busy_s, self._ours_s = self._now()

    def read(self) -> float | None:
        """The share of our processors that others used; None where that cannot be known."""
        if self._psutil is None:
            return None
        now_s, busy_s, ours_s = self._now()
        elapsed_s = now_s - self._start_s
        others_s = (busy_s - self._busy_s) - (ours_s - self._ours_s)
        self._start_s, self._busy_s, self._ours_s = now_s, busy_s, ours_s
        n_cpus = len(self._processors()) or 1
        if elapsed_s <= 0:
            return None
        return round(min(max(others_s / (elapsed_s * n_cpus), 0.0), 1.0), 4)

    def _now(self) -> tuple[float, float, float]:
        """Wall clock, processor seconds of everybody, and ours with all our children."""
        if self._psutil is None:
            return time.monotonic(), 0.0, 0.0
        return time.monotonic(), sum(map(_busy_s, self._processors())), self._ours()

    def _processors(self) -> list[Any]:
        """Times of the processors that this process may run on (`taskset`, a container's)."""
        times = self._psutil.cpu_times(percpu=True)
        if not hasattr(os, "sched_getaffinity"):
            return list(times)
        return [times[i] for i in os.sched_getaffinity(0) if i < len(times)]

    def _ours(self) -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        mine = resource.getrusage(resource.RUSAGE_SELF)
        total = ended.ru_utime + ended.ru_stime + mine.ru_utime + mine.ru_stime
        for child in self._psutil.Process().children(recursive=True):
            with contextlib.suppress(self._psutil.Error):
                times = child.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return float(total)


def _busy_s(times: Any) -> float:
    """Seconds of one processor in which somebody ran."""
    # time of guests is part of user's; waiting for a disk is no work
    quiet = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - quiet - guests)


def cpu_mhz() -> float | None:
    """The mean clock of the processors, where the system tells."""
    with contextlib.suppress(Exception):
        found = importlib.import_module("psutil").cpu_freq()
        return None if found is None else round(float(found.current), 1)
    return None


def throttled_cards() -> tuple[int, ...]:
    """NVIDIA cards, by NVML's number, that are slowed down by heat or power right now."""
    with contextlib.suppress(Exception):
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        try:
            found = []
            for i in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(i)
                if nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & _THROTTLED:
                    found.append(i)
            return tuple(found)
        finally:
            nvml.nvmlShutdown()
    return ()
