"""How much of each kind of work does a placement do: for one token, and for a prompt?

An amount is what a coefficient (seconds per unit) is multiplied with, so that
seconds are linear in what is not known. Where ops run mirrors the scheduler of
llama.cpp (ggml/src/ggml-backend.cpp, b11434): an op runs where its weight lies
(`ggml_backend_sched_backend_id_from_cur`); for 32 tokens or more, ops of host weights
run on the first card that offloads them, and of experts only those touched
are copied there, once for each physical batch (`ggml_backend_sched_compute_splits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from offload.context import Cache, ContextOptions, pad_cells
from offload.cost.lumps import (
    Lump,
    Places,
    count_hops,
    count_resent,
    find_lumps,
    trunk_owners,
)
from offload.device import Device
from offload.model import Model
from offload.split import HOST

OP_OFFLOAD_MIN_BATCH: Final = 32
"""`GGML_OP_OFFLOAD_MIN_BATCH`: fewer tokens than this are computed where the weights lie."""

CPU: Final = "CPU"
REPACKED: Final = "CPU_REPACK"
"""The buffer type of host weights in a layout made for the processor (ggml-cpu/repack.cpp)."""

RESEND_S: Final = 1.5e-4
RESEND_SD: Final = 0.7
"""Seconds for one `resend`, by what was measured once (docs/cost.md), and the doubt as a factor."""

RPC: Final = "RPC"
_F32_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Amounts by feature name; features that do not occur are left out.

    `decode.*` are per token, `prefill.*` for a whole prompt. Names end in the device
    (llama.cpp's name, `CPU` or `CPU_REPACK` for the host) and, where it matters, the
    tensor type. Units: `const`, `ubatch`: times; `layer`: layers computed; `read`, `stream`,
    `context`: bytes; `hop`: copies of activations between devices, `carry` their bytes;
    `resend`: layers whose operations an RPC card is sent again;
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


class Amounts(dict[str, float]):
    """Amounts under construction."""

    def __missing__(self, key: str) -> float:
        return 0.0

    def work(self) -> Work:
        """The finished amounts, without those that are nothing."""
        return Work(amounts={name: amount for name, amount in self.items() if amount})


def decode_work(
    model: Model,
    placement: Places,
    devices: Sequence[Device],
    *,
    context: ContextOptions,
    n_depth: int = 0,
    host_is_repacked: bool = False,
    lumps: Sequence[Lump] | None = None,
) -> Work:
    """The work of generating one token after `n_depth` others.

    `devices` are those the placement's indices mean. `host_is_repacked` says that host
    weights lie in the processor's own layouts (`--no-host`, or no card with pinned buffers).
    `lumps` are those of the placement, where they have been looked up before.
    """
    place = device_names(devices)
    host = REPACKED if host_is_repacked else CPU
    lumps = find_lumps(model, placement) if lumps is None else lumps
    amounts = Amounts({"decode.const": 1.0})
    for lump in lumps:
        add_token_lump(amounts, lump, host if lump.place == HOST else place[lump.place])
    seen_bytes = context_bytes_read(model, context, n_depth)
    for il, owner in enumerate(trunk_owners(model, placement)):
        keeper = owner if context.offload_kqv else HOST
        add_token_layer(amounts, place[owner], place[keeper], seen_bytes[il])
    amounts["decode.hop"] = float(count_hops(model, placement, lumps, None))
    if any(device.backend.name == RPC for device in devices):
        for d, n_layers in count_resent(model, placement, lumps).items():
            if devices[d].backend.name == RPC:
                amounts[f"decode.resend.{place[d]}"] = float(n_layers)
    return amounts.work()


def add_token_lump(amounts: Amounts, lump: Lump, where: str) -> None:
    """What one token does with these weights, there."""
    n_bytes = lump.n_bytes * lump.touched(1)
    amounts[f"decode.read.{where}.{lump.type_name}"] += n_bytes


def add_token_layer(amounts: Amounts, owner: str, keeper: str, seen_bytes: float) -> None:
    """What one token does in a layer beside its weights."""
    amounts[f"decode.layer.{owner}"] += 1.0
    amounts[f"decode.context.{keeper}"] += seen_bytes


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
    lumps: Sequence[Lump] | None = None,
) -> Work:
    """The work of a prompt of `n_prompt` tokens after `n_depth` others.

    `-ub` comes from `context`. Repacked host weights cannot be offloaded; mapped ones
    (`--load-mode mmap`) are copied from pageable memory, so their stream counts apart.
    `routing_skew` is that of `touched_share`: 0 for random weights, ROUTING_SKEW for real ones.
    """
    amounts = Amounts({"prefill.const": 1.0})
    lumps = find_lumps(model, placement) if lumps is None else lumps
    for batch in batches_of(
        devices,
        context,
        n_prompt=n_prompt,
        n_depth=n_depth,
        op_offload=op_offload,
        host_is_repacked=host_is_repacked,
        host_is_mapped=host_is_mapped,
        routing_skew=routing_skew,
    ):
        _add_batch(amounts, model, placement, lumps, device_names(devices), context, batch)
    return amounts.work()


class Batch(NamedTuple):
    """`times` physical batches of `n_tokens` each, the first after `n_depth` tokens.

    `offloader` is the card that takes ops of host weights over, None where none does;
    `host` and `stream_kind` are what features call host weights and copies of them.
    """

    n_tokens: int
    times: int
    n_depth: int
    offloader: int | None
    host: str
    stream_kind: str
    routing_skew: float


def batches_of(
    devices: Sequence[Device],
    context: ContextOptions,
    *,
    n_prompt: int,
    n_depth: int,
    op_offload: bool,
    host_is_repacked: bool,
    host_is_mapped: bool,
    routing_skew: float,
) -> tuple[Batch, ...]:
    """The physical batches of a prompt, those of equal size together; `prefill_work` says more."""
    first = next((d for d, device in enumerate(devices) if device.backend.offloads_ops), None)
    offloader = first if op_offload and not host_is_repacked else None
    batches = []
    for n_tokens, times in _ubatches(n_prompt, max(1, context.n_ubatch_used)):
        batches.append(
            Batch(
                n_tokens=n_tokens,
                times=times,
                n_depth=n_depth,
                offloader=offloader if n_tokens >= OP_OFFLOAD_MIN_BATCH else None,
                host=REPACKED if host_is_repacked else CPU,
                stream_kind="stream_mmap" if host_is_mapped else "stream",
                routing_skew=routing_skew,
            )
        )
        n_depth += n_tokens * times
    return tuple(batches)


def _ubatches(n_prompt: int, n_ubatch: int) -> tuple[tuple[int, int], ...]:
    """Physical batches of a prompt as (tokens, how many)."""
    whole, rest = divmod(n_prompt, n_ubatch)
    batches = ((n_ubatch, whole), (rest, 1))
    return tuple((n, times) for n, times in batches if n and times)


def _add_batch(
    amounts: Amounts,
    model: Model,
    placement: Places,
    lumps: Sequence[Lump],
    place: Sequence[str],
    context: ContextOptions,
    batch: Batch,
) -> None:
    amounts["prefill.ubatch"] += batch.times
    for lump in lumps:
        add_batch_lump(amounts, lump, place, batch)
    for il, owner in enumerate(trunk_owners(model, placement)):
        keeper = owner if context.offload_kqv else HOST
        add_batch_layer(amounts, model, il, place[owner], place[keeper], batch)
    add_batch_hops(amounts, model, count_hops(model, placement, lumps, batch.offloader), batch)


def add_batch_lump(amounts: Amounts, lump: Lump, place: Sequence[str], batch: Batch) -> None:
    """What a batch does with these weights; `place` are device names, the host's last."""
    if lump.for_outputs:
        return  # one token of a whole prompt
    n_bytes = lump.n_bytes * lump.touched(batch.n_tokens, batch.routing_skew) * batch.times
    runs_on = lump.place
    if lump.place == HOST and batch.offloader is not None:
        runs_on = batch.offloader
        amounts[f"prefill.{batch.stream_kind}.{place[runs_on]}"] += n_bytes
    where = batch.host if runs_on == HOST else place[runs_on]
    amounts[f"prefill.read.{where}"] += n_bytes
    flops = lump.flops_per_token * batch.n_tokens * batch.times
    amounts[f"prefill.flops.{where}.{lump.type_name}"] += flops


