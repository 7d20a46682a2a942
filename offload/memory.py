"""How many bytes of weights and context does each device hold?

Weights mirror `llama_model_loader::create_tensor` (which buffer a tensor goes
to) and `ggml_backend_alloc_ctx_tensors_from_buft` (how each is padded there);
context mirrors the cache constructors, which follow the owner of the layer
(src/llama-model-loader.cpp, ggml/src/ggml-alloc.c, src/llama-kv-cache.cpp,
b11434). Two views of the same numbers: `measure_memory` is the referee that
prices any placement tensor by tensor, `layer_bytes` the solver's table of what
each layer costs where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offload.context import ContextOptions
from offload.device import BACKENDS, Backend
from offload.model import Model, Role, Tensor
from offload.split import HOST, LayerSplit

HOST_BACKEND = BACKENDS["CPU"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBytes:
    """llama.cpp's own three numbers for one device, in bytes."""

    model_bytes: int = 0
    context_bytes: int = 0
    compute_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Sum of the three."""
        return self.model_bytes + self.context_bytes + self.compute_bytes


class Breakdown(NamedTuple):
    """Memory of every device (same order as the devices) and of the host."""

    devices: tuple[MemoryBytes, ...]
    host: MemoryBytes


class Companion(NamedTuple):
    """What a file loaded beside the model takes; `name` is `draft` or `mmproj`, cards by name."""

    name: str
    path: str
    cards: Mapping[str, MemoryBytes]
    host: MemoryBytes


class ExpertUnit(NamedTuple):
    """The smallest thing that moves: one routed-expert matrix with its bias and scales.

    `stem` is the name without layer and suffix (`ffn_down_exps`); `n_bytes` is
    padded as on the device whose table this unit stands in.
    """

    il: int
    stem: str
    names: tuple[str, ...]
    n_bytes: int


class LayerBytes(NamedTuple):
    """What each unit of `-ngl` costs on one kind of device.

    Index `il` is a repeating layer, the last index the output layer.
    `fixed_bytes` are weights that always follow the owner plus context,
    `expert_units` what may go to the host, `expert_bytes` their sum.
    """

    fixed_bytes: tuple[int, ...]
    expert_units: tuple[tuple[ExpertUnit, ...], ...]
    expert_bytes: tuple[int, ...]
    once_bytes: int
    """Tensors that llama.cpp copies once into every device that owns a layer."""


def padded_sum(n_bytes: Iterable[int], backend: Backend) -> int:
    """Sum of allocations, each rounded up to the alignment of the backend's buffers."""
    mask = backend.alignment_bytes - 1
    return sum((n + mask) & ~mask for n in n_bytes)


def _padded_weights(tensors: Iterable[Tensor], backend: Backend) -> dict[tuple[int, ...], int]:
    """Padded bytes by (type id, *shape): a model has a thousand tensors of a few dozen forms."""
    forms = {(t.type.id, *t.shape): t for t in tensors}
    return {form: backend.padded_bytes(t.type, t.shape) for form, t in forms.items()}


def context_bytes_by_layer(
    model: Model, options: ContextOptions, backend: Backend
) -> tuple[int, ...]:
    """KV cache and recurrent state of each repeating layer, padded as on `backend`."""
    memo: dict[object, int] = {}
    totals: list[int] = []
    for layer in model.layers:
        total = memo.get(layer.caches)
        if total is None:
            sizes = [n for cache in layer.caches for n in cache.tensor_bytes(options)]
            total = memo[layer.caches] = padded_sum(sizes, backend)
        totals.append(total)
    return tuple(totals)


def home_owner(tensor: Tensor, split: LayerSplit) -> int:
    """The device a tensor goes to when no rule matches it (HOST for the host)."""
    if tensor.home == "input":
        return HOST
    if tensor.home == "output" or tensor.il is None:
        return split.output_owner
    return split.owners[tensor.il]


