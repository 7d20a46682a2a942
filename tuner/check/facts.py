"""What of a plan is recorded, so that a later one can be laid beside it?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from offload.emit import Launch, make_launch
from offload.errors import UsageError
from offload.memory import MemoryBytes
from offload.plan import Plan
from offload.render.text import ranges
from offload.split import HOST
from offload.verification import Verification

HOST_NAME: Final = "CPU"
OUTPUT: Final = "output"
_BLOCK: Final = re.compile(r"blk\.(\d+)\.(.+)", re.ASCII)
_LAYERS_MAX: Final = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One card or the host: the layers it owns and what they take."""

    name: str
    layers: tuple[int, ...]
    output: bool
    memory: MemoryBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """The cards in order, the host last; `moved` are tensors away from their layer's device."""

    launch: Launch
    feasible: bool
    devices: tuple[DeviceFacts, ...]
    moved: Mapping[str, str]

    @property
    def owners(self) -> dict[int | str, str]:
        """The device of each layer, and of the output layer."""
        owners: dict[int | str, str] = {il: d.name for d in self.devices for il in d.layers}
        owners[OUTPUT] = next(device.name for device in self.devices if device.output)
        return owners


def facts_of_plan(plan: Plan) -> PlanFacts:
    """What is recorded of `plan`."""
    names = (*(card.name for card in plan.devices), HOST_NAME)
    keys = (*range(len(plan.devices)), HOST)
    memory = (*plan.memory.devices, plan.memory.host)
    return PlanFacts(
        launch=replace(make_launch(plan), layer_bytes=()),
        feasible=plan.feasible,
        devices=tuple(
            DeviceFacts(
                name=name,
                layers=tuple(plan.split.layers_of(key)),
                output=plan.split.output_owner == key,
                memory=n_bytes,
            )
            for name, key, n_bytes in zip(names, keys, memory, strict=True)
        ),
        moved={
            name: HOST_NAME if device == HOST else plan.devices[device].name
            for name, device in plan.placement.placed.items()
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """What llama.cpp itself said: the cards in order, the host last."""

    source: str
    build: int | None
    is_exact: bool
    devices: Mapping[str, MemoryBytes]


def facts_of_verification(said: Verification) -> MemoryFacts:
    """What is recorded of a dry run."""
    return MemoryFacts(
        source=said.source,
        build=said.build,
        is_exact=said.is_exact,
        devices={check.name: check.actual for check in (*said.devices, said.host)},
    )


def memory_to_json(memory: MemoryBytes) -> dict[str, int]:
    """llama.cpp's three numbers."""
    return {
        "model_bytes": memory.model_bytes,
        "context_bytes": memory.context_bytes,
        "compute_bytes": memory.compute_bytes,
    }


def facts_to_json(facts: PlanFacts) -> dict[str, Any]:
    """A JSON object from which `facts_of_json` makes an equal value, given the launch."""
    groups: dict[tuple[str, str], list[int]] = {}
    whole: list[dict[str, str]] = []
    for name, device in sorted(facts.moved.items()):
        match = _BLOCK.fullmatch(name)
        if match is None:
            whole.append({"tensors": name, "on": device})
        else:
            groups.setdefault((match[2], device), []).append(int(match[1]))
    blocks = [
        {"tensors": stem, "layers": ranges(sorted(layers)), "on": device}
        for (stem, device), layers in groups.items()
    ]
    return {
        "feasible": facts.feasible,
        "devices": [
            {"name": d.name, "layers": ranges(d.layers), "output": d.output}
            | memory_to_json(d.memory)
            for d in facts.devices
        ],
        "moved": whole + blocks,
    }


def facts_of_json(data: Mapping[str, Any], launch: Launch) -> PlanFacts:
    """Read what `facts_to_json` wrote; UsageError where it contradicts itself."""
    try:
        devices = tuple(_device(one) for one in data["devices"])
        moved: dict[str, str] = {}
        for one in data["moved"]:
            stem, device = str(one["tensors"]), str(one["on"])
            if "layers" not in one:
                moved[stem] = device
                continue
            moved |= {f"blk.{il}.{stem}": device for il in layers_of_text(one["layers"])}
        facts = PlanFacts(
            launch=launch, feasible=bool(data["feasible"]), devices=devices, moved=moved
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"its plan is incomplete ({error})") from None
    _check_whole(facts)
    return facts


def _device(data: Mapping[str, Any]) -> DeviceFacts:
    return DeviceFacts(
        name=str(data["name"]),
        layers=layers_of_text(data["layers"]),
        output=bool(data["output"]),
        memory=memory_of_json(data),
    )


def memory_of_json(data: Mapping[str, Any]) -> MemoryBytes:
    """Read what `memory_to_json` wrote; ValueError for anything that is no size."""
    values = {key: data[key] for key in ("model_bytes", "context_bytes", "compute_bytes")}
    for key, value in values.items():
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise ValueError(f"{key} = {value!r}")
    return MemoryBytes(**values)


def layers_of_text(text: str) -> tuple[int, ...]:
    """`0-2,5` as numbers; ValueError for anything else."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < _LAYERS_MAX:
            raise ValueError(f"layers {text!r}")
        found += range(low, high + 1)
    return tuple(found)


def _check_whole(facts: PlanFacts) -> None:
    """Every layer has one owner, and tensors are moved to devices and layers that exist."""
    layers = sorted(il for device in facts.devices for il in device.layers)
    if layers != list(range(len(layers))):
        raise UsageError("its layers are not each owned once")
    if sum(device.output for device in facts.devices) != 1:
        raise UsageError("its output layer is not owned once")
    names = [device.name for device in facts.devices]
    if len(set(names)) != len(names) or names[-1:] != [HOST_NAME]:
        raise UsageError("its devices are not cards and then CPU, each once")
    for name, device in facts.moved.items():
        match = _BLOCK.fullmatch(name)
        if device not in names or (match and int(match[1]) >= len(layers)):
            raise UsageError(f"it moves {name} to {device}, which is not there")
