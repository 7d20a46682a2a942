"""How does a file of given figures come about: shape-true and empty, or small and runnable?

`write_shape` writes a real model's header over a hole; `write_random` a small
model with random weights that llama.cpp loads and generates from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from offload.errors import UsageError
from tuner.shapes import MLA, SHAPES, Shape, SlidingWindow
from tuner.shapes.metadata import make_metadata
from tuner.shapes.recipes import RECIPES, check_recipe, choose_types
from tuner.shapes.shape import Value as ShapeValue
from tuner.shapes.tensors import make_tensors
from tuner.synth.blocks import RandomData
from tuner.synth.container import FileTensor, Typed, Value, write_gguf
from tuner.synth.vocab import N_VOCAB_BYTES_MIN, make_vocab


def _typed(key: str, value: ShapeValue) -> Value:
    # the converters write this list as signed
    is_signed = key.endswith("rope.dimension_sections")
    return Typed("i32", value) if isinstance(value, tuple) and is_signed else value


def make_file(
    shape: Shape, *, quant: str | None = None, vocab: str = "none"
) -> tuple[dict[str, Value], tuple[FileTensor, ...]]:
    """The keys and typed tensors of a file; raises UsageError for what it does not know."""
    recipe = check_recipe(quant or shape.quant)
    tensors = make_tensors(shape)
    types = choose_types(shape, tensors, recipe)
    metadata: dict[str, Value] = {k: _typed(k, v) for k, v in make_metadata(shape).items()}
    metadata["general.file_type"] = RECIPES[recipe][0]
    metadata["general.quantization_version"] = 2
    metadata |= make_vocab(shape, vocab)
    return metadata, tuple(
        FileTensor(name=t.name, type=type_, shape=t.shape)
        for t, type_ in zip(tensors, types, strict=True)
    )


def find_shape(name: str) -> Shape:
    """A shape of the catalogue; raises UsageError naming all of them."""
    if name not in SHAPES:
        raise UsageError(f"no shape {name!r}; one of {', '.join(SHAPES)}")
    return SHAPES[name]


def write_shape(
    name: str | Shape,
    path: str | Path,
    *,
    quant: str | None = None,
    vocab: str = "none",
    n_parts: int = 1,
) -> Path:
    """Write a real model's header with a hole for its weights; returns the (first) file.

    `name` is a key of SHAPES or a Shape; `quant` a recipe (the shape's own by
    default); `vocab` one of "none", "full", "bytes"; `n_parts` above 1 writes a
    split set named like llama.cpp's. Raises UsageError for names it does not know.
    """
    shape = name if isinstance(name, Shape) else find_shape(name)
    metadata, tensors = make_file(shape, quant=quant, vocab=vocab)
    return write_gguf(Path(path), metadata, tensors, n_parts=n_parts)


# architecture -> the catalogue entry that small models of it are cut from
_SMALL_OF: Final[Mapping[str, str]] = {
    "qwen3moe": "qwen3-30b-a3b", "llama": "mixtral-8x7b", "gpt-oss": "gpt-oss-20b",
    "deepseek2": "deepseek-v3", "mistral4": "mistral-small-4-119b", "glm4moe": "glm-4.5-air",
    "qwen3next": "qwen3-next-80b-a3b", "qwen35moe": "qwen3.5-35b-a3b-mtp",
    "minimax-m2": "minimax-m2", "llama4": "llama-4-maverick", "gemma4": "gemma-4-26b-a4b",
    "hunyuan-moe": "hunyuan-a13b", "ernie4_5-moe": "ernie-4.5-21b-a3b", "glm-dsa": "glm-5",
    "qwen3": "qwen3-14b", "gemma3": "gemma-3-4b",
}  # fmt: skip
RANDOM_ARCHS: Final = tuple(_SMALL_OF)


def _small_mla(base: Shape, n_layer: int) -> MLA | None:
    if base.mla is None:
        return None
    # the head parts stay: attention kernels know only a few sizes
    n_lora_q = min(base.mla.n_lora_q, 256)
    if base.arch == "deepseek2" and n_layer in (26, 27):
        n_lora_q = 0  # llama.cpp takes these layer counts for the Lite models
    return replace(base.mla, n_lora_q=n_lora_q, n_lora_kv=min(base.mla.n_lora_kv, 256))


def _small_swa(base: Shape, n_layer: int) -> SlidingWindow | None:
    if base.swa is None:
        return None
    # Gemma 4 lists its window layers; elsewhere llama.cpp assumes the real model's period
    period = min(base.swa.period, n_layer) if base.arch == "gemma4" else base.swa.period
    return replace(base.swa, n_swa=min(base.swa.n_swa, 128), period=period)


def make_small_shape(
    arch: str,
    *,
    n_layer: int = 4,
    n_embd: int = 256,
    n_expert: int | None = None,
    n_expert_used: int | None = None,
    n_ff_exp: int = 256,
    n_ff: int | None = None,
    n_head: int | None = None,
    n_head_kv: int | None = None,
    n_embd_head: int | None = None,
    n_layer_dense_lead: int | None = None,
    n_layer_nextn: int | None = None,
    n_vocab: int = 512,
    n_ctx_train: int = 4096,
) -> Shape:
    """A small model of an architecture: the catalogue's entry with other sizes.

    What is not given follows the real model where that stays small (its MTP
    block, its dense lead of at most one layer, its shared experts) and is
    otherwise a few heads and experts. Raises UsageError for sizes that make no
    model.
    """
    if arch not in _SMALL_OF:
        raise UsageError(f"no small models of architecture {arch!r}; one of {', '.join(_SMALL_OF)}")
    base = SHAPES[_SMALL_OF[arch]]
    is_moe = base.n_expert > 0
    n_expert = (8 if n_expert is None else n_expert) if is_moe else 0
    n_expert_used = (min(2, n_expert) if n_expert_used is None else n_expert_used) if is_moe else 0
    if arch == "gpt-oss" and n_head is None and n_embd_head is None:
        n_embd_head = 64
    n_embd_head = n_embd_head or min(base.n_embd_head, 128)
    n_head = n_head or max(2, n_embd // n_embd_head)
    n_head_kv = n_head_kv or max(1, n_head // 2)
    lead = min(base.n_layer_dense_lead, 1) if n_layer_dense_lead is None else n_layer_dense_lead
    shape = replace(
        base,
        name=f"random-{arch}", title=f"Random {arch}", source="random weights",
        n_layer=n_layer, n_embd=n_embd, n_head=n_head, n_head_kv=n_head_kv,
        n_embd_head=n_embd_head, n_vocab=n_vocab, n_ctx_train=n_ctx_train,
        n_ff=n_ff or (n_ff_exp if base.n_ff == base.n_ff_exp else 2 * n_embd),
        n_layer_nextn=base.n_layer_nextn if n_layer_nextn is None else n_layer_nextn,
        n_layer_dense_lead=lead, n_expert=n_expert, n_expert_used=n_expert_used,
        n_ff_exp=n_ff_exp if is_moe else 0, n_ff_shexp=n_ff_exp if base.n_ff_shexp else 0,
        n_rot=base.n_rot and min(base.n_rot, n_embd_head) if base.mla is None else base.n_rot,
        mla=_small_mla(base, n_layer), swa=_small_swa(base, n_layer),
        delta=base.delta and replace(base.delta, n_group=2, dt_rank=4),
        indexer=base.indexer and replace(base.indexer, n_head=4),
        extra=_small_extra(base), n_params=None, size_gib={},
    )  # fmt: skip
    _check(shape)
    return shape


def _small_extra(base: Shape) -> dict[str, ShapeValue]:
    # expert groups must divide the experts; small models do without
    return {k: v for k, v in base.extra.items() if not k.startswith("expert_group")}


def _check(s: Shape) -> None:
    if min(s.n_layer, s.n_embd, s.n_head, s.n_head_kv, s.n_embd_head, s.n_vocab) < 1:
        raise UsageError("layers, widths, heads and vocabulary must be positive")
    if s.n_expert and not 0 < s.n_expert_used <= s.n_expert:
        raise UsageError(f"{s.n_expert_used} of {s.n_expert} experts cannot be used")
    if s.n_embd % 32 or (s.n_expert and s.n_ff_exp % 32) or s.n_ff % 32:
        raise UsageError("widths must be multiples of 32, the smallest quantisation block")
    if s.n_head % s.n_head_kv:
        raise UsageError(f"{s.n_head} heads cannot share {s.n_head_kv} KV heads")
    if s.n_vocab < N_VOCAB_BYTES_MIN:
        raise UsageError(f"a byte vocabulary needs at least {N_VOCAB_BYTES_MIN} tokens")


def make_like(shape: Shape, *, n_layer: int, n_vocab: int | None = None) -> Shape:
    """The same model with only `n_layer` layers: every width, expert and type as it was."""
    lead = min(shape.n_layer_dense_lead, max(0, n_layer - 1))
    found = replace(
        shape, n_layer=n_layer, n_layer_dense_lead=lead, n_vocab=n_vocab or shape.n_vocab,
        name=f"{shape.name}-{n_layer}l", title=f"{shape.title}, {n_layer} layers",
        n_params=None, size_gib={},
    )  # fmt: skip
    _check(found)
    return found


def write_random_shape(
    shape: Shape, path: str | Path, *, quant: str = "Q4_K_M", seed: int = 0, n_parts: int = 1
) -> Path:
    """Write a runnable file of these figures with random weights and a byte vocabulary."""
    metadata, tensors = make_file(shape, quant=quant, vocab="bytes")
    return write_gguf(Path(path), metadata, tensors, fill=RandomData(seed), n_parts=n_parts)


def write_random(
    path: str | Path,
    *,
    arch: str,
    quant: str = "Q4_K_M",
    seed: int = 0,
    n_parts: int = 1,
    **sizes: int | None,
) -> Path:
    """Write a small runnable model; `sizes` are those of `make_small_shape`.

    The same arguments and seed give the same bytes. Raises UsageError for
    sizes that make no model or a recipe that does not exist.
    """
    shape = make_small_shape(arch, **sizes)  # type: ignore[arg-type]
    return write_random_shape(shape, path, quant=quant, seed=seed, n_parts=n_parts)
