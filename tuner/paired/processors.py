"""On which processors do both arms run, so that neither has the quieter ones?

Threads stay where they ran last. If one server has found an idle processor and the other
one shares its own with somebody, the first is faster for seconds on end, which is no fact
about builds. So with fewer threads than processors both are told to use the same ones,
others every two pairs. [edge]
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Sequence


def share_processors(
    pids: Sequence[int | None], n_threads: int | None, coin: random.Random
) -> None:
    """Put these processes on the same `n_threads` processors, drawn by `coin`.

    Nothing happens where all are used, or where the system has no such call.
    """
    if not hasattr(os, "sched_setaffinity") or n_threads is None:
        return
    allowed = sorted(os.sched_getaffinity(0))
    if n_threads >= len(allowed):
        return
    chosen = coin.sample(allowed, n_threads)
    for pid in pids:
        for tid in _threads(pid):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(tid, chosen)


def _threads(pid: int | None) -> list[int]:
    if pid is None:
        return []
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
