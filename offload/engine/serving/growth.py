"""How much did this machine's memory grow beyond the load under a long prompt, the last times?

One small JSON file, `$XDG_STATE_HOME/offload/growth.json`: what machine and what model
by their figures alone (no host, user, file or endpoint names), and bytes per device.
`recorded_growth` gives a plan the margins that such a prompt needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from offload.device import Device
from offload.model import Model
from offload.plan import Plan
from offload.units import MIB

SCHEMA_VERSION: Final = 1
_RUNS_MAX: Final = 200
_FILE_MAX_BYTES: Final = 4 << 20
_SPARE: Final = 1.125
"""A margin is a little more than the growth that was seen."""


def state_file(environment: Mapping[str, str] | None = None) -> Path:
    """Where the record is kept."""
    env = os.environ if environment is None else environment
    base = env.get("XDG_STATE_HOME", "")
    # the specification: a relative path is to be ignored
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "offload" / "growth.json"


def machine_key(devices: Sequence[Device]) -> str:
    """A machine by its cards: names as llama.cpp's, what they are, and their size."""
    # what llama.cpp calls the description of an RPC card is its endpoint
    cards = [
        [d.name, "" if d.endpoint else d.description, d.memory_total_bytes, d.backend.name]
        for d in devices
    ]
    return hashlib.sha256(json.dumps(cards).encode()).hexdigest()[:16]


def model_key(model: Model) -> str:
    """A model's shape: what decides its graph, not where its file is or how it is called."""
    shape = [model.arch, model.n_layer, model.n_expert, model.n_expert_used, model.size_bytes]
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]


def record_growth(
    plan: Plan,
    growth_bytes: Mapping[str, int],
    *,
    n_tokens: int,
    survived: bool,
    path: Path | None = None,
) -> None:
    """Add one canary to the record; OSError where it cannot be written."""
    target = path or state_file()
    run = {
        "machine": machine_key(plan.devices),
        "model": model_key(plan.model),
        "arch": plan.model.arch,
        "n_ctx": plan.context.n_ctx,
        "n_ubatch": plan.context.n_ubatch,
        "n_tokens": n_tokens,
        "survived": survived,
        "growth_bytes": dict(growth_bytes),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(target):
        runs = [*_read_runs(target), run][-_RUNS_MAX:]
        _write_whole(target, json.dumps({"schema_version": SCHEMA_VERSION, "runs": runs}, indent=1))


def recorded_growth(
    model: Model, devices: Sequence[Device], *, path: Path | None = None
) -> dict[str, int]:
    """Device name to the largest growth seen for this model's shape on this machine, "CPU" too.

    Empty where nothing was recorded, or the record cannot be read.
    """
    largest: dict[str, int] = {}
    wanted = (machine_key(devices), model_key(model))
    for run in _read_runs(path or state_file()):
        if (run.get("machine"), run.get("model")) == wanted:
            for name, n_bytes in run["growth_bytes"].items():
                largest[name] = max(n_bytes, largest.get(name, 0))
    return largest


def margins_with_growth(
    margins_bytes: Sequence[int], devices: Sequence[Device], growth_bytes: Mapping[str, int]
) -> tuple[int, ...]:
    """Each card's margin, raised where more growth than that was seen; whole MiB."""
    return tuple(
        max(margin, -(-int(growth_bytes.get(device.name, 0) * _SPARE) // MIB) * MIB)
        for margin, device in zip(margins_bytes, devices, strict=True)
    )


def _read_runs(path: Path) -> list[dict[str, Any]]:
    """The runs that make sense; a file that does not is as none."""
    try:
        with path.open(encoding="utf-8") as file:
            data = json.loads(file.read(_FILE_MAX_BYTES))
        runs = data["runs"] if data["schema_version"] == SCHEMA_VERSION else []
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [run for run in runs if _is_run(run)] if isinstance(runs, list) else []


def _is_run(run: Any) -> bool:
    growth = run.get("growth_bytes") if isinstance(run, dict) else None
    return isinstance(growth, dict) and all(
        type(n) is int and 0 <= n < 1 << 60 for n in growth.values()
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two servers may finish their canaries at once."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_whole(path: Path, text: str) -> None:
    """Either the new file or the old one, whatever happens in between."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".growth-")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
