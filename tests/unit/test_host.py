"""Host memory, cores, and the limits of a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload import host
from offload.machine import Host
from offload.units import GIB


def test_this_machine() -> None:
    """Some memory is free, not more than there is, and there is a core to use it."""
    found = host.probe_host()
    assert found.memory_available_bytes is not None
    assert found.memory_total_bytes is not None
    assert 0 < found.memory_available_bytes <= found.memory_total_bytes
    assert found.n_cores_physical is not None
    assert found.n_cores_physical >= 1


def cgroup(directory: Path, limit: str, used: str, stat: str) -> Path:
    """A directory like /sys/fs/cgroup."""
    for name, text in (("memory.max", limit), ("memory.current", used), ("memory.stat", stat)):
        (directory / name).write_text(text + "\n")
    return directory


def test_container_limit(tmp_path: Path) -> None:
    """File pages that can be given back do not count as used."""
    root = cgroup(tmp_path, str(8 * GIB), str(3 * GIB), f"anon 1\ninactive_file {GIB}")
    assert host._cgroup_limit_bytes(root) == (8 * GIB, 2 * GIB)


@pytest.mark.parametrize("limit", ["max", "", "x"])
def test_no_container_limit(tmp_path: Path, limit: str) -> None:
    """`max`, nonsense and missing files mean no limit."""
    assert host._cgroup_limit_bytes(cgroup(tmp_path, limit, "1", "")) is None
    assert host._cgroup_limit_bytes(tmp_path / "missing") is None


def test_limit_is_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the limit is all the memory there is."""
    monkeypatch.setattr(host, "_cgroup_limit_bytes", lambda: (1000, 400))
    found = host.probe_host()
    assert (found.memory_total_bytes, found.memory_available_bytes) == (1000, 600)


def test_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that cannot be read is unknown, not an error."""
    monkeypatch.setitem(__import__("sys").modules, "psutil", None)
    assert host.probe_host() == Host()
