"""What small model has the layers of this big one?

Speed depends on shapes, types and places, not on weight values. So the header of the
big file alone gives a file with the same widths, heads, experts, tensor types and
vocabulary, but fewer layers: as many as a budget allows, every kind among them.
MTP blocks are left out. Writing it: tuner/scale_file.py.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from offload.errors import OffloadError, UnsupportedModelError, UsageError
from offload.gguf import GGUFHeader, parse_header
from offload.model import Model, make_model
from offload.source import read_header
from offload.units import format_gib
from tuner.layer_choice import candidates, donors, good_counts, is_known_by_count
from tuner.shapes import Shape
from tuner.synth.container import FileTensor, Typed, Value, encode_header
from tuner.synth.model import make_file
from tuner.synth.vocab import make_sized_vocab
from tuner.typed_keys import read_typed_keys

_GENERAL_KEYS: Final = (
    "general.architecture", "general.type", "general.file_type", "general.quantization_version",
)  # fmt: skip
_PER_LAYER: Final = frozenset(
    "feed_forward_length expert_feed_forward_length expert_used_count attention.head_count"
    " attention.head_count_kv attention.sliding_window_pattern attention.recurrent_layers"
    " attention.indexer.types attention.compress_ratios attention.rope_pattern deepstack_mapping"
    " swiglu_clamp_exp swiglu_clamp_shexp xielu.alpha_n xielu.alpha_p xielu.beta xielu.eps".split()
)
"""Arrays of one value per layer (`get_key_or_arr` in src/models/*.cpp, b11434)."""
_LAYER_NUMBERS: Final = frozenset(("ple.layers",))
"""Arrays that name layers."""
_LEAD: Final = "leading_dense_block_count"
_NEXTN: Final = "nextn_predict_layers"
_SHARED_KV: Final = "attention.shared_kv_layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleModel:
    """A file to write: its keys and tensors, and which layers of the source stand in it.

    `source_layers[i]` is the layer whose place layer i takes, `type_layers[i]` the one
    it has its tensors from. `types_missing` are tensor types of the source that no layer
    here has.
    """

    metadata: Mapping[str, Value]
    tensors: tuple[FileTensor, ...]
    source_layers: tuple[int, ...]
    type_layers: tuple[int, ...]
    n_layer_source: int
    types_missing: tuple[str, ...]
    model: Model

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.n_bytes for t in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The big model, with what llama.cpp expects of each of its layers."""

    keys: Mapping[str, Value]
    model: Model
    common: tuple[FileTensor, ...]
    layers: tuple[tuple[FileTensor, ...], ...]
    """Tensors of each layer, named without `blk.<il>.`; MTP blocks left out."""
    kinds: tuple[Hashable, ...]
    types: tuple[Hashable, ...]
    n_lead: int


def make_scale_model(
    path: str | os.PathLike[str],
    *,
    budget_bytes: int | None = None,
    wish_bytes: int | None = None,
    n_layer: int | None = None,
    vocab: str = "none",
) -> ScaleModel:
    """The small model for the file (or any part of the split set) at `path`.

    As many layers as fit into `budget_bytes` of tensors, or exactly `n_layer` of them. Within the
    budget no more than `wish_bytes`, if that leaves two layers with experts. `vocab`
    is `none` (token ids only) or `bytes`. Raises GGUFError, UnsupportedModelError for
    models that cannot be cut, UsageError for a budget below the smallest cut.
    """
    header = read_header(path)
    source = _read_source(header, read_typed_keys(header.path))
    return _cut(source, budget_bytes, wish_bytes, n_layer, vocab)


def make_scale_model_of_shape(
    shape: Shape,
    *,
    quant: str | None = None,
    budget_bytes: int | None = None,
    wish_bytes: int | None = None,
    n_layer: int | None = None,
    vocab: str = "none",
) -> ScaleModel:
    """The same for a model of the catalogue, of which there is no file."""
    metadata, tensors = make_file(shape, quant=quant)
    header = _parse(encode_header(metadata, tensors), tensors)
    return _cut(_read_source(header, metadata), budget_bytes, wish_bytes, n_layer, vocab)


def _parse(header: bytes, tensors: Iterable[FileTensor]) -> GGUFHeader:
    padded = sum(t.n_bytes + 64 for t in tensors)
    return parse_header(header, file_bytes=len(header) + padded, path="scale model")


def _read_source(header: GGUFHeader, keys: Mapping[str, Value]) -> _Source:
    model = make_model(header)
    n_trunk = model.n_layer - model.n_layer_nextn
    if model.hparams.n_loops > 1 or model.hparams.router_layer >= 0 or n_trunk < 1:
        raise UnsupportedModelError(
            f"{model.path}: a {model.arch} model's layers are not alike enough to be cut;"
            " bench the model itself"
        )
    common: list[FileTensor] = []
    layers: list[list[FileTensor]] = [[] for _ in range(n_trunk)]
    for t in header.tensors:
        block, rest = _split_block(t.name)
        if block is None:
            common.append(FileTensor(name=t.name, type=t.type, shape=t.shape))
        elif block < n_trunk:
            layers[block].append(FileTensor(name=rest, type=t.type, shape=t.shape))
    n_lead = model.hparams.n_layer_dense_lead
    return _Source(
        keys=keys,
        model=model,
        common=tuple(common),
        layers=tuple(tuple(layer) for layer in layers),
        kinds=tuple(
            (_kind_of(model, il), tuple((t.name, t.shape) for t in layers[il]))
            for il in range(n_trunk)
        ),
        types=tuple(tuple(t.type.name for t in layer) for layer in layers),
        n_lead=n_lead if n_lead < n_trunk else 0,
    )


def _split_block(name: str) -> tuple[int | None, str]:
    head, _, rest = name.removeprefix("blk.").partition(".")
    if name.startswith("blk.") and rest and head.isascii() and head.isdigit():
        return int(head), rest
    return None, name


def _kind_of(model: Model, il: int) -> Hashable:
    """What llama.cpp makes of layer `il`, whatever its number."""
    hp = model.hparams
    values = (
        hp.n_head, hp.n_head_kv, hp.n_ff, hp.n_ff_exp, hp.n_expert_used,
        hp.is_swa, hp.is_recr, hp.is_indexer_full, hp.compress_ratios, hp.is_ple,
    )  # fmt: skip
    return (model.layers[il].kind, *(v[il] for v in values))


def _cut(
    source: _Source,
    budget_bytes: int | None,
    wish_bytes: int | None,
    n_layer: int | None,
    vocab: str,
) -> ScaleModel:
    n_all = len(source.layers)
    if n_layer is not None:
        if not 1 <= n_layer <= n_all:
            raise UsageError(f"{n_layer} layers of a model that has {n_all}")
        n_bytes = _bytes_of_count(source, n_layer)
        if budget_bytes is not None and n_bytes > budget_bytes:
            raise UsageError(
                f"{source.model.path}: {n_layer} of its layers take {format_gib(n_bytes)}, but"
                f" there is room for {format_gib(budget_bytes)}; take fewer"
            )
        return _of_count(source, n_layer, vocab)
    counts = good_counts(source.kinds, n_lead=source.n_lead) or (n_all,)
    sizes = {n: _bytes_of_count(source, n) for n in counts if _can_have(source, n)}
    wished = (n for n in sizes if wish_bytes is None or sizes[n] <= wish_bytes)
    n = next(wished, min(sizes))
    if wish_bytes is not None and not _can_be_halved(source, n):
        n = min((other for other in sizes if _can_be_halved(source, other)), default=n)
    while budget_bytes is not None and sizes[n] > budget_bytes:
        smaller = [other for other in sizes if other < n]
        if not smaller:
            raise _too_small(source, sizes[n], n, budget_bytes)
        n = max(smaller)
    return _of_count(source, n, vocab)


def _can_be_halved(source: _Source, n: int) -> bool:
    """Whether `n` layers are enough to have experts on a card and experts on the host."""
    chosen = next(candidates(source.kinds, n, n_lead=source.n_lead))
    movable = source.model.expert_layers or range(len(source.layers))
    return sum(il in movable for il in chosen) > 1


def _bytes_of_count(source: _Source, n: int) -> int:
    """Bytes of the first choice of `n` layers, without making a model of it."""
    chosen = next(candidates(source.kinds, n, n_lead=source.n_lead))
    layers = [source.layers[il] for il in donors(source.kinds, source.types, chosen)]
    return sum(t.n_bytes for tensors in (source.common, *layers) for t in tensors)


def _can_have(source: _Source, n: int) -> bool:
    """Whether llama.cpp reads a model of `n` layers as it reads the source."""
    arch, n_vocab = source.model.arch, source.model.n_vocab
    n_all = len(source.layers)
    return n == n_all or not (
        is_known_by_count(arch, n, n_vocab) or is_known_by_count(arch, n_all, n_vocab)
    )


def _too_small(source: _Source, n_bytes: int, n_layer: int, budget_bytes: int) -> OffloadError:
    return UsageError(
        f"{source.model.path}: the smallest cut of this model, {n_layer} layer(s), takes"
        f" {format_gib(n_bytes)}, but there is room for {format_gib(budget_bytes)};"
        " free memory or disk space, or bench a smaller model of similar widths"
    )


def _of_count(source: _Source, n: int, vocab: str) -> ScaleModel:
    """The cut to `n` layers; the first choice of layers that keeps its kinds."""
    if not _can_have(source, n):
        raise UnsupportedModelError(
            f"{source.model.path}: llama.cpp knows {source.model.arch} models by their number of"
            f" layers and would read {n} layers of this one as another; bench the model itself"
        )
    for chosen in candidates(source.kinds, n, n_lead=source.n_lead):
        metadata = _cut_metadata(source, chosen, vocab)
        type_layers = donors(source.kinds, source.types, chosen)
        tensors = _cut_tensors(source, type_layers)
        try:
            model = make_model(_parse(encode_header(metadata, tensors), tensors))
            if not model.rope_layers:  # nobody asks for the tables, and llama.cpp counts tensors
                tensors = tuple(t for t in tensors if t.name not in _tables(model))
                model = make_model(_parse(encode_header(metadata, tensors), tensors))
        except OffloadError:
            continue
        if all(
            _kind_of(model, il) == _kind_of(source.model, from_il)
            for il, from_il in enumerate(chosen)
        ):
            return ScaleModel(
                metadata=metadata,
                tensors=tensors,
                source_layers=chosen,
                type_layers=type_layers,
                n_layer_source=len(source.layers),
                types_missing=_missing_types(source, tensors),
                model=model,
            )
    raise UnsupportedModelError(
        f"{source.model.path}: no {n} layers of this {source.model.arch} model make one"
        " that llama.cpp would read alike; try another number of layers, or bench the model itself"
    )


def _tables(model: Model) -> frozenset[str]:
    return frozenset(t.name for t in model.tensors if t.duplicated)


def _missing_types(source: _Source, tensors: Iterable[FileTensor]) -> tuple[str, ...]:
    here = {t.type.name for t in tensors}
    there = {t.type.name for layer in source.layers for t in layer}
    return tuple(sorted(there - here))


def _cut_tensors(source: _Source, type_layers: Sequence[int]) -> tuple[FileTensor, ...]:
    layers = [
        FileTensor(name=f"blk.{il}.{t.name}", type=t.type, shape=t.shape)
        for il, from_il in enumerate(type_layers)
        for t in source.layers[from_il]
    ]
    return (*source.common, *layers)


def _cut_metadata(source: _Source, chosen: Sequence[int], vocab: str) -> dict[str, Value]:
    """The source's keys for these layers; the tokenizer's replaced, what nobody needs left out."""
    model = source.model
    prefix = f"{model.arch}."
    keys: dict[str, Value] = {k: source.keys[k] for k in _GENERAL_KEYS if k in source.keys}
    keys["general.name"] = f"{len(chosen)} of {len(source.layers)} layers of {model.name}"
    for key, value in source.keys.items():
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and name != _NEXTN:
            keys[key] = _cut_value(name, value, source, chosen)
    keys[f"{prefix}block_count"] = len(chosen)
    keys[f"{prefix}vocab_size"] = model.n_vocab
    return keys | make_sized_vocab(model.n_vocab, vocab)


def _cut_value(name: str, value: Value, source: _Source, chosen: Sequence[int]) -> Value:
    kind = value.type if isinstance(value, Typed) else ""
    plain = value.value if isinstance(value, Typed) else value
    if name == _LEAD and source.n_lead:
        return _typed(kind, sum(il < source.n_lead for il in chosen))
    if name == _LEAD:
        return _typed(kind, min(int(plain), len(chosen)))  # type: ignore[arg-type]
    if name == _SHARED_KV and isinstance(plain, int):
        first = len(source.layers) + source.model.n_layer_nextn - plain
        return _typed(kind, sum(il >= first for il in chosen))
    if isinstance(plain, str) or not isinstance(plain, Sequence):
        return value
    if name in _LAYER_NUMBERS:
        return _typed(kind, [chosen.index(int(il)) for il in plain if int(il) in chosen])
    if name in _PER_LAYER and len(plain) >= len(source.layers):
        return _typed(kind, [plain[il] for il in chosen])
    return value


def _typed(kind: str, value: object) -> Value:
    return Typed(kind, value) if kind else value  # type: ignore[arg-type, return-value]
