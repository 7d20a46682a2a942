"""What was asked for, as JSON, so that a saved plan can be planned again.

`request_to_json` and `request_of_json` are each other's inverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from offload.device import Device
from offload.errors import OffloadError, UsageError
from offload.ggml import GGMLType
from offload.machine import Host, Machine, machine_of_document, machine_to_document
from offload.options import PlanOptions, Strategy, parse_kv_type
from offload.plan import Plan
from offload.rules import Rule

_LISTS: Final = ("tensor_split", "override_rules", "device_names", "margin_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of `make_plan`, the model by its path."""

    model_path: str
    devices: tuple[Device, ...]
    options: PlanOptions
    host_free_bytes: int | None


def request_of_plan(plan: Plan) -> Request:
    """What `plan` was the answer to."""
    return Request(
        model_path=plan.model.path,
        devices=plan.offered_devices,
        options=plan.options,
        host_free_bytes=plan.host_free_bytes,
    )


def request_to_json(request: Request) -> dict[str, Any]:
    """Options that differ from their default, and the machine as in devices.toml."""
    host = Host(memory_available_bytes=request.host_free_bytes)
    changed = {
        item.name: _option_to_json(getattr(request.options, item.name))
        for item in fields(PlanOptions)
        if getattr(request.options, item.name) != item.default
    }
    machine = Machine(devices=request.devices, host=host)
    return {
        "model_path": request.model_path,
        "machine": machine_to_document(machine),
        "options": changed,
    }


def _option_to_json(value: Any) -> Any:
    if isinstance(value, GGMLType):
        return value.name.lower()
    if isinstance(value, tuple):
        return [
            {"pattern": one.pattern, "buffer_type": one.buffer_type}
            if isinstance(one, Rule)
            else one
            for one in value
        ]
    return value


def request_of_json(data: object) -> Request:
    """Read what `request_to_json` wrote; UsageError names what is missing or of another form."""
    try:
        if not isinstance(data, Mapping):
            raise UsageError("it is missing")
        path, machine_data, options = (data.get(k) for k in ("model_path", "machine", "options"))
        if not (
            isinstance(path, str)
            and "\0" not in path
            and isinstance(machine_data, Mapping)
            and isinstance(options, Mapping)
        ):
            raise UsageError("it needs model_path, machine and options")
        machine = machine_of_document(machine_data)
        return Request(
            model_path=path,
            devices=machine.devices,
            options=_options_of_json(options),
            host_free_bytes=machine.host.memory_available_bytes,
        )
    except OffloadError as error:
        raise UsageError(f"the plan's 'request' cannot be read: {error}; plan again") from None


def _options_of_json(data: Mapping[str, Any]) -> PlanOptions:
    known = {item.name: str(item.type) for item in fields(PlanOptions)}
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in known:
            raise UsageError(f"unknown option {name!r}")
        values[name] = _option_of_json(name, known[name], value)
    return PlanOptions(**values)


def _option_of_json(name: str, kind: str, value: Any) -> Any:
    if kind == "GGMLType" and isinstance(value, str):
        return parse_kv_type(value, name)
    if name == "strategy" and value in tuple(Strategy):
        return Strategy(value)
    if name in _LISTS and isinstance(value, list):
        return tuple(_element_of_json(name, one) for one in value)
    scalar = {"int": int, "bool": bool, "str": str}[kind.removesuffix(" | None")] if (
        kind.removesuffix(" | None") in ("int", "bool", "str")
    ) else None  # fmt: skip
    if (value is None and kind.endswith("None")) or type(value) is scalar:
        return value
    raise UsageError(f"{name} = {value!r} is not {kind}")


def _element_of_json(name: str, value: Any) -> Any:
    if name == "override_rules":
        if not isinstance(value, Mapping) or not all(
            isinstance(value.get(key), str) for key in ("pattern", "buffer_type")
        ):
            raise UsageError("override_rules need a pattern and a buffer_type each")
        return Rule(pattern=value["pattern"], buffer_type=value["buffer_type"])
    is_number = type(value) in ((int, float) if name == "tensor_split" else (int,))
    if (name == "device_names" and isinstance(value, str)) or (
        name != "device_names" and is_number and abs(value) < 1 << 62
    ):
        return float(value) if name == "tensor_split" else value
    raise UsageError(f"{name} holds {value!r}")
