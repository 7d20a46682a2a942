"""A plan as the JSON object that scripts rely on (schema version 1).

Keys are only ever added; changing one raises `SCHEMA_VERSION` and is told in
the changelog. `launch` is what `offload emit` reads back, `request` what plans again, `speeds` what
both were priced with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from offload.emit import emit_server_args, make_launch
from offload.memory import MemoryBytes
from offload.model import Model
from offload.plan import Plan
from offload.render.choice import choice_to_json
from offload.render.forecast import forecast_to_json
from offload.render.request_json import request_of_plan, request_to_json
from offload.split import HOST

if TYPE_CHECKING:
    from offload.forecast import Forecast

SCHEMA_VERSION: Final = 1


def model_to_json(model: Model) -> dict[str, Any]:
    """The `model` object of plan and inspect."""
    return {
        "path": model.path,
        "name": model.name,
        "arch": model.arch,
        "n_layer": model.n_layer,
        "n_layer_nextn": model.n_layer_nextn,
        "n_expert": model.n_expert,
        "n_expert_used": model.n_expert_used,
        "n_ctx_train": model.n_ctx_train,
        "size_bytes": model.size_bytes,
        "expert_bytes": model.expert_bytes,
        "n_files": model.n_files,
    }


def _memory_to_json(memory: MemoryBytes) -> dict[str, int]:
    return {
        "model_bytes": memory.model_bytes,
        "context_bytes": memory.context_bytes,
        "compute_bytes": memory.compute_bytes,
        "total_bytes": memory.total_bytes,
    }


def _companions(plan: Plan) -> list[dict[str, Any]]:
    if not plan.companions:
        return []
    from offload.companions import companions_to_json

    return companions_to_json(plan.companions)


def options_to_json(plan: Plan) -> dict[str, Any]:
    """What the user set, and what it comes to for this model."""
    context, options = plan.context, plan.options
    return {
        "n_ctx": context.n_ctx,
        "n_batch": context.n_batch,
        "n_ubatch": context.n_ubatch,
        "n_parallel": context.n_parallel,
        "kv_unified": context.kv_unified,
        "type_k": options.type_k.name.lower(),
        "type_v": options.type_v.name.lower(),
        "flash_attn": context.flash_attn,
        "llama_build": options.llama_build,
        "strategy": str(options.strategy),
    }


def devices_to_json(plan: Plan) -> list[dict[str, Any]]:
    """One object per card, in llama.cpp's device order."""
    return [
        {
            "name": device.name,
            "memory_free_bytes": device.memory_free_bytes,
            "margin_bytes": plan.margins_bytes[d],
            "layers": list(plan.split.layers_of(d)),
            "output": plan.split.output_owner == d,
            "experts_on_host": list(plan.experts_on_host(d)),
            "experts_elsewhere": list(plan.experts_elsewhere(d)),
            "experts_of_others": list(plan.guests(d)),
            **_memory_to_json(plan.memory.devices[d]),
            "headroom_bytes": plan.headroom_bytes(d),
            "short_bytes": plan.short_bytes.get(d, 0),
        }
        for d, device in enumerate(plan.devices)
    ]


def plan_to_json(
    plan: Plan, forecast: Forecast | None = None, argv: Sequence[str] | None = None
) -> dict[str, Any]:
    """The object `offload plan -o json` prints."""
    from offload.render.speeds_json import speeds_to_json  # the table has no use for it

    launch = make_launch(plan)
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model_to_json(plan.model),
        "options": options_to_json(plan),
        "feasible": plan.feasible,
        "devices": devices_to_json(plan),
        "host": {
            "memory_free_bytes": plan.host_free_bytes,
            "layers": list(plan.split.layers_of(HOST)),
            **_memory_to_json(plan.memory.host),
            "short_bytes": plan.short_bytes.get(HOST, 0),
        },
        "compute_source": plan.compute_source,
        "tensor_split": list(plan.split.counts(len(plan.devices))),
        "n_gpu_layers": launch.n_gpu_layers,
        "rules": [{"pattern": r.pattern, "buffer_type": r.buffer_type} for r in plan.rules],
        "prediction": forecast_to_json(forecast),
        "choice": choice_to_json(plan.choice),
        "argv": list(emit_server_args(launch) if argv is None else argv),
        "companions": _companions(plan),
        "warnings": [{"code": a.code, "text": a.text} for a in plan.advice],
        "launch": launch.to_json(),
        "request": request_to_json(request_of_plan(plan)),
        "speeds": speeds_to_json(plan.speeds),
    }
