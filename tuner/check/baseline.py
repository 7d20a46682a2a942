"""[edge] What was recorded of one model: a file in the user's repository.

Text that reads well as a diff, with a digest of itself: a file that was edited or merged by
hand is told from one that `--update` wrote. Written beside and renamed, so that two updates
at once leave one of their files, whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Final

from offload.emit import Launch
from offload.errors import UsageError
from offload.render.request_json import Request, request_of_json
from tuner.check.facts import (
    MemoryFacts,
    PlanFacts,
    facts_of_json,
    facts_to_json,
    memory_of_json,
    memory_to_json,
)
from tuner.paired import SpeedBaseline

SCHEMA_VERSION: Final = 1
_KIND: Final = "offload check baseline"
_LINE_CHARS: Final = 132
_MAX_BYTES: Final = 8 << 20
_ELSEWHERE: Final = ("model_path", "layer_bytes")
_UPDATE: Final = "offload check --update writes it again"
_RATES: Final = tuple(
    f"{phase}{end}_t_s" for phase in ("decode", "prefill") for end in ("", "_low", "_high")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Recorded facts; `memory`, `prediction` and `speed` are None where not asked for.

    `header` is what the model's header was, `request` what was asked for as JSON.
    """

    header: Mapping[str, Any]
    facts: PlanFacts
    request: Mapping[str, Any]
    memory: MemoryFacts | None
    prediction: Mapping[str, Any] | None
    speed: SpeedBaseline | None = None

    def asked(self, model_path: str) -> Request:
        """The recorded request, for the model at `model_path`."""
        return request_of_json({**self.request, "model_path": model_path})


def baseline_text(baseline: Baseline, version: str) -> str:
    """The file's text; the same facts give the same text."""
    settings = baseline.facts.launch.to_json()
    launch = {
        item.name: settings[item.name]
        for item in fields(Launch)
        if item.name not in _ELSEWHERE and settings[item.name] != item.default
    }
    memory = baseline.memory
    body: dict[str, Any] = {
        "kind": _KIND,
        "schema_version": SCHEMA_VERSION,
        "offload": version,
        "model": dict(baseline.header),
        "request": {k: v for k, v in baseline.request.items() if k != "model_path"},
        "launch": launch,
        "plan": facts_to_json(baseline.facts),
        "memory": None if memory is None else _memory_to_json(memory),
        "prediction": None if baseline.prediction is None else dict(baseline.prediction),
        "speed": None if baseline.speed is None else baseline.speed.to_json(),
    }
    return _compact({**body, "digest": _digest(body)}) + "\n"


def _memory_to_json(memory: MemoryFacts) -> dict[str, Any]:
    devices = [{"name": name} | memory_to_json(m) for name, m in memory.devices.items()]
    return {
        "source": memory.source,
        "build": memory.build,
        "is_exact": memory.is_exact,
        "devices": devices,
    }


def _compact(value: Any, indent: int = 0) -> str:
    """JSON whose short objects and lists stand on one line."""
    flat = json.dumps(value, ensure_ascii=True)
    if len(flat) + indent <= _LINE_CHARS or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{pad}{json.dumps(k)}: {_compact(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{' ' * indent}}}"
    return "[\n" + ",\n".join(pad + _compact(v, indent + 1) for v in value) + f"\n{' ' * indent}]"


def _digest(body: Mapping[str, Any]) -> str:
    """Of everything but the version that wrote it, which decides nothing."""
    said = {key: value for key, value in body.items() if key not in ("digest", "offload")}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


def read_baseline(path: Path, model_path: str) -> Baseline:
    """The recorded facts, for the model at `model_path`.

    UsageError where there are none, or a file that `--update` did not write like this.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_BYTES)
        data = json.loads(text)
    except FileNotFoundError:
        raise UsageError(f"{path}: nothing is recorded yet; offload check --update does") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; make it readable") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: broken, not JSON; {_UPDATE}") from None
    if not isinstance(data, dict) or data.get("kind") != _KIND:
        raise UsageError(f"{path}: not a baseline of offload check; {_UPDATE}")
    _check_schema(path, data.get("schema_version"))
    if data.get("digest") != _digest(data):
        raise UsageError(
            f"{path}: edited or merged by hand, its digest is of another text;"
            f" take one whole version of it, or {_UPDATE}"
        )
    try:
        return _parse(data, model_path)
    except (UsageError, KeyError, TypeError, ValueError, AttributeError) as error:
        said = error if isinstance(error, UsageError) else f"incomplete ({error!r})"
        raise UsageError(f"{path}: contradicts itself: {said}; {_UPDATE}") from None


def _check_schema(path: Path, version: object) -> None:
    if version == SCHEMA_VERSION and type(version) is int:
        return
    if type(version) is int and version > SCHEMA_VERSION:
        raise UsageError(
            f"{path}: written by a newer offload (schema version {version}, this one knows"
            f" {SCHEMA_VERSION}); use that one"
        )
    raise UsageError(f"{path}: of schema version {version!r}, not {SCHEMA_VERSION}; {_UPDATE}")


def _parse(data: Mapping[str, Any], model_path: str) -> Baseline:
    usual = {item.name: item.default for item in fields(Launch) if item.default is not MISSING}
    launch = Launch.from_json({**usual, **data["launch"], "model_path": model_path})
    memory, prediction, speed = data["memory"], data["prediction"], data.get("speed")
    baseline = Baseline(
        header=dict(data["model"]),
        facts=facts_of_json(data["plan"], launch),
        request=dict(data["request"]),
        memory=None if memory is None else _memory_of_json(memory),
        prediction=prediction,
        speed=None if speed is None else SpeedBaseline.from_json(speed, "its speed"),
    )
    baseline.asked(model_path)  # must be readable
    if prediction is not None and not all(float(prediction[key]) > 0 for key in _RATES):
        raise ValueError("prediction")
    return baseline


def _memory_of_json(data: Mapping[str, Any]) -> MemoryFacts:
    return MemoryFacts(
        source=str(data["source"]),
        build=None if data["build"] is None else int(data["build"]),
        is_exact=bool(data["is_exact"]),
        devices={str(one["name"]): memory_of_json(one) for one in data["devices"]},
    )


def write_baseline(path: Path, text: str) -> str:
    """Write the file whole or not at all; `new`, `changed` or `unchanged`."""
    before = None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        before = path.read_text(encoding="utf-8")
    if before == text:
        return "unchanged"
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(fd, 0o644)
            os.fsync(fd)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return "new" if before is None else "changed"
