"""The ik_llama.cpp command line of a launch: the same placement in a fork's other words.

Read in the source that PyPI's ik-llama-cpp-python 0.1.5 (September 2026) carries:
common/common.cpp for the flags, `llm_load_tensors` and `get_layer_sizes` in
src/llama.cpp for the layers, src/llama-load-tensors.cpp for `-ncmoe`.

What differs: `-ts` shares out bytes, not layers, so counts are turned into the
bytes they stand for; `-ncmoe` there spreads over the cards by itself and is
written as rules here; a partial `-ngl` leaves the output layer on the host and is
refused, as are RPC cards and another order of cards, which it mixes up; the load
mode is `--no-mmap`/`--mlock`; there is no `-fit`, no unified or
split KV cache, no `--swa-full` (every window is kept whole) and no `--no-host`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

from offload.emit.build import Build
from offload.emit.launch import Launch
from offload.emit.settings import check_partial_layers, render_shares, with_rules_only
from offload.errors import UsageError
from offload.rules import render_overrides
from offload.split import split_layers

IK: Final = Build(flags=frozenset({"-mla"}))
"""Stands for any build of ik_llama.cpp."""

_LOAD_FLAGS: Final = {
    "auto": (),
    "mmap": (),
    "none": ("--no-mmap",),
    "mlock": ("--no-mmap", "--mlock"),
    "mmap+mlock": ("--mlock",),
}


def emit_ik_args(launch: Launch, program: str = "llama-server") -> tuple[str, ...]:
    """The argv of ik_llama.cpp's llama-server; UsageError for what it cannot do."""
    check_partial_layers(launch, IK)
    _check_cards(launch)
    if launch.draft_path is not None or launch.mmproj_path is not None:
        raise UsageError(
            "a draft model or projector is planned as llama.cpp loads it; for ik_llama.cpp plan"
            " without, and --reserve what they take"
        )
    if launch.no_host:
        raise UsageError("ik_llama.cpp has no --no-host; plan without it")
    if launch.load_mode not in _LOAD_FLAGS:
        raise UsageError(f"ik_llama.cpp has no --load-mode {launch.load_mode}; plan without it")
    return (program, *(text for part in _parts(with_rules_only(launch)) for text in part))


def ik_shares(
    layer_bytes: Sequence[int], counts: Sequence[int], card_bytes: int = 0
) -> tuple[float, ...]:
    """The `-ts` that gives device d `counts[d]` layers, by the bytes of each layer.

    ik_llama.cpp ends a card's range at the layer whose end lies nearest to the card's
    cumulated share of all bytes; so that share is set to where the range shall end, and
    half a layer may be wrong about the sizes before another layer is chosen. It counts
    `card_bytes` of scratch on every card.
    """
    ends = (0, *accumulate(layer_bytes))
    reached = [ends[unit] for unit in accumulate(counts, initial=0)]
    sizes = (end - start + card_bytes for start, end in pairwise(reached))
    return tuple(round(size / (1 << 20), 2) for size in sizes)


def _parts(launch: Launch) -> Iterator[tuple[str, ...]]:
    yield "-m", launch.model_path
    if launch.devices and launch.devices != ("none",):
        yield "-dev", ",".join(launch.devices)
    yield "-ngl", str(launch.n_gpu_layers)
    if launch.tensor_split:
        yield "-ts", render_shares(_shares(launch), ",")
    if launch.rules:
        yield "-ot", render_overrides(launch.rules)
    yield "-c", str(launch.n_ctx), "-b", str(launch.n_batch), "-ub", str(launch.n_ubatch)
    if launch.n_parallel is not None:
        yield "-np", str(launch.n_parallel)
    yield from _run_parts(launch)


def _run_parts(launch: Launch) -> Iterator[tuple[str, ...]]:
    if launch.type_k != "f16":
        yield "-ctk", launch.type_k
    if launch.type_v != "f16":
        yield "-ctv", launch.type_v
    if launch.flash_attn is not None:
        yield "-fa", "on" if launch.flash_attn else "off"
    if not launch.offload_kqv:
        yield ("-nkvo",)
    if not launch.op_offload:
        yield "-op", "-1,0"
    yield _LOAD_FLAGS[launch.load_mode]


def _shares(launch: Launch) -> tuple[float, ...]:
    if not launch.layer_bytes:
        raise UsageError(
            "ik_llama.cpp shares layers out by bytes, and this plan does not say what its layers"
            " weigh; plan again"
        )
    split = split_layers(launch.n_units - 1, launch.n_gpu_layers, launch.tensor_split)
    counts = split.counts(len(launch.tensor_split))
    return ik_shares(launch.layer_bytes, counts, launch.latent_kv_bytes)


def _check_cards(launch: Launch) -> None:
    """Refuse cards that ik_llama.cpp would mix up.

    It numbers the owner of a layer by `-dev` and then takes the card of that number in its
    own order, RPC cards last (`llama_default_buffer_type_offload`, src/llama.cpp).
    """
    if launch.rpc:
        raise UsageError(
            "ik_llama.cpp puts layers of RPC cards on others than -ts says; plan without --rpc"
        )
    if launch.split_mode != "layer":
        raise UsageError(
            "ik_llama.cpp's -sm none keeps the cache on another card; show it one card"
            " (CUDA_VISIBLE_DEVICES) and plan for one"
        )
    kind = launch.devices[0].rstrip("0123456789") if launch.devices else ""
    if launch.devices not in ((), ("none",)) and launch.devices != tuple(
        f"{kind}{i}" for i in range(len(launch.devices))
    ):
        raise UsageError(
            f"ik_llama.cpp ignores the order of -dev {','.join(launch.devices)}; choose and order"
            " cards by CUDA_VISIBLE_DEVICES, and plan for them in that order"
        )
