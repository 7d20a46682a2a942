"""Which flags of `offload plan` do the tables of an `offload.toml` stand for?

Keys are the flags' own long or short names without dashes, so there is no second list to keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from typer.models import OptionInfo

from offload.cli.flags import MachineFlags, PlanFlags, StrategyName, parse_sizes
from offload.errors import DeviceError, UsageError

_FILES: Final = ("devices_file",)
_ELSEWHERE: Final = ("llama_server",)
_NUMBERS_TOO: Final = (
    "n_ctx",
    "n_ubatch",
    "n_gpu_layers",
    "draft_n_gpu_layers",
    "tensor_split",
    "vram",
    "margin",
    "host_ram",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """One flag: the field that holds it and what kind of value that is."""

    field: str
    kind: str
    example: str


@cache
def _keys() -> tuple[dict[str, _Key], dict[str, _Key]]:
    """Keys of [machine] and of [options]."""
    of_machine = {item.name for item in fields(MachineFlags)}
    tables: tuple[dict[str, _Key], dict[str, _Key]] = ({}, {})
    hints = get_type_hints(PlanFlags, include_extras=True)
    for name in (item.name for item in fields(PlanFlags) if item.name not in _ELSEWHERE):
        kind, *notes = get_args(hints[name])
        info = next((note for note in notes if isinstance(note, OptionInfo)), None)
        declared = () if info is None else (info.default, *(info.param_decls or ()))
        words = [str(w).partition("/")[0].lstrip("-") for w in declared if str(w).startswith("-")]
        key = _key(name, str(kind))
        for word in words or [name.replace("_", "-")]:
            tables[name not in of_machine][word] = key
    return tables


def _key(name: str, hint: str) -> _Key:
    if "list" in hint:
        return _Key(field=name, kind="list", example='["…"]')
    if "bool" in hint:
        return _Key(field=name, kind="bool", example="true")
    if "int" in hint:
        return _Key(field=name, kind="int", example="8192")
    if "StrategyName" in hint:
        return _Key(field=name, kind="strategy", example='"own"')
    return _Key(field=name, kind="number" if name in _NUMBERS_TOO else "str", example='"…"')


def plan_flags(
    machine: Mapping[str, Any],
    options: Mapping[str, Any],
    own: Mapping[str, Any],
    *,
    path: str,
    model: str,
    llama_server: str | None,
) -> tuple[PlanFlags, str | None]:
    """The flags that the tables of `path` stand for, a model's own options last; and a profile."""
    machine = dict(machine)
    profile = machine.pop("profile", None)
    if profile is not None and not isinstance(profile, str):
        raise UsageError(f'{path}: [machine]: profile = {profile!r}: write profile = "some.json"')
    machine_keys, option_keys = _keys()
    values: dict[str, Any] = {}
    for table, keys, where in (
        (machine, machine_keys, "[machine]"),
        (options, option_keys, "[options]"),
        (own, option_keys, f"options of model {model!r}"),
    ):
        values |= _values(table, keys, f"{path}: {where}")
    folder = Path(path).parent
    for name in _FILES:
        if name in values:
            values[name] = str(folder / values[name])
    flags = PlanFlags(**values, llama_server=llama_server)
    try:
        flags.options()
        flags.reserved_bytes()
        _check_machine(flags)
    except (UsageError, DeviceError) as error:
        raise UsageError(f"{path}: [machine] or [options] of model {model!r}: {error}") from None
    return flags, None if profile is None else str(folder / profile)


def _check_machine(flags: PlanFlags) -> None:
    """Refuse sizes and cards that mean nothing before anything is probed."""
    from offload.device import devices_from_flags
    from offload.units import parse_size_bytes

    for value, name in ((flags.vram, "vram"), (flags.host_ram, "host-ram")):
        for size in () if value is None else value.split(","):
            parse_size_bytes(size, name)
    if flags.gpu and all(":" in text for text in flags.gpu):
        sizes = None if flags.vram is None else parse_sizes(flags.vram, "vram")
        devices_from_flags(flags.gpus, sizes, tuple(flags.gpu), rpc=flags.endpoints, found=())


def _values(table: Mapping[str, Any], keys: Mapping[str, _Key], where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word, value in table.items():
        key = keys.get(word)
        if key is None:
            raise UsageError(f"{where}: unknown key {word!r}; one of {_known(keys)}")
        if key.field in values:
            raise UsageError(f"{where}: {word} is set twice, by its short and its long name")
        values[key.field] = _value(value, key, f"{where}: {word} = {value!r}", word)
    return values


def _known(keys: Mapping[str, _Key]) -> str:
    """The long name of each."""
    longest: dict[str, str] = {}
    for word, key in keys.items():
        longest[key.field] = max(word, longest.get(key.field, ""), key=len)
    return ", ".join(longest.values())


def _value(value: Any, key: _Key, what: str, word: str) -> Any:
    if isinstance(value, str) and "\0" in value:
        raise UsageError(f"{what}: no file, card or rule can be called so")
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if key.kind == "int" and is_int:
        return value
    if key.kind == "bool" and isinstance(value, bool):
        return value
    if key.kind in ("str", "number") and isinstance(value, str):
        return value
    if key.kind == "number" and is_int:
        return str(value)
    if key.kind == "number" and isinstance(value, list) and value and all(map(_is_part, value)):
        return ",".join(str(v) for v in value)
    if key.kind == "list" and isinstance(value, str):
        return [value]
    if key.kind == "list" and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return value
    if key.kind == "strategy":
        return _strategy(value, what)
    raise UsageError(f"{what}: write it like {word} = {key.example}")


def _is_part(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _strategy(value: Any, what: str) -> StrEnum:
    if value not in [one.value for one in StrategyName]:
        raise UsageError(f"{what}: one of {', '.join(one.value for one in StrategyName)}")
    return StrategyName(value)
