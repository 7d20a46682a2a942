"""What else does the server load beside the model, and how much does it take of each card?

A draft model has weights, context and compute of its own. It is loaded with the settings of
the main model except for file, cards, layers on cards and cache types, and its context is as
long (`common_base_params_to_speculative` and `common_speculative_init_result`,
common/speculative.cpp, b11434). A multimodal projector lies whole on one card (`clip_ctx`,
tools/mtmd/clip.cpp, b11434); its compute buffer depends on the pictures, and is estimated
from above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from offload.context import ContextOptions
from offload.device import Device
from offload.errors import UsageError
from offload.gguf import GGUFHeader
from offload.memory import HOST_BACKEND, Companion, MemoryBytes
from offload.model import Model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan

_NO_LIMIT_BYTES: Final = 1 << 60
_TOKENS_MAX: Final = 4096
"""Tokens of one picture in models that take any size; most allow no more."""

_FIXED_SIZE: Final = frozenset(
    ("mlp", "mlp_norm", "ldp", "ldpv2", "gemma3", "idefics3", "internvl", "llama4", "adapter")
)
"""Projectors whose pictures, or the tiles of them, are all of one size."""


def draft_cards(devices: Sequence[Device], asked: str | None) -> tuple[Device, ...]:
    """The cards of `-devd`, else the one with the most memory free, the first of equal ones.

    llama.cpp would spread a draft model over all cards: its few layers gain nothing from
    that, and each of its tokens would wait for every card. Raises UsageError.
    """
    if asked == "none" or not devices:
        return ()
    if asked is None:
        return (max(devices, key=lambda device: device.memory_free_bytes),)
    by_name = {device.name: device for device in devices}
    names = asked.split(",")
    unknown = [name for name in names if name not in by_name]
    if unknown or len(set(names)) != len(names):
        raise UsageError(f"-devd {asked}: each once, of {', '.join(by_name) or 'none'}")
    return tuple(by_name[name] for name in names)


def mmproj_card(devices: Sequence[Device], asked: str | None) -> Device | None:
    """The card of `-mmdev`, else the first; None for the host. Raises UsageError."""
    if asked == "none" or not devices:
        return None
    if asked is None:
        return devices[0]
    for device in devices:
        if device.name == asked:
            return device
    raise UsageError(f"-mmdev {asked}: one of {', '.join(d.name for d in devices)}, or none")


def draft_memory(
    draft: Model,
    cards: Sequence[Device],
    options: PlanOptions,
    context: ContextOptions,
    shares: Sequence[float],
) -> Companion:
    """What a draft model takes of `cards` beside a main model with `options` and `context`.

    `shares` is the main model's `-ts`, of which the draft's first card takes the first share,
    whichever card that is; empty where there is none.
    """
    split = tuple(shares[: len(cards)])
    if len(cards) > 1 and not any(split):
        split = tuple(float(card.memory_free_bytes) for card in cards)
    n_layers = options.draft_n_gpu_layers
    asked = PlanOptions(
        n_ctx=context.n_ctx,
        n_batch=options.n_batch,
        n_ubatch=options.n_ubatch,
        n_parallel=options.n_parallel,
        kv_unified=options.kv_unified,
        type_k=options.draft_type_k,
        type_v=options.draft_type_v,
        flash_attn=options.flash_attn,
        swa_full=options.swa_full,
        offload_kqv=options.offload_kqv,
        op_offload=options.op_offload,
        no_host=options.no_host,
        n_gpu_layers=0 if not cards else -2 if n_layers is None else n_layers,
        tensor_split=split if len(cards) > 1 else None,
        split_mode=options.split_mode if len(cards) > 1 else "layer",
        main_gpu=options.main_gpu if len(cards) > 1 else 0,
        llama_build=options.llama_build,
        margin_bytes=(0,),
        strategy=Strategy.NONE,
    )
    endless = [replace(card, memory_free_bytes=_NO_LIMIT_BYTES) for card in cards]
    plan = make_plan(draft, endless, asked, with_advice=False)
    names = [card.name for card in plan.devices]
    return Companion(
        name="draft",
        path=draft.path,
        cards=dict(zip(names, plan.memory.devices, strict=True)),
        host=plan.memory.host,
    )


def mmproj_memory(header: GGUFHeader, card: Device | None) -> Companion:
    """What a projector takes of `card`, or of the host for None.

    Raises UsageError where the file is none.
    """
    if header.metadata.get("general.architecture") != "clip":
        raise UsageError(
            f"{header.path}: not a multimodal projector (its architecture is not clip)"
        )
    backend = HOST_BACKEND if card is None else card.backend
    memory = MemoryBytes(
        model_bytes=sum(backend.padded_bytes(t.type, t.shape) for t in header.tensors),
        compute_bytes=max(_compute_bytes(header.metadata, kind) for kind in ("vision", "audio")),
    )
    return Companion(
        name="mmproj",
        path=header.path,
        cards={} if card is None else {card.name: memory},
        host=memory if card is None else MemoryBytes(),
    )


def _compute_bytes(metadata: Mapping[str, Any], kind: str) -> int:
    """Activations of one block over the largest picture in 32 bits, with flash attention."""

    def whole(key: str, default: int = 0) -> int:
        value = metadata.get(f"clip.{kind}.{key}", default)
        return value if isinstance(value, int) and 0 <= value < 1 << 20 else default

    n_embd, n_ff = whole("embedding_length"), whole("feed_forward_length")
    if not n_embd:
        return 0
    patch = max(1, whole("patch_size", 14))
    n_patches = (whole("image_size", 448) // patch) ** 2 if kind == "vision" else 3000
    merge = max(1, whole("spatial_merge_size", 2))
    projector = metadata.get(f"clip.{kind}.projector_type", metadata.get("clip.projector_type"))
    if kind == "vision" and projector not in _FIXED_SIZE:
        n_patches = max(n_patches, _TOKENS_MAX * merge**2)
    picture = 2 * 3 * patch**2 if kind == "vision" else 2 * 3 * whole("num_mel_bins", 128)
    per_patch = max(2 * n_ff + 4 * n_embd, 8 * n_embd) + picture
    width = max(whole("projection_dim"), n_embd)
    return 4 * (n_patches * per_patch + 2 * n_patches * width)


def plan_shares(plan: Plan) -> tuple[float, ...]:
    """The `-ts` of the plan's command."""
    if plan.options.tensor_split is not None:
        return plan.options.tensor_split
    counts = plan.split.counts(len(plan.devices))
    return tuple(float(n) for n in counts) if len(counts) > 1 else ()


