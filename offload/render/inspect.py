"""A model as `offload inspect` shows it: hyper-parameters, layers, tensors, bytes."""

from __future__ import annotations

from typing import Any

from offload.context import ContextOptions
from offload.ggml import TYPES_BY_NAME
from offload.memory import HOST_BACKEND, context_bytes_by_layer
from offload.model import Model, Role, Tensor
from offload.render.plan_json import SCHEMA_VERSION, model_to_json
from offload.render.text import printable, ranges, render_columns
from offload.units import MIB, format_gib

_PROBE_N_CTX = 65536
"""Context at which bytes per token are taken: far beyond every window and state."""


def _context_options(n_ctx: int) -> ContextOptions:
    f16 = TYPES_BY_NAME["F16"]
    return ContextOptions(n_ctx=n_ctx, n_parallel=1, kv_unified=True, type_k=f16, type_v=f16)


def context_bytes_per_token(model: Model) -> tuple[int, ...]:
    """Growth of each layer's f16 context per token of one sequence; 0 for windows and states."""
    small = context_bytes_by_layer(model, _context_options(_PROBE_N_CTX), HOST_BACKEND)
    large = context_bytes_by_layer(model, _context_options(2 * _PROBE_N_CTX), HOST_BACKEND)
    return tuple((b - a) // _PROBE_N_CTX for a, b in zip(small, large, strict=True))


def _layer_sums(model: Model) -> list[dict[Role, int]]:
    sums: list[dict[Role, int]] = [{} for _ in range(model.n_layer)]
    for tensor in model.tensors:
        if tensor.il is not None and tensor.il < model.n_layer:
            row = sums[tensor.il]
            row[tensor.role] = row.get(tensor.role, 0) + tensor.n_bytes
    return sums


def _home_bytes(model: Model, home: str) -> int:
    return sum(t.n_bytes for t in model.tensors if t.home == home)


def _tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "type": tensor.type.name,
        "shape": list(tensor.shape),
        "n_bytes": tensor.n_bytes,
        "role": str(tensor.role),
        "part": tensor.part,
        "loaded": tensor.loaded,
    }


def inspect_to_json(model: Model) -> dict[str, Any]:
    """The object `offload inspect -o json` prints."""
    per_token = context_bytes_per_token(model)
    layers = []
    for layer, sums in zip(model.layers, _layer_sums(model), strict=True):
        experts, shared = sums.get(Role.EXPERT, 0), sums.get(Role.SHARED_EXPERT, 0)
        layers.append(
            {
                "il": layer.il,
                "kind": layer.kind,
                "is_nextn": layer.is_nextn,
                "dense_bytes": sum(sums.values()) - experts - shared,
                "expert_bytes": experts,
                "shared_expert_bytes": shared,
                "context_bytes_per_token": per_token[layer.il],
            }
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "model": model_to_json(model) | {"hparams": _plain(model.hparams._asdict())},
        "layers": layers,
        "input_bytes": _home_bytes(model, "input"),
        "output_bytes": _home_bytes(model, "output"),
        "tensors": [_tensor_to_json(tensor) for tensor in model.tensors],
        "warnings": [{"code": code, "text": text} for code, text in model.warnings],
    }


def _plain(value: Any) -> Any:
    """Mappings and tuples as what json.dumps takes."""
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def render_inspect(model: Model) -> str:
    """The same as a table, equal neighbouring layers in one row."""
    per_token = context_bytes_per_token(model)
    groups: dict[tuple[str, ...], list[int]] = {}
    for layer, sums in zip(model.layers, _layer_sums(model), strict=True):
        experts, shared = sums.get(Role.EXPERT, 0), sums.get(Role.SHARED_EXPERT, 0)
        key = (
            layer.kind + (" (MTP)" if layer.is_nextn else ""),
            f"{(sum(sums.values()) - experts - shared) / MIB:.1f}",
            f"{experts / MIB:.1f}",
            f"{shared / MIB:.1f}",
            str(per_token[layer.il]),
        )
        groups.setdefault(key, []).append(layer.il)
    head = ("layers", "kind", "dense MiB", "experts MiB", "shared MiB", "context B/token")
    rows = [head, *((ranges(ils), *key) for key, ils in groups.items())]
    lines = [
        f"{printable(model.name or model.path)}: {printable(model.arch)}, {model.n_layer} layers,"
        f" {format_gib(model.size_bytes)} in {model.n_files} file(s)",
        f"{model.n_expert} experts, {model.n_expert_used} used;"
        f" {format_gib(model.expert_bytes)} of routed experts;"
        f" input {_home_bytes(model, 'input') / MIB:.0f} MiB,"
        f" output {_home_bytes(model, 'output') / MIB:.0f} MiB",
        f"trained on {model.n_ctx_train} tokens of context",
        "",
        *render_columns(rows, "<<>>>>"),
    ]
    lines += [f"{code}: {printable(text)}" for code, text in model.warnings]
    return "\n".join(lines)
