"""Which numbers of a model does its compute graph depend on?

Gathers them once per model: the shapes and sizes of each layer's weights by their short
names, and a number that is equal for layers whose graphs are equal.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from offload.context import Cache
from offload.hparams import HParams
from offload.model import Model

_REPACKED_TYPES: Final = frozenset(("Q4_0", "Q4_K", "IQ4_NL", "MXFP4"))
"""By a CPU with AVX2 (`ggml_repack_get_optimal_repack_type`, ggml/src/ggml-cpu/repack.cpp)."""
_REPACKED_ROWS: Final = 8


LAYERS_PER_BANK: Final = 12
"""Kimi K3 banks its residual stream every so many layers (`attn_res.block_size`)."""


def n_banked(il: int) -> int:
    """Streams that have been banked before layer `il`."""
    return -(-il // LAYERS_PER_BANK)


class Weight(NamedTuple):
    """A weight that the graph reads; `name` is its whole name."""

    name: str
    n_bytes: int
    shape: tuple[int, ...]
    repacks: bool
    """The CPU keeps it in a layout of its own where it may; nobody else can use that."""


Weights: TypeAlias = dict[str, Weight]
"""Weights by name without `blk.N.` and `.weight`."""


class LayerFacts(NamedTuple):
    """One layer of the trunk.

    Layers with an equal `signature` have equal graphs; weights count there by shape only,
    since their bytes matter only where they are copied.
    """

    il: int
    weights_il: int
    """The layer on whose device the weights are: another where a layer is run again."""

    weights: Weights
    caches: tuple[Cache, ...]
    signature: int
    n_bytes: int
    n_head: int
    n_head_kv: int
    head_k: int
    head_v: int
    n_expert_used: int
    is_recr: bool


class ModelFacts(NamedTuple):
    """A model as the graph builders see it; `weights` are those outside the layers.

    `places` finds a layer's weight by its whole name: its layer, short name and bytes.
    """

    arch: str
    hp: HParams
    layers: tuple[LayerFacts, ...]
    weights: Weights
    places: dict[str, tuple[int, str, int]]
    has_indexer: bool
    sizes: dict[object, list[int]]
    """Results so far, by everything they depend on."""


_latest: tuple[Model, ModelFacts] | None = None
"""A planner prices many placements of one model; nobody needs more than the last."""


def facts_of(model: Model) -> ModelFacts:
    """The facts of `model`, remembered while the same model is asked about."""
    global _latest
    if _latest is None or _latest[0] is not model:
        _latest = (model, _read(model))
    return _latest[1]


_HRM_PASSES: Final = 3
"""Two times the low stack, then the high one (`hrm.l_cycles` of the only models there are)."""


def _repeat_stacks(by_layer: list[Weights]) -> dict[int, int]:
    """HRM runs two stacks of layers several times, with a cache of its own for each time.

    Gives every layer its weights, and returns whose device they are on: that of the first time
    (`llama_model_hrm_text::load_arch_tensors`, src/models/hrm-text.cpp, b11434).
    """
    own = [dict(weights) for weights in by_layer if "attn_q" in weights]
    size = max(len(own) // 2, 1)
    homes: dict[int, int] = {}
    for il, weights in enumerate(by_layer):
        n_pass, place = divmod(il, size)
        is_high = n_pass % _HRM_PASSES == _HRM_PASSES - 1
        if own:
            weights.clear()
            weights.update(own[min(is_high * size + place, len(own) - 1)])
        homes[il] = is_high * (_HRM_PASSES - 1) * size + place
    return homes


_SCALES_EXPERTS: Final = frozenset(
    "cohere2moe deepseek32 dots3note gemma4 glm-dsa hy_v3 llama mellum mistral3 nemotron_h"
    " nemotron_h_moe qwen35moe qwen3moe qwen3next qwen4exp".split()
)
_SCALES_SHARED: Final = frozenset(
    "cohere2moe deepseek32 dots3note glm-dsa hy_v3 nemotron_h nemotron_h_moe qwen35moe qwen3next"
    " qwen4exp".split()
)
_SCALES_DENSE: Final = frozenset(
    "bitnet clef cohere2 cohere2moe deepseek32 dflash dots3note gemma4 glm-dsa hy_v3 llama mistral3"
    " nanbeige nemotron_h qwen3 qwen35".split()
)


def _is_unread(arch: str, name: str) -> bool:
    """Scales of feed-forward weights stand in files of more architectures than read them."""
    stem = name.split(".")[-2]
    if stem.endswith("_exps"):
        return arch not in _SCALES_EXPERTS
    if stem.endswith("_shexp"):
        return arch not in _SCALES_SHARED
    return stem in ("ffn_up", "ffn_gate", "ffn_down") and arch not in _SCALES_DENSE


def _read(model: Model) -> ModelFacts:
    hp = model.hparams
    by_layer: list[Weights] = [{} for _ in range(hp.n_layer_all)]
    outside: Weights = {}
    places: dict[str, tuple[int, str, int]] = {}
    for tensor in model.tensors:
        name = tensor.name.removesuffix(".weight")
        if name.endswith(".scale") and _is_unread(model.arch, name):
            continue
        home = outside
        if tensor.il is not None and name.startswith("blk."):
            name = name.split(".", 2)[-1]
            home = by_layer[tensor.il]
            places[tensor.name] = (tensor.il, name, tensor.n_bytes)
        repacks = (
            tensor.type.name in _REPACKED_TYPES
            and len(tensor.shape) in (2, 3)
            and tensor.shape[1] % _REPACKED_ROWS == 0
        )
        home[name] = Weight(tensor.name, tensor.n_bytes, tensor.shape, repacks)
    homes = _repeat_stacks(by_layer) if model.arch == "hrm_text" else {}
    signatures: dict[object, int] = {}
    layers = []
    for il in range(hp.n_layer):
        weights, caches = by_layer[il], model.layers[il].caches
        shapes = tuple((name, w.shape) for name, w in weights.items())
        numbers = (
            hp.n_head[il],
            hp.n_head_kv[il],
            hp.n_embd_head_k(il),
            hp.n_embd_head_v(il),
            hp.n_expert_used[il],
            hp.is_recr[il],
            (n_banked(il), il % LAYERS_PER_BANK == 0) if model.arch == "kimi-k3" else None,
        )
        key = (shapes, caches, numbers)
        layers.append(
            LayerFacts(
                il=il,
                weights_il=homes.get(il, il),
                weights=weights,
                caches=caches,
                signature=signatures.setdefault(key, len(signatures)),
                n_bytes=sum(w.n_bytes for w in weights.values()),
                n_head=numbers[0],
                n_head_kv=numbers[1],
                head_k=numbers[2],
                head_v=numbers[3],
                n_expert_used=numbers[4],
                is_recr=numbers[5],
            )
        )
    return ModelFacts(
        arch=model.arch,
        hp=hp,
        layers=tuple(layers),
        weights=outside,
        places=places,
        has_indexer=any(cache.kind == "indexer" for layer in layers for cache in layer.caches),
        sizes={},
    )