def add_batch_layer(
    amounts: Amounts, model: Model, il: int, owner: str, keeper: str, batch: Batch
) -> None:
    """What a batch does in a layer beside its weights."""
    n_tokens = batch.n_tokens * batch.times
    # from the first token of the first batch to the last of the last, evenly
    flops = _attention_flops_per_token(model, il, batch.n_depth + n_tokens / 2) * n_tokens
    amounts[f"prefill.attention.{keeper}"] += flops
    amounts[f"prefill.layer.{owner}"] += batch.times


def add_batch_hops(amounts: Amounts, model: Model, hops: float, batch: Batch) -> None:
    """So many crossings between devices, each with the activations of the whole batch."""
    amounts["prefill.hop"] += hops * batch.times
    amounts["prefill.carry"] += hops * batch.times * batch.n_tokens * model.n_embd * _F32_BYTES


def device_names(devices: Sequence[Device]) -> tuple[str, ...]:
    """Device names by index; HOST, the last, is the host."""
    return (*(device.name for device in devices), CPU)


def context_bytes_read(model: Model, context: ContextOptions, n_depth: int) -> tuple[float, ...]:
    """Bytes of context that one token reads in each layer, `n_depth` tokens being there.

    Caches come in whole blocks of cells, but what is masked in a block is skipped, so bytes
    grow with tokens; a recurrent state is read whole.
    """
    if n_depth <= 0:
        return (0.0,) * len(model.layers)
    high = pad_cells(n_depth)
    low = high - pad_cells(1)
    share = (n_depth - low) / (high - low)
    memo: dict[object, float] = {}
    for layer in model.layers:
        if layer.caches not in memo:
            last = _cache_bytes(layer.caches, context, high)
            # what a cache of no cells would hold: the state, which does not grow
            first = (
                _cache_bytes(layer.caches, context, low)
                if low
                else max(2 * last - _cache_bytes(layer.caches, context, 2 * high), 0)
            )
            memo[layer.caches] = first + share * (last - first)
    return tuple(memo[layer.caches] for layer in model.layers)


def _cache_bytes(caches: Sequence[Cache], context: ContextOptions, n_ctx: int) -> int:
    seen = replace(
        context, n_ctx=n_ctx, n_parallel=1, kv_unified=True, n_batch=1, n_ubatch=1, swa_full=False
    )
    return sum(n for cache in caches for n in cache.tensor_bytes(seen))


def _attention_flops_per_token(model: Model, il: int, n_cells: float) -> float:
    """Multiplications and additions of queries with keys and of weights with values."""
    hp = model.hparams
    kind = model.layers[il].kind
    if kind in ("recurrent", "none"):
        return 0.0
    if hp.is_swa[il] and hp.n_swa:
        n_cells = min(n_cells, hp.n_swa)
    return 2.0 * hp.n_head[il] * (hp.n_embd_head_k(il) + hp.n_embd_head_v(il)) * n_cells
