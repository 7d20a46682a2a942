"""How much of each kind of work does a placement do: for one token, and for a prompt?

An amount is what a coefficient (seconds per unit) is multiplied with, so that
seconds are linear in what is not known. Where ops run mirrors the scheduler of
llama.cpp (ggml/src/ggml-backend.cpp, b11434): an op runs where its weight lies
(`ggml_backend_sched_backend_id_from_cur`); for 32 tokens or more, ops of host weights
run on the first card that offloads them, and of experts only those touched
are copied there, once for each physical batch (`ggml_backend_sched_compute_splits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Final, NamedTuple, Protocol

from offload.context import ContextOptions
from offload.device import Device
from offload.model import Model, Role, Tensor
from offload.split import HOST, LayerSplit

OP_OFFLOAD_MIN_BATCH: Final = 32
"""`GGML_OP_OFFLOAD_MIN_BATCH`: fewer tokens than this are computed where the weights lie."""

ROUTING_SKEW: Final = 1.5
"""What recorded sweeps of -ub show for real models (docs/cost.md)."""

CPU: Final = "CPU"
REPACKED: Final = "CPU_REPACK"
"""The buffer type of host weights in a layout made for the processor (ggml-cpu/repack.cpp)."""

_F32_BYTES: Final = 4
_FLOPS_PER_WEIGHT: Final = 2


class Places(Protocol):
    """What of a placement decides its time; offload.placement.Placement is one."""

    @property
    def split(self) -> LayerSplit:
        """Owner of every layer."""

    @property
    def placed(self) -> Mapping[str, int]:
        """Tensors that leave their owner: a device index or HOST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Amounts by feature name; features that do not occur are left out.

    `decode.*` are per token, `prefill.*` for a whole prompt. Names end in the device
    (llama.cpp's name, `CPU` or `CPU_REPACK` for the host) and, where it matters, the
    tensor type. Units: `const`, `ubatch`: times; `layer`: layers computed; `read`, `stream`,
    `context`: bytes; `hop`: copies of activations between devices, `carry` their bytes;
    `flops`, `attention`: floating-point operations.
    """

    amounts: Mapping[str, float]

    def __add__(self, other: Work) -> Work:
        amounts = dict(self.amounts)
        for name, amount in other.amounts.items():
            amounts[name] = amounts.get(name, 0.0) + amount
        return Work(amounts=amounts)

    def scaled(self, factor: float) -> Work:
        """`factor` times this work, such as that of 100 tokens."""
        return Work(amounts={name: factor * amount for name, amount in self.amounts.items()})


class _Lump(NamedTuple):
    """Weights of one layer that are computed alike: where, of which type, how much."""

    place: int
    il: int | None
    type_name: str
    role: Role
    n_bytes: int
    n_weights: int
    """Elements: of all experts, where `n_expert` is more than 1."""

    n_expert: int
    n_expert_used: int

    def touched(self, n_tokens: int, skew: float = 0.0) -> float:
        """The share of the bytes that a batch of `n_tokens` reads."""
        if self.n_expert <= 1:
            return 1.0
        return touched_share(self.n_expert_used / self.n_expert, n_tokens, skew)

    @property
    def flops_per_token(self) -> float:
        """Multiplications and additions of one token."""
        used = self.n_expert_used / self.n_expert if self.n_expert > 1 else 1.0
        return _FLOPS_PER_WEIGHT * self.n_weights * used


# (deviations from the mean, weight) of nine points that stand for a normal distribution: the
# roots and weights of Gauss-Hermite quadrature
_NORMAL: Final = (
    (0.0, 0.40634920634920635),
    (1.0232556637891326, 0.24409750289493945), (2.0768479786778302, 0.049916406765217881),
    (3.2054290028564700, 0.0027891413212317680), (4.5127458633997826, 2.2345844007746e-05),
)  # fmt: skip


def touched_share(used: float, n_tokens: int, skew: float) -> float:
    """The share of a layer's experts that `n_tokens` tokens visit, each of them `used` of all.

    With even routing 1 - (1 - used)^n_tokens. Real routers have favourites: `skew` is the
    deviation of the logarithm of an expert's popularity, taken as log-normal.
    """
    if n_tokens <= 1 or not skew:
        evenly: float = 1.0 - (1.0 - used) ** n_tokens
        return evenly
    missed = 0.0
    for z, weight in _NORMAL:
        for side in (z, -z) if z else (z,):
            popularity = min(used * exp(skew * side - skew * skew / 2), 1.0)
            missed += weight * (1.0 - popularity) ** n_tokens
    return 1.0 - missed


class _Amounts(dict[str, float]):
    """Amounts under construction."""

    def __missing__(self, key: str) -> float:
        return 0.0

    def work(self) -> Work:
        return Work(amounts={name: amount for name, amount in self.items() if amount})


def decode_work(
    model: Model,
    placement: Places,
    devices: Sequence[Device],
    *,
    context: ContextOptions,
    n_depth: int = 0,
    host_is_repacked: bool = False,
) -> Work:
    """The work of generating one token after `n_depth` others.

    `devices` are those the placement's indices mean. `host_is_repacked` says that host
    weights lie in the processor's own layouts (`--no-host`, or no card with pinned buffers).
    """
    place = _names(devices)
    host = REPACKED if host_is_repacked else CPU
    lumps = _lumps(model, placement)
    amounts = _Amounts({"decode.const": 1.0})
    for lump in lumps:
        where = host if lump.place == HOST else place[lump.place]
        n_bytes = lump.n_bytes * lump.touched(1)
        amounts[f"decode.read.{where}.{lump.type_name}"] += n_bytes
    seen_bytes = _context_bytes(model, context, n_depth)
    for il, owner in enumerate(_trunk_owners(model, placement)):
        amounts[f"decode.layer.{place[owner]}"] += 1.0
        keeper = owner if context.offload_kqv else HOST
        amounts[f"decode.context.{place[keeper]}"] += seen_bytes[il]
    amounts["decode.hop"] = float(_count_hops(model, placement, lumps, None))
    return amounts.work()


def prefill_work(
    model: Model,
    placement: Places,
    devices: Sequence[Device],
    *,
    context: ContextOptions,
    n_prompt: int,
    n_depth: int = 0,
    op_offload: bool = True,
    host_is_repacked: bool = False,
    host_is_mapped: bool = False,
    routing_skew: float = 0.0,
) -> Work:
    """The work of a prompt of `n_prompt` tokens after `n_depth` others.

    `-ub` comes from `context`. Repacked host weights cannot be offloaded; mapped ones
    (`--load-mode mmap`) are copied from pageable memory, so their stream counts apart.
    `routing_skew` is that of `touched_share`: 0 for random weights, ROUTING_SKEW for real ones.
    """
    first = next((d for d, device in enumerate(devices) if device.backend.offloads_ops), None)
    offloader = first if op_offload and not host_is_repacked else None
    n_ubatch = max(1, context.n_ubatch_used)
    amounts = _Amounts({"prefill.const": 1.0})
    n_done = 0
    for n_tokens, times in _ubatches(n_prompt, n_ubatch):
        batch = _Batch(
            n_tokens=n_tokens,
            times=times,
            n_depth=n_depth + n_done,
            offloader=offloader if n_tokens >= OP_OFFLOAD_MIN_BATCH else None,
            host=REPACKED if host_is_repacked else CPU,
            stream_kind="stream_mmap" if host_is_mapped else "stream",
            routing_skew=routing_skew,
        )
        _add_batch(amounts, model, placement, devices, context, batch)
        n_done += n_tokens * times
    return amounts.work()


class _Batch(NamedTuple):
    """`times` physical batches of `n_tokens` each, the first after `n_depth` tokens."""

    n_tokens: int
    times: int
    n_depth: int
    offloader: int | None
    host: str
    stream_kind: str
    routing_skew: float


def _ubatches(n_prompt: int, n_ubatch: int) -> tuple[tuple[int, int], ...]:
    """Physical batches of a prompt as (tokens, how many)."""
    whole, rest = divmod(n_prompt, n_ubatch)
    batches = ((n_ubatch, whole), (rest, 1))
    return tuple((n, times) for n, times in batches if n and times)


def _add_batch(
    amounts: _Amounts,
    model: Model,
    placement: Places,
    devices: Sequence[Device],
    context: ContextOptions,
    batch: _Batch,
) -> None:
    place = _names(devices)
    lumps = _lumps(model, placement)
    n_tokens, times = batch.n_tokens, batch.times
    amounts["prefill.ubatch"] += times
    for lump in lumps:
        if lump.role is Role.OUTPUT:
            continue  # only the last token of a prompt has an output
        n_bytes = lump.n_bytes * lump.touched(n_tokens, batch.routing_skew) * times
        runs_on = lump.place
        if lump.place == HOST and batch.offloader is not None:
            runs_on = batch.offloader
            amounts[f"prefill.{batch.stream_kind}.{place[runs_on]}"] += n_bytes
        where = batch.host if runs_on == HOST else place[runs_on]
        amounts[f"prefill.read.{where}"] += n_bytes
        flops = lump.flops_per_token * n_tokens * times
        amounts[f"prefill.flops.{where}.{lump.type_name}"] += flops
    # from the first token of the first batch to the last of the last, evenly
    depth = batch.n_depth + n_tokens * times / 2
    for il, owner in enumerate(_trunk_owners(model, placement)):
        where = place[owner if context.offload_kqv else HOST]
        flops = _attention_flops_per_token(model, il, depth) * n_tokens * times
        amounts[f"prefill.attention.{where}"] += flops
        amounts[f"prefill.layer.{place[owner]}"] += times
    hops = _count_hops(model, placement, lumps, batch.offloader)
    amounts["prefill.hop"] += hops * times
    amounts["prefill.carry"] += hops * times * n_tokens * model.n_embd * _F32_BYTES


def _names(devices: Sequence[Device]) -> tuple[str, ...]:
    """Device names by index; HOST, the last, is the host."""
    return (*(device.name for device in devices), CPU)


def _trunk_owners(model: Model, placement: Places) -> tuple[int, ...]:
    """Owners of the layers that run for every token."""
    return placement.split.owners[: model.n_layer - model.n_layer_nextn]


def _lumps(model: Model, placement: Places) -> tuple[_Lump, ...]:
    """The weights that matter for time, tensors that are computed alike taken together."""
    n_trunk = model.n_layer - model.n_layer_nextn
    n_loops = max(1, model.hparams.n_loops)
    sums: dict[tuple[int, int | None, str, Role, int, int], list[int]] = {}
    for tensor in _multiplied(model):
        if tensor.il is not None and tensor.il >= n_trunk:
            continue
        is_expert = tensor.role is Role.EXPERT and len(tensor.shape) > 2
        used = model.hparams.n_expert_used
        key = (
            _place_of(tensor, placement),
            tensor.il,
            tensor.type.name,
            tensor.role,
            tensor.shape[2] if is_expert else 1,
            used[tensor.il] if is_expert and tensor.il is not None else 1,
        )
        total = sums.setdefault(key, [0, 0])
        times = 1 if tensor.il is None else n_loops
        total[0] += tensor.n_bytes * times
        total[1] += _elements(tensor) * times
    return tuple(
        _Lump(
            place=place,
            il=il,
            type_name=type_name,
            role=role,
            n_bytes=n_bytes,
            n_weights=n_weights,
            n_expert=n_expert,
            n_expert_used=n_used,
        )
        for (place, il, type_name, role, n_expert, n_used), (n_bytes, n_weights) in sums.items()
    )


def _multiplied(model: Model) -> Iterable[Tensor]:
    """Matrices that every token is multiplied with; a tied output is one."""
    for tensor in model.tensors:
        if tensor.loaded and len(tensor.shape) > 1 and tensor.home != "input":
            yield tensor
    if model.output_is_tied:
        yield model.token_embedding._replace(role=Role.OUTPUT, home="output")


def _place_of(tensor: Tensor, placement: Places) -> int:
    placed = placement.placed.get(tensor.name)
    if placed is not None and tensor.role is not Role.OUTPUT:
        return placed
    if tensor.home == "output" or tensor.il is None:
        return placement.split.output_owner
    return placement.split.owners[tensor.il]


def _elements(tensor: Tensor) -> int:
    n = 1
    for extent in tensor.shape:
        n *= extent
    return n


def _context_bytes(model: Model, context: ContextOptions, n_depth: int) -> tuple[float, ...]:
    """Bytes of context that one token reads in each layer, `n_depth` tokens being there."""
    if n_depth <= 0:
        return (0.0,) * len(model.layers)
    seen = replace(
        context, n_ctx=n_depth, n_parallel=1, kv_unified=True, n_batch=1, n_ubatch=1, swa_full=False
    )
    memo: dict[object, int] = {}
    for layer in model.layers:
        if layer.caches not in memo:
            memo[layer.caches] = sum(n for cache in layer.caches for n in cache.tensor_bytes(seen))
    return tuple(memo[layer.caches] for layer in model.layers)


def _attention_flops_per_token(model: Model, il: int, n_cells: float) -> float:
    """Multiplications and additions of queries with keys and of weights with values."""
    hp = model.hparams
    kind = model.layers[il].kind
    if kind in ("recurrent", "none"):
        return 0.0
    if hp.is_swa[il] and hp.n_swa:
        n_cells = min(n_cells, hp.n_swa)
    return 2.0 * hp.n_head[il] * (hp.n_embd_head_k(il) + hp.n_embd_head_v(il)) * n_cells


def _count_hops(
    model: Model, placement: Places, lumps: Sequence[_Lump], offloader: int | None
) -> int:
    """How often activations go from one device to another on the way through the graph.

    Embeddings come from the host. Within a layer they go from the owner to each place that
    holds some of its experts and back.
    """
    away: dict[int, set[int]] = {}
    for lump in lumps:
        if lump.role is Role.EXPERT and lump.il is not None:
            runs_on = lump.place
            if runs_on == HOST and offloader is not None:
                runs_on = offloader
            away.setdefault(lump.il, set()).add(runs_on)
    hops, here = 0, HOST
    for il, owner in enumerate(_trunk_owners(model, placement)):
        hops += owner != here
        hops += 2 * len(away.get(il, set()) - {owner})
        here = owner
    return hops + (placement.split.output_owner != here)
