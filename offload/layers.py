"""What kind is each layer, and which caches does llama.cpp create for it?

Mirrors the cases of `llama_model::create_memory` (src/llama-model.cpp, b11434)
for a normal context: which memory class, which layers its filters let through,
and how wide each cache is. A layer's caches live on the layer's device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from offload.arch import Arch, Attended, Memory
from offload.context import (
    Cache,
    CompressedCache,
    CompressorState,
    FullCache,
    IndexerCache,
    LatentCache,
    LatentWindowCache,
    RecurrentCache,
    RingCache,
    WindowCache,
)
from offload.hparams import HParams

_CSA_RATIO: Final = 4
_HCA_RATIO: Final = 128
"""`DSV4_CSA_RATIO` and `DSV4_HCA_RATIO` of src/llama-kv-cache-dsv4.cpp."""


class Layer(NamedTuple):
    """One block; `kind` names what it keeps, `caches` sizes it.

    Kinds: `full`, `swa`, `mla`, `mla-swa`, `dsa` (latent with an indexer), `sparse` (full with an
    indexer), `csa` and `hca` (compressed keys),
    `recurrent`, `hybrid` (attention and state in one block), `shared` (attends to another
    layer's cache), `none`.
    """

    il: int
    kind: str
    caches: tuple[Cache, ...]
    is_nextn: bool


def make_layers(hp: HParams, arch: Arch) -> tuple[Layer, ...]:
    """Every block of the model, MTP blocks included."""
    make_caches = _CACHES[arch.memory]
    blocks = _Blocks(hp=hp, arch=arch, n_embd_v_gqa_max=hp.n_embd_v_gqa_max)
    layers = []
    for il in range(hp.n_layer_all):
        caches = make_caches(blocks, il)
        is_nextn = il >= hp.n_layer
        layers.append(Layer(il=il, kind=_kind(hp, caches, il), caches=caches, is_nextn=is_nextn))
    return tuple(layers)


class _Blocks(NamedTuple):
    """What every layer's caches are made from."""

    hp: HParams
    arch: Arch
    n_embd_v_gqa_max: int


def _kind(hp: HParams, caches: tuple[Cache, ...], il: int) -> str:
    kinds = tuple(cache.kind for cache in caches)
    if not kinds:
        reuses = 0 <= hp.n_layer_kv_from_start <= il
        return "shared" if reuses else "none"
    return _KIND_OF_CACHES.get(kinds, kinds[0])


_KIND_OF_CACHES: Final = {
    ("full", "indexer"): "sparse",
    ("mla", "indexer"): "dsa",
    ("full", "recurrent"): "hybrid",
    ("swa", "compressed", "compressed", "compressor", "compressor"): "csa",
    ("swa", "compressed", "compressor"): "hca",
}


def _attention_cache(blocks: _Blocks, il: int) -> Cache:
    """The cache `llama_kv_cache` or `llama_kv_cache_iswa` keeps for layer `il`."""
    hp = blocks.hp
    k = hp.n_embd_k_gqa(il)
    if hp.is_mla and hp.is_swa[il]:
        return LatentWindowCache(n_embd_k_gqa=k, n_swa=hp.n_swa)
    if hp.is_mla:
        return LatentCache(n_embd_k_gqa=k)
    v, v_max = hp.n_embd_v_gqa(il), blocks.n_embd_v_gqa_max
    if hp.is_swa[il]:
        return WindowCache(n_embd_k_gqa=k, n_embd_v_gqa=v, n_embd_v_gqa_max=v_max, n_swa=hp.n_swa)
    return FullCache(n_embd_k_gqa=k, n_embd_v_gqa=v, n_embd_v_gqa_max=v_max)


def _recurrent_cache(hp: HParams, il: int) -> Cache:
    return RecurrentCache(
        n_embd_r=hp.n_embd_r,
        n_embd_s=hp.n_embd_s,
        n_embd_p=hp.ple_conv_state if hp.is_ple[il] else 0,
    )


def _none(blocks: _Blocks, il: int) -> tuple[Cache, ...]:
    return ()


def _attention(blocks: _Blocks, il: int) -> tuple[Cache, ...]:
    """MTP blocks are left out, unless the model is nothing else."""
    hp = blocks.hp
    if 0 <= hp.n_layer_kv_from_start <= il or 0 < hp.n_layer <= il:
        return ()
    return (_attention_cache(blocks, il),)


def _recurrent(blocks: _Blocks, il: int) -> tuple[Cache, ...]:
    hp = blocks.hp
    return (_recurrent_cache(hp, il),) if il < hp.n_layer else ()


def _hybrid(blocks: _Blocks, il: int) -> tuple[Cache, ...]:
    hp, arch = blocks.hp, blocks.arch
    is_recr, in_trunk, has_ff = hp.is_recr[il], il < hp.n_layer, hp.n_ff[il] != 0
    attends = {
        Attended.ALL: True,
        Attended.NOT_RECURRENT: not is_recr,
        Attended.TRUNK_NOT_RECURRENT: in_trunk and not is_recr,
        Attended.WITHOUT_FF: not is_recr and not has_ff,
    }[arch.attended]
    caches: tuple[Cache, ...] = (_attention_cache(blocks, il),) if attends else ()
    if arch.memory is Memory.HYBRID_INDEXED and attends and hp.is_indexer_full[il]:
        caches += (IndexerCache(n_embd_k=hp.indexer_head_size * hp.indexer_kpool_row),)
    if is_recr and in_trunk:
        caches += (_recurrent_cache(hp, il),)
    return caches


def _msa(blocks: _Blocks, il: int) -> tuple[Cache, ...]:
    """The indexer has one head, and keeps values although it needs none."""
    hp = blocks.hp
    cache = _attention_cache(blocks, il)
    if not hp.is_indexer_full[il]:
        return (cache,)
    widest = max(hp.n_embd_head_v(i) for i in range(hp.n_layer_all))
    return (cache, _indexer_cache(hp, il, hp.n_embd_head_v(il), widest))


def _indexer_cache(hp: HParams, il: int, v: int = 0, v_max: int = 0) -> Cache:
    """llama.cpp swaps only the size of full-attention heads for the indexer's."""
    k = hp.n_embd_head_k_swa if hp.is_swa[il] else hp.indexer_head_size
    return IndexerCache(n_embd_k=k, n_embd_v=v, n_embd_v_max=v_max)


def _dsa(blocks: _Blocks, il: int) -> tuple[Cache, ...]:
    hp = blocks.hp
    if il >= hp.n_layer:
        return ()
    cache = _attention_cache(blocks, il)
    if hp.indexer_head_size and hp.is_indexer_full[il]:
        return (cache, _indexer_cache(hp, il))
    return (cache,)


def _dsv4(blocks: _Blocks, il: int) -> tuple[Cache, ...]:
    """MTP blocks get the key caches, but no compressor."""
    hp = blocks.hp
    k, ratio = hp.n_embd_k_gqa(il), hp.compress_ratios[il]
    caches: list[Cache] = [RingCache(n_embd_k_gqa=k, n_swa=hp.n_swa)]
    head, indexer = hp.n_embd_head_k(0), hp.indexer_head_size
    if ratio in (_CSA_RATIO, _HCA_RATIO):
        caches.append(CompressedCache(n_embd_k=k, ratio=ratio))
    if ratio == _CSA_RATIO:
        caches.append(CompressedCache(n_embd_k=indexer, ratio=ratio))
    if ratio == _CSA_RATIO and il < hp.n_layer:
        caches.append(CompressorState(n_embd_state=2 * head, state_size=2 * ratio))
        caches.append(CompressorState(n_embd_state=2 * indexer, state_size=2 * ratio))
    if ratio == _HCA_RATIO and il < hp.n_layer:
        caches.append(CompressorState(n_embd_state=head, state_size=ratio))
    return tuple(caches)


_CACHES: Final[dict[Memory, Callable[[_Blocks, int], tuple[Cache, ...]]]] = {
    Memory.NONE: _none,
    Memory.ATTENTION: _attention,
    Memory.RECURRENT: _recurrent,
    Memory.HYBRID: _hybrid,
    Memory.HYBRID_INDEXED: _hybrid,
    Memory.MSA: _msa,
    Memory.DSA: _dsa,
    Memory.DSA_WINDOWED: _dsa,
    Memory.DSV4: _dsv4,
}
