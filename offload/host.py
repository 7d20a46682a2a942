"""How much memory and how many cores does the host give us? [edge]"""

from __future__ import annotations

import importlib
from pathlib import Path

from offload.machine import Host


def _cgroup_limit_bytes(root: Path = Path("/sys/fs/cgroup")) -> tuple[int, int] | None:
    """Limit and current use of this container's memory; None where there is no limit.

    File pages count as use but are given back on demand, as in psutil's "available".
    """
    try:
        limit = int((root / "memory.max").read_text())  # "max" raises ValueError: no limit
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return limit, max(0, used - int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None


def probe_host() -> Host:
    """Memory and cores of this machine, or of the container we may use of it."""
    try:
        psutil = importlib.import_module("psutil")  # by name: it carries no types
        memory = psutil.virtual_memory()
        total, available = int(memory.total), int(memory.available)
        n_cores = psutil.cpu_count(logical=False) or psutil.cpu_count()
    except Exception:  # a missing package or an unreadable /proc: unknown, not fatal
        return Host()
    limit = _cgroup_limit_bytes()
    if limit is not None and limit[0] < total:
        total, available = limit[0], min(available, max(0, limit[0] - limit[1]))
    return Host(
        memory_available_bytes=available, memory_total_bytes=total, n_cores_physical=n_cores
    )
