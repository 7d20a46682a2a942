"""From the header of a file to everything the planner knows about the model.

Mirrors what `llama_model_load` (src/llama-model.cpp, b11434) learns before it
reads a weight: hyper-parameters, layers with their context memory, tensors
with their roles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from offload.arch import ARCHS, UNKNOWN, Arch, RopeCopies
from offload.errors import GGUFError, UnsupportedModelError
from offload.gguf import GGUFHeader, SkippedArray, Value
from offload.hparams import HParams, make_hparams
from offload.layers import Layer, make_layers
from offload.metadata import Metadata
from offload.roles import Role, Tensor, assign_roles
from offload.units import format_mib

__all__ = ["Layer", "Model", "Role", "Tensor", "make_model"]

_N_VOCAB_MAX: Final = 1 << 26

_NO_LANGUAGE_MODEL: Final = {
    "mmproj": "a multimodal projector; give the language model's own file (llama-server takes"
    " this one with --mmproj)",
    "adapter": "an adapter; give the model it belongs to (llama-server takes this one with --lora)",
    "imatrix": "an importance matrix for quantising; give a model",
    "clip": "a vision encoder; give the language model's own file",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model as llama.cpp would load it, without a draft context.

    `n_layer` counts every block that takes a unit of `-ngl` and `-ts`: llama.cpp's
    n_layer_all, MTP blocks and loops included. `n_expert_used` is the largest of any layer.
    `output_is_tied`: the token embeddings serve as output matrix too, for which they are loaded
    a second time where the output layer is not on the host, and also on the host where
    `tied_output_is_copied`.
    `rope_layers` are the layers that need a copy of `duplicated` tensors on their device.
    `warnings` are (code, text) pairs. Sizes are those of the tensors in the file;
    `expert_bytes` counts the routed experts that are loaded.
    """

    path: str
    arch: str
    name: str
    n_layer: int
    n_layer_nextn: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_expert: int
    n_expert_used: int
    size_bytes: int
    expert_bytes: int
    n_files: int
    hparams: HParams
    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]
    output_is_tied: bool
    tied_output_is_copied: bool
    has_flash_attn: bool
    rope_layers: tuple[int, ...]
    warnings: tuple[tuple[str, str], ...]
    expert_tensors: tuple[Tensor, ...] = field(repr=False)
    """Routed experts that are loaded."""

    tensor_names: tuple[str, ...] = field(repr=False)

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Layers with routed experts, in order."""
        return tuple(sorted({t.il for t in self.expert_tensors if t.il is not None}))

    @property
    def token_embedding(self) -> Tensor:
        """The tensor that is loaded twice where the output is tied."""
        return next(t for t in self.tensors if t.name == "token_embd.weight")


def make_model(header: GGUFHeader) -> Model:
    """The model a header describes.

    Raises UnsupportedModelError for files that are no language model, GGUFError naming the
    key for metadata that cannot be right.
    """
    arch_name = _architecture(header)
    arch = ARCHS.get(arch_name, UNKNOWN)
    keys = Metadata(header.metadata, arch_name, header.path)
    names = tuple(info.name for info in header.tensors)
    by_name = frozenset(names)
    hp = make_hparams(keys, arch, n_vocab=_n_vocab(header, keys), tensor_names=by_name)
    tensors = assign_roles(
        header.tensors, arch=arch, n_layer=hp.n_layer_all, n_layer_nextn=hp.n_layer_nextn
    )
    experts = tuple(t for t in tensors if t.role is Role.EXPERT and t.loaded)
    name = header.metadata.get("general.name")
    return Model(
        path=header.path,
        arch=arch_name,
        name=name if isinstance(name, str) else "",
        n_layer=hp.n_layer_all,
        n_layer_nextn=hp.n_layer_nextn,
        n_embd=hp.n_embd,
        n_vocab=hp.n_vocab,
        n_ctx_train=hp.n_ctx_train,
        n_expert=hp.n_expert,
        n_expert_used=max(hp.n_expert_used),
        size_bytes=sum(t.n_bytes for t in tensors),
        expert_bytes=sum(t.n_bytes for t in experts),
        n_files=header.n_files,
        hparams=hp,
        layers=make_layers(hp, arch),
        tensors=tensors,
        output_is_tied=_is_tied(arch, by_name),
        tied_output_is_copied=arch.output_is_first,
        has_flash_attn=arch.has_flash_attn,
        rope_layers=_rope_layers(hp, arch),
        warnings=tuple(_warnings(hp, arch, arch_name, by_name, tensors)),
        expert_tensors=experts,
        tensor_names=names,
    )


def _architecture(header: GGUFHeader) -> str:
    """`general.architecture`, unless the file is something else than a language model."""
    arch = header.metadata.get("general.architecture")
    if not isinstance(arch, str) or not arch:
        raise GGUFError(
            "the file does not name its architecture; it is no model for llama.cpp",
            path=header.path,
            key="general.architecture",
        )
    kind = header.metadata.get("general.type")
    what = _NO_LANGUAGE_MODEL.get(kind if isinstance(kind, str) else "")
    what = what or _NO_LANGUAGE_MODEL.get(arch)
    if what is not None:
        raise UnsupportedModelError(f"{header.path or 'the file'}: this is {what}")
    if f"{arch}.block_count" not in header.metadata:
        raise UnsupportedModelError(
            f"{header.path or 'the file'}: architecture {_shortened(arch)!r} has no layers"
            f" ({_shortened(arch)}.block_count is missing), so it is no language model that"
            " llama.cpp could split over cards; give a language model"
        )
    if not header.tensors:
        raise UnsupportedModelError(
            f"{header.path or 'the file'}: a vocabulary without weights; give the whole model"
        )
    return arch


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


def _n_vocab(header: GGUFHeader, keys: Metadata) -> int:
    """Tokens in the vocabulary, else rows of the embedding (`llama_vocab::n_tokens`)."""
    tokens: Value | None = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, SkippedArray):
        return tokens.length
    if isinstance(tokens, tuple):
        return len(tokens)
    n_vocab = keys.uint("vocab_size", 0, at_most=_N_VOCAB_MAX)
    rows = (t.shape[1] for t in header.tensors if t.name == "token_embd.weight" and t.shape[1:])
    return n_vocab or next(rows, 0)


def _is_tied(arch: Arch, names: frozenset[str]) -> bool:
    return arch.has_output and "output.weight" not in names and "token_embd.weight" in names


def _rope_layers(hp: HParams, arch: Arch) -> tuple[int, ...]:
    with_nextn = arch.rope_copies is RopeCopies.ALL or arch.nextn_is_loaded
    n_layer = (hp.n_layer_all if with_nextn else hp.n_layer) // hp.n_loops
    only_full = arch.rope_copies is RopeCopies.FULL_ATTENTION
    return tuple(il for il in range(n_layer) if not (only_full and hp.is_swa[il]))


def _warnings(
    hp: HParams,
    arch: Arch,
    arch_name: str,
    names: frozenset[str],
    tensors: tuple[Tensor, ...],
) -> Iterator[tuple[str, str]]:
    if arch is UNKNOWN:
        yield (
            "unknown-arch",
            f"architecture {_shortened(arch_name)!r} is unknown here: its context memory is"
            " guessed as that of plain attention; have llama.cpp confirm the plan",
        )
    if arch.is_draft or (hp.n_layer_nextn and not any(n.startswith("blk.0.") for n in names)):
        yield (
            "draft-model",
            "a draft model: llama.cpp loads it beside the model it drafts for, whose memory"
            " is not in this plan",
        )
    elif hp.n_layer_nextn and not arch.nextn_is_loaded:
        kept = sum(t.n_bytes for t in tensors if t.loaded and (t.il or 0) >= hp.n_layer)
        if kept:
            yield (
                "mtp-partly-loaded",
                f"llama.cpp loads {format_mib(kept)} of the MTP block(s) even though nothing"
                " drafts with them",
            )
    if any(t.role is Role.EXPERT and t.name.count(".") > _DOTS_OF_EXPERTS for t in tensors):
        yield (
            "legacy-experts",
            "one tensor for each expert, as in files of early 2024, which llama.cpp no longer"
            " loads; get a newer file",
        )


_DOTS_OF_EXPERTS: Final = 3
"""`blk.0.ffn_up_exps.weight`, not `blk.0.ffn_up.7.weight`."""