def measure_memory(
    model: Model,
    options: ContextOptions,
    backends: Sequence[Backend],
    split: LayerSplit,
    placed: Mapping[str, int],
) -> Breakdown:
    """Weights and context of each device for one placement; compute is left at zero.

    `placed` maps tensor names that a rule moves to a device index or HOST.
    """
    weights = [0] * (len(backends) + 1)  # the last entry, index HOST, is the host
    kinds = (*backends, HOST_BACKEND)
    by_kind = {kind: _padded_weights(model.tensors, kind) for kind in set(kinds)}
    padded = [by_kind[kind] for kind in kinds]
    for tensor in model.tensors:
        if not tensor.loaded:
            continue
        if tensor.duplicated:
            owners = {split.owners[il] for il in model.rope_layers} or {HOST}
        else:
            owner = placed.get(tensor.name)
            owners = {home_owner(tensor, split) if owner is None else owner}
        form = (tensor.type.id, *tensor.shape)
        for owner in owners:
            weights[owner] += padded[owner][form]
    second = _second_copy_owner(model, split, placed)
    if second is not None:
        tied = model.token_embedding
        weights[second] += kinds[second].padded_bytes(tied.type, tied.shape)
    contexts = [0] * (len(backends) + 1)
    by_backend: dict[Backend, tuple[int, ...]] = {}
    for il, owner in enumerate(split.owners[:-1]):
        backend = HOST_BACKEND if owner == HOST or not options.offload_kqv else backends[owner]
        rows = by_backend.get(backend)
        if rows is None:
            rows = by_backend[backend] = context_bytes_by_layer(model, options, backend)
        contexts[owner if options.offload_kqv else HOST] += rows[il]
    sums = [
        MemoryBytes(model_bytes=w, context_bytes=c) for w, c in zip(weights, contexts, strict=True)
    ]
    return Breakdown(devices=tuple(sums[:-1]), host=sums[-1])


def _second_copy_owner(model: Model, split: LayerSplit, placed: Mapping[str, int]) -> int | None:
    """Where embeddings that serve as output matrix too are a second time; None for nowhere.

    A rule for them counts for both uses. What is wanted twice in one kind of buffer is allocated
    once, unless the output is created first (`llama_model_loader::create_tensor`,
    src/llama-model-loader.cpp, b11434).
    """
    if not model.output_is_tied:
        return None
    ruled = placed.get(model.token_embedding.name)
    owner = split.output_owner if ruled is None else ruled
    is_shared = (ruled is not None or owner == HOST) and not model.tied_output_is_copied
    return None if is_shared else owner


def expert_stem(name: str) -> str:
    """`blk.3.ffn_down_exps.weight` -> `ffn_down_exps`."""
    return name.split(".", 3)[2]


def layer_bytes(
    model: Model, options: ContextOptions, backend: Backend, fixed_names: Mapping[str, int]
) -> LayerBytes:
    """The solver's table for devices of one backend.

    `fixed_names` are tensors whose place the user has set; they cost nothing
    here (the caller charges them to the device they were given to).
    """
    n_units = model.n_layer + 1
    fixed = [*context_bytes_by_layer(model, options, backend), 0]
    if not options.offload_kqv:
        fixed = [0] * n_units
    units: list[dict[str, list[Tensor]]] = [{} for _ in range(n_units)]
    once = 0
    padded = _padded_weights(model.tensors, backend)
    for tensor in model.tensors:
        if not tensor.loaded or tensor.home == "input" or tensor.name in fixed_names:
            continue
        if tensor.duplicated:
            once += padded[tensor.type.id, *tensor.shape]
        elif tensor.role is Role.EXPERT and tensor.il is not None:
            units[tensor.il].setdefault(expert_stem(tensor.name), []).append(tensor)
        else:
            il = model.n_layer if tensor.home == "output" or tensor.il is None else tensor.il
            fixed[il] += padded[tensor.type.id, *tensor.shape]
    if model.output_is_tied and model.token_embedding.name not in fixed_names:
        tied = model.token_embedding
        fixed[model.n_layer] += backend.padded_bytes(tied.type, tied.shape)
    expert_units = tuple(
        tuple(
            ExpertUnit(
                il=il,
                stem=stem,
                names=tuple(t.name for t in tensors),
                n_bytes=sum(padded[t.type.id, *t.shape] for t in tensors),
            )
            for stem, tensors in by_stem.items()
        )
        for il, by_stem in enumerate(units)
    )
    return LayerBytes(
        fixed_bytes=tuple(fixed),
        expert_units=expert_units,
        expert_bytes=tuple(sum(u.n_bytes for u in row) for row in expert_units),
        once_bytes=once,
    )
