"""Which model is timed: the user's own small one, a cut of a big one, or a built-in one?

Whatever it is must fit the memory of this machine together with its cards, and a cut
the disk too. [edge]
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from offload.device import Device
from offload.errors import InfeasibleError, UnsupportedModelError, UsageError
from offload.model import Model, make_model
from offload.source import read_header
from offload.units import GIB, MIB, format_gib
from tuner.scale_file import (
    disk_free_bytes,
    scratch_folder,
    temporary_scale_model,
    write_scale_model,
)
from tuner.scale_model import ScaleModel, make_scale_model, make_scale_model_of_shape
from tuner.shapes import SHAPES

_WISH_BYTES_PER_S: Final = 2e7
"""Bytes of model per second of a sweep: what is loaded thirty times must be small."""

_WISH_BYTES_PER_S_VIRTUAL: Final = 4e6
"""The same where a thread of the processor plays a card."""

_MEMORY_SHARE: Final = 0.7
_OVERHEAD_BYTES: Final = 512 * MIB
"""llama.cpp itself, its compute buffers and caches."""

_BUILT_IN: Final = replace(
    SHAPES["qwen3-30b-a3b"],
    name="built-in",
    title="Built-in MoE",
    n_expert=32,
    n_expert_used=4,
    n_vocab=32768,
)
"""The widths of a 30B model with a quarter of its experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model to time. `kind` is `file`, `cut` or `built-in`; `n_layer_source` of the big one.

    `short_model` is the same with fewer layers, where there could be one.
    """

    path: Path
    model: Model
    kind: str
    n_layer_source: int
    digest: str
    types_missing: tuple[str, ...] = ()
    short_model: Model | None = None


def room_bytes(devices: Sequence[Device], host_free_bytes: int | None, *, virtual: bool) -> int:
    """What a model may take: of the host's memory, and of the cards' where they are real."""
    host = 8 * GIB if host_free_bytes is None else host_free_bytes
    room = _MEMORY_SHARE * host - _OVERHEAD_BYTES
    if devices and not virtual:
        # every expert is on the cards once and on the host once
        room = min(room, 0.85 * sum(d.memory_free_bytes for d in devices))
    return max(0, int(room))


@contextlib.contextmanager
def own_model(path: str, budget_bytes: int) -> Iterator[Subject]:
    """The user's model as it is; it is only read."""
    model = make_model(read_header(path))
    if model.size_bytes > budget_bytes:
        raise InfeasibleError(
            f"{path}: {format_gib(model.size_bytes)}, but there is room for"
            f" {format_gib(budget_bytes)}; offload bench --like {path} times a few of its layers",
            short_bytes={"CPU": model.size_bytes - budget_bytes},
        )
    yield Subject(
        path=Path(path),
        model=model,
        kind="file",
        n_layer_source=model.n_layer - model.n_layer_nextn,
        digest=model_digest(model),
    )


@contextlib.contextmanager
def cut_model(
    like: str | None,
    budget_bytes: int,
    *,
    time_s: float,
    virtual: bool = False,
    keep: Path | None = None,
    n_layer: int | None = None,
) -> Iterator[Subject]:
    """A cut of the model at `like`, or of the built-in one; its file is gone afterwards.

    It has `n_layer` layers, or as many as memory, disk and `time_s` allow. With `keep` it is
    written there and stays. Raises UsageError where memory or disk hold
    not even the smallest cut, InfeasibleError where the disk fills up.
    """
    folder = scratch_folder() if keep is None else keep.parent
    budget_bytes = min(budget_bytes, disk_free_bytes(folder))
    wish_bytes = int(time_s * (_WISH_BYTES_PER_S_VIRTUAL if virtual else _WISH_BYTES_PER_S))
    scale = _make_scale(like, budget_bytes=budget_bytes, wish_bytes=wish_bytes, n_layer=n_layer)
    short = _shorter(scale, partial(_make_scale, like))
    with ExitStack() as stack:
        if keep is not None:
            path = write_scale_model(scale, keep)
        else:
            path = stack.enter_context(temporary_scale_model(scale))
        subject = _subject(scale, path, like)
        if short is not None and short.n_bytes <= disk_free_bytes(scratch_folder()):
            short_path = stack.enter_context(temporary_scale_model(short))
            subject = replace(subject, short_model=make_model(read_header(short_path)))
        yield subject


def _make_scale(
    like: str | None,
    *,
    budget_bytes: int | None = None,
    wish_bytes: int | None = None,
    n_layer: int | None = None,
) -> ScaleModel:
    if like is None:
        return make_scale_model_of_shape(
            _BUILT_IN, budget_bytes=budget_bytes, wish_bytes=wish_bytes, n_layer=n_layer
        )
    return make_scale_model(like, budget_bytes=budget_bytes, wish_bytes=wish_bytes, n_layer=n_layer)


def _shorter(scale: ScaleModel, make: Callable[..., ScaleModel]) -> ScaleModel | None:
    """About half as many layers, experts among them; None where llama.cpp knows no such model.

    It tells what grows with layers from what does not, so kinds need not be in proportion.
    """
    n = len(scale.source_layers)
    for n_layer in range(max(n // 2, 1), n):
        try:
            short = make(n_layer=n_layer)
        except UnsupportedModelError:
            continue
        if short.model.expert_layers or not scale.model.expert_layers:
            return short
    return None


def kept_path(like: str | None) -> Path:
    """Where `--keep` puts the cut: the current folder, under a name that is still free."""
    stem = "built-in" if like is None else Path(like).stem
    for i in range(1, 1000):
        path = Path(f"{stem}-cut{'' if i == 1 else f'-{i}'}.gguf")
        if not path.exists():
            return path
    raise UsageError(f"a thousand files named {stem}-cut-….gguf are here; delete some")


def model_digest(model: Model) -> str:
    """The same for models of the same shape: architecture, tensors and their types."""
    rows = [[t.name, t.type.name, list(t.shape)] for t in model.tensors]
    text = json.dumps([model.arch, model.n_expert_used, sorted(rows)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _subject(scale: ScaleModel, path: Path, like: str | None) -> Subject:
    model = make_model(read_header(path))
    return Subject(
        path=path,
        model=model,
        kind="built-in" if like is None else "cut",
        n_layer_source=scale.n_layer_source,
        digest=model_digest(model),
        types_missing=scale.types_missing,
    )
