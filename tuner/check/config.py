"""What does `offload.toml` ask to be checked?

Strict: whatever is not known, or of another type, is refused in one line that names the file,
the table and the key. `[machine]` and `[options]` stand for flags of `offload plan`; their keys
are checked where those flags are known, in the command line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from offload.errors import UsageError
from tuner.check.tolerance import Tolerance, parse_tolerance

CHECKS: Final = ("plan", "memory", "prediction", "speed")
USUAL_CHECKS: Final = CHECKS[:-1]
"""Timing needs the machine and the weights, so it is made when it is named."""

SPEED_SECONDS: Final = (1, 24 * 3600)
RATES: Final = ("decode-t-s", "prefill-t-s")
DEFAULT_CONFIG: Final = "offload.toml"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_THREADS_MAX: Final = 4096
_CONFIG_MAX_BYTES: Final = 1 << 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One `[[model]]`: `budgets` are the fewest tokens per second, `measured` what was timed."""

    name: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    """The whole file; paths in it are relative to its folder."""

    path: str
    models: tuple[ModelEntry, ...]
    machine: Mapping[str, Any]
    options: Mapping[str, Any]
    checks: tuple[str, ...]
    baseline: str
    llama_server: str | None
    speed_time_s: float | None
    n_threads: int | None
    memory: Tolerance
    plan_memory: Tolerance
    decode: float | None
    prefill: float | None

    def locate(self, path: str) -> Path:
        """A path of the file, seen from its folder."""
        return Path(self.path).parent / path


class _Table:
    """Values are taken out of it by key; what is left over was not known."""

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, Mapping):
            raise UsageError(f"{where} is not a table; write it as one")
        self._left = dict(data)
        self.where = where

    def take(self, key: str, kind: type[_T], example: str) -> _T | None:
        value = self._left.pop(key, None)
        is_kind = isinstance(value, kind) and not isinstance(value, bool)
        if value is None or (is_kind and not (isinstance(value, str) and "\0" in value)):
            return value
        raise UsageError(f"{self.where}: {key} = {value!r}: write it like {key} = {example}")

    def take_number(self, key: str) -> float | None:
        is_whole = isinstance(self._left.get(key), int)
        value = self.take(key, int, "40") if is_whole else self.take(key, float, "40.5")
        return None if value is None else float(value)

    def finish(self, known: Sequence[str]) -> None:
        if self._left:
            raise UsageError(
                f"{self.where}: unknown key {next(iter(self._left))!r}; one of {', '.join(known)}"
            )


def read_config(path: str) -> CheckConfig:
    """[edge] Read the file; UsageError for whatever keeps it from being understood."""
    try:
        with open(path, "rb") as file:
            text = file.read(_CONFIG_MAX_BYTES).decode()
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; name the file with --config, or write one"
            " as docs/check.md says"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text; write it as docs/check.md says") from None
    return parse_config(text, path)


def parse_config(text: str, path: str = DEFAULT_CONFIG) -> CheckConfig:
    """The file's text as values."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}; mend that line") from None
    top = _Table(data, path)
    check = _Table(top.take("check", dict, "a table") or {}, f"{path}: [check]")
    tolerances = _Table(top.take("tolerances", dict, "a table") or {}, f"{path}: [tolerances]")
    machine = top.take("machine", dict, "a table") or {}
    options = top.take("options", dict, "a table") or {}
    entries = top.take("model", list, "a table, headed [[model]]") or []
    top.finish(("check", "machine", "options", "tolerances", "model"))
    config = CheckConfig(
        path=path,
        models=tuple(_model(entry, i, path) for i, entry in enumerate(entries)),
        machine=machine,
        options=options,
        checks=parse_checks(check.take("run", list, '["plan"]'), f"{path}: [check]: run"),
        baseline=check.take("baseline", str, '"offload.baseline"') or "offload.baseline",
        llama_server=check.take("llama-server", str, '"path/to/llama-server"'),
        speed_time_s=_within(check, "speed-time-s", *SPEED_SECONDS),
        n_threads=_threads(check),
        memory=_tolerance(tolerances, "memory"),
        plan_memory=_tolerance(tolerances, "plan-memory"),
        decode=_share(tolerances, "decode"),
        prefill=_share(tolerances, "prefill"),
    )
    check.finish(("run", "baseline", "llama-server", "speed-time-s", "threads"))
    tolerances.finish(("memory", "plan-memory", "decode", "prefill"))
    _check_names(config)
    return config


def parse_checks(names: Sequence[object] | None, what: str) -> tuple[str, ...]:
    """Names of checks in their own order; the usual ones for None."""
    if names is None:
        return USUAL_CHECKS
    for name in names:
        if name not in CHECKS:
            raise UsageError(f"{what}: no check {name!r}; any of {', '.join(CHECKS)}")
    if not names:
        raise UsageError(f"{what}: names no check; any of {', '.join(CHECKS)}")
    return tuple(name for name in CHECKS if name in names)


def _tolerance(table: _Table, key: str) -> Tolerance:
    return parse_tolerance(table.take(key, str, '"1%"') or "1%", f"{table.where}: {key}")


def _within(table: _Table, key: str, low: float, high: float) -> float | None:
    value = table.take_number(key)
    if value is not None and not low <= value <= high:
        raise UsageError(f"{table.where}: {key} = {value:g}: from {low:g} to {high:g}")
    return value


def _threads(table: _Table) -> int | None:
    value = table.take("threads", int, "8")
    if value is not None and not 0 < value <= _THREADS_MAX:
        raise UsageError(f"{table.where}: threads = {value}: from 1 to {_THREADS_MAX}")
    return value


def _share(table: _Table, key: str) -> float | None:
    text = table.take(key, str, '"5%"')
    if text is None:
        return None
    share = parse_tolerance(text, f"{table.where}: {key}").share
    if not text.endswith("%") or share == 0:
        raise UsageError(f'{table.where}: {key} = {text!r}: a share above 0, as "5%"')
    return share


def _model(data: object, i: int, path: str) -> ModelEntry:
    table = _Table(data, f"{path}: [[model]] {i + 1}")
    file = table.take("path", str, '"models/some.gguf"')
    if not file:
        raise UsageError(f'{table.where} has no path; write path = "models/some.gguf"')
    name = table.take("name", str, '"some"') or Path(file).stem
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{table.where}: name = {name!r} names a file: use letters, digits, '.', '-', '_'"
        )
    entry = ModelEntry(
        name=name,
        path=file,
        options=table.take("options", dict, "a table") or {},
        budgets=_rates(table, "budgets"),
        measured=_rates(table, "measured"),
    )
    table.finish(("path", "name", "options", "budgets", "measured"))
    return entry


def _rates(table: _Table, key: str) -> dict[str, float]:
    rates = _Table(table.take(key, dict, "{ decode-t-s = 40 }") or {}, f"{table.where}: {key}")
    found: dict[str, float] = {}
    for name in RATES:
        value = rates.take_number(name)
        if value is None:
            continue
        if not 0 < value < float("inf"):
            raise UsageError(f"{rates.where}: {name} = {value}: tokens per second, above 0")
        found[name] = value
    rates.finish(RATES)
    return found


def _check_names(config: CheckConfig) -> None:
    if not config.models:
        raise UsageError(
            f'{config.path}: no model to check; write [[model]] and path = "some.gguf" below it'
        )
    seen: set[str] = set()
    for entry in config.models:
        if entry.name.lower() in seen:
            raise UsageError(
                f"{config.path}: two models named {entry.name!r};"
                f' give one a name of its own: name = "{entry.name}-2"'
            )
        seen.add(entry.name.lower())
