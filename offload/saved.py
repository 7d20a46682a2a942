"""[edge] A saved plan read back: the file `offload plan -o json` wrote.

As a `Launch` (how to load), as a `Request` (what was asked for, to plan again), or as
the `Plan` itself, priced again by this program with nothing left to choose.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from offload.emit import Launch, emit_server_args
from offload.errors import UsageError
from offload.memory import Breakdown
from offload.model import make_model
from offload.options import PlanOptions, Strategy, parse_kv_type
from offload.plan import Plan, make_plan, with_memory
from offload.render.plan_json import devices_to_json, model_to_json, options_to_json
from offload.render.request_json import Request, request_of_json
from offload.render.speeds_json import speeds_of_json
from offload.source import read_header
from offload.speeds import Speeds

_PLAN_MAX_BYTES: Final = 64 << 20
_RESOLVED: Final = ("n_batch", "n_ubatch", "n_parallel", "kv_unified", "flash_attn")
"""Options of a plan that the model has a say in."""
_EDITED: Final = "the plan was edited or made by another version: plan again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """What a saved plan holds."""

    launch: Launch
    request: Request
    compute_bytes: tuple[int, ...] | None
    """What llama.cpp itself said, device by device and the host last; None for estimates."""

    speeds: Speeds | None
    """What it was priced with; None where nothing was known, or an earlier version saved it."""

    said: Mapping[str, Any]
    """All of it, as it was written."""


def is_saved_plan(path: str) -> bool:
    """False for what starts like a GGUF or cannot be opened; its reader says the rest."""
    if path == "-" or path.endswith(".json"):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(1).lstrip() in (b"{", b"")
    except OSError:
        return False


def read_launch(path: str) -> Launch:
    """Read a plan's launch settings from a file, or from stdin for `-`.

    Raises UsageError when the file cannot be read or is not a plan of schema version 1.
    """
    data = _read(path)
    launch = Launch.from_json(data.get("launch"))
    _check_launch(data, launch)
    return launch


def read_saved(path: str) -> SavedPlan:
    """Read all of a saved plan; UsageError as for `read_launch`."""
    data = _read(path)
    launch = Launch.from_json(data.get("launch"))
    _check_launch(data, launch)
    return SavedPlan(
        launch=launch,
        request=request_of_json(data.get("request")),
        compute_bytes=_compute_bytes(data) if data.get("compute_source") == "dry-run" else None,
        speeds=speeds_of_json(data.get("speeds")),
        said=data,
    )


def read_plan(path: str) -> Plan:
    """The saved plan at `path` with the model's header read anew: same places, same bytes.

    Raises UsageError as `read_launch` does, GGUFError where the model is gone or broken.
    """
    return plan_of_saved(read_saved(path))


def plan_of_saved(saved: SavedPlan) -> Plan:
    """The plan that was saved, priced again with nothing left to choose.

    Raises UsageError where the model is another by now, or the plan was edited and
    contradicts itself.
    """
    model = make_model(read_header(saved.launch.model_path))
    _check_same(saved.said, "model", model_to_json(model), ("arch", "n_layer", "size_bytes"))
    plan = make_plan(
        model,
        saved.request.devices,
        as_launched(saved.request.options, saved.launch),
        host_free_bytes=saved.request.host_free_bytes,
        speeds=saved.speeds,
    )
    _check_same(saved.said, "options", options_to_json(plan), _RESOLVED)
    _check_devices(saved.said, plan)
    if saved.said.get("companions"):
        from offload.companions import companions_of_json

        plan = replace(plan, companions=companions_of_json(saved.said["companions"]))
    compute = saved.compute_bytes
    if compute is None:
        return plan
    if len(compute) != len(plan.devices) + 1:
        raise UsageError("the plan has compute bytes of another number of cards; plan again")
    devices = tuple(
        replace(memory, compute_bytes=n)
        for memory, n in zip(plan.memory.devices, compute, strict=False)
    )
    host = replace(plan.memory.host, compute_bytes=compute[-1])
    return with_memory(plan, Breakdown(devices=devices, host=host), "dry-run")


def as_launched(options: PlanOptions, launch: Launch) -> PlanOptions:
    """Options that leave nothing to choose: every place is the launch's."""
    return replace(
        options,
        n_ctx=launch.n_ctx,
        n_batch=launch.n_batch,
        n_ubatch=launch.n_ubatch,
        n_parallel=launch.n_parallel,
        kv_unified=launch.kv_unified,
        type_k=parse_kv_type(launch.type_k, "-ctk"),
        type_v=parse_kv_type(launch.type_v, "-ctv"),
        flash_attn=launch.flash_attn,
        swa_full=launch.swa_full,
        offload_kqv=launch.offload_kqv,
        op_offload=launch.op_offload,
        no_host=launch.no_host,
        n_gpu_layers=launch.n_gpu_layers,
        tensor_split=launch.tensor_split or None,
        split_mode=launch.split_mode,
        main_gpu=launch.main_gpu,
        override_rules=launch.rules,
        n_cpu_moe=launch.n_cpu_moe,
        cpu_moe=launch.cpu_moe,
        load_mode=launch.load_mode,
        device_names=launch.devices,
        rpc=launch.rpc,
        strategy=Strategy.NONE,
    )