def companions_to_json(companions: Sequence[Companion]) -> list[dict[str, Any]]:
    """What each takes, card by card and of the host."""
    return [
        {
            "name": one.name,
            "path": one.path,
            "devices": [{"name": name, **_to_json(m)} for name, m in one.cards.items()],
            "host": _to_json(one.host),
        }
        for one in companions
    ]


def companions_of_json(data: object) -> tuple[Companion, ...]:
    """Read what `companions_to_json` wrote; UsageError for anything else."""
    if data is None:
        return ()
    try:
        if not isinstance(data, list):
            raise TypeError
        return tuple(
            Companion(
                name=str(one["name"]),
                path=str(one["path"]),
                cards={str(card["name"]): _of_json(card) for card in one["devices"]},
                host=_of_json(one["host"]),
            )
            for one in data
        )
    except (TypeError, KeyError, AttributeError):
        raise UsageError("the plan's 'companions' cannot be read; plan again") from None


def _to_json(memory: MemoryBytes) -> dict[str, int]:
    return {
        "model_bytes": memory.model_bytes,
        "context_bytes": memory.context_bytes,
        "compute_bytes": memory.compute_bytes,
        "total_bytes": memory.total_bytes,
    }


def _of_json(data: Mapping[str, Any]) -> MemoryBytes:
    numbers = [data[f"{key}_bytes"] for key in ("model", "context", "compute")]
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise TypeError
    return MemoryBytes(model_bytes=numbers[0], context_bytes=numbers[1], compute_bytes=numbers[2])