def _check_launch(data: Mapping[str, Any], launch: Launch) -> None:
    """Keys that people read and edit must say what the settings that count say."""
    rules = data.get("rules")
    ours = [{"pattern": r.pattern, "buffer_type": r.buffer_type} for r in launch.rules]
    if not isinstance(rules, list) or ours[len(ours) - len(rules) :] != rules:
        raise UsageError(f"the plan's 'rules' are not those of its 'launch'; {_EDITED}")
    if data.get("n_gpu_layers") != launch.n_gpu_layers:
        raise UsageError(f"the plan's 'n_gpu_layers' is not that of its 'launch'; {_EDITED}")
    _check_same(data, "model", {"path": launch.model_path}, ("path",))
    settings = {"n_ctx": launch.n_ctx, "type_k": launch.type_k, "type_v": launch.type_v}
    _check_same(data, "options", settings, tuple(settings))
    _check_argv(data.get("argv"), emit_server_args(launch))


def _check_argv(said: object, ours: Sequence[str]) -> None:
    """Values of flags: another build may lack some flags, but has no other values for them."""
    words = said if isinstance(said, list) else []
    # a word after a switch is another flag, and no value of it
    now = {flag: value for flag, value in pairwise(ours) if not value.startswith("-")}
    for flag, value in pairwise(words):
        if isinstance(flag, str) and flag.startswith("-") and now.get(flag, value) != value:
            raise UsageError(
                f"the plan's 'argv' says {flag} {value}, its 'launch' {now[flag]}; {_EDITED}"
            )


def _check_devices(data: Mapping[str, Any], plan: Plan) -> None:
    """Layers, weights and context of every device are what this program finds for the launch."""
    devices = data.get("devices")
    found = devices_to_json(plan)
    if not isinstance(devices, list) or len(devices) != len(found):
        raise UsageError(f"the plan's 'devices' are not those of its 'launch'; {_EDITED}")
    keys = ("name", "layers", "experts_on_host", "model_bytes", "context_bytes")
    for i, now in enumerate(found):
        _check_same({"device": devices[i]}, "device", now, keys)
    if data.get("tensor_split") != list(plan.split.counts(len(plan.devices))):
        raise UsageError(f"the plan's 'tensor_split' is not that of its 'launch'; {_EDITED}")


def _check_same(
    data: Mapping[str, Any], what: str, now: Mapping[str, Any], keys: Sequence[str]
) -> None:
    said = data.get(what)
    for key in keys:
        before = said.get(key) if isinstance(said, Mapping) else None
        if before != now[key]:
            raise UsageError(
                f"the plan says {key} of its {what} is {before!r}, but it is {now[key]!r};"
                f" the model has changed, or {_EDITED}"
            )


def _read(path: str) -> Mapping[str, Any]:
    try:
        if path == "-":
            if sys.stdin is None:
                raise UsageError("-: stdin is closed; give a plan saved with -o json")
            text = sys.stdin.read(_PLAN_MAX_BYTES)
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read(_PLAN_MAX_BYTES)
        data = json.loads(text)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}; give a plan saved with -o json"
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not JSON; write it with offload plan MODEL -o json") from None
    if not isinstance(data, dict) or data.get("schema_version") != 1:
        raise UsageError(f"{path}: not a plan of schema version 1; write it again")
    return data


def _compute_bytes(data: Mapping[str, Any]) -> tuple[int, ...]:
    devices, host = data.get("devices"), data.get("host")
    tables = [*devices, host] if isinstance(devices, list) else [host]
    numbers = [table.get("compute_bytes") for table in tables if isinstance(table, Mapping)]
    if len(numbers) != len(tables) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise UsageError("the plan has devices or a host without compute_bytes; plan again")
    return tuple(n for n in numbers if n is not None)
