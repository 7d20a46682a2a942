"""Which weights does a token meet on its way, where, and between which devices does it go?

An op runs where its weight lies (`ggml_backend_sched_backend_id_from_cur`,
ggml/src/ggml-backend.cpp, b11434).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from offload.arch import OUTPUTS_AFTER_LAYERS
from offload.cost.routing import touched_share
from offload.model import Model, Role, Tensor
from offload.split import HOST, LayerSplit

_FLOPS_PER_WEIGHT: Final = 2
_AFTER_ATTENTION: Final = (Role.EXPERT, Role.SHARED_EXPERT, Role.ROUTER, Role.FFN)


class Places(Protocol):
    """What of a placement decides its time; offload.placement.Placement is one."""

    @property
    def split(self) -> LayerSplit:
        """Owner of every layer."""

    @property
    def placed(self) -> Mapping[str, int]:
        """Tensors that leave their owner: a device index or HOST."""


class Lump(NamedTuple):
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
    for_outputs: bool = False
    """In a prompt computed only for tokens whose output is asked for: the last one."""

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


def trunk_owners(model: Model, placement: Places) -> tuple[int, ...]:
    """Owners of the layers that run for every token."""
    return placement.split.owners[: model.n_layer - model.n_layer_nextn]


def find_lumps(model: Model, placement: Places) -> tuple[Lump, ...]:
    """The weights that matter for time, tensors that are computed alike taken together."""
    weights, kinds = _weights_of(model)
    sums: dict[tuple[int, int], list[int]] = {}
    for tensor, lump, kind in weights:
        key = (_place_of(tensor, placement), kind)
        total = sums.get(key)
        if total is None:
            sums[key] = [lump.n_bytes, lump.n_weights]
        else:
            total[0] += lump.n_bytes
            total[1] += lump.n_weights
    return tuple(
        kinds[kind]._replace(place=place, n_bytes=n_bytes, n_weights=n_weights)
        for (place, kind), (n_bytes, n_weights) in sums.items()
    )


_Weights = tuple[tuple[tuple[Tensor, Lump, int], ...], tuple[Lump, ...]]
"""Tensors with their lump and the number of its kind, and the first lump of each kind."""

_latest: tuple[Model, _Weights] | None = None
"""A planner times many placements of one model; nobody needs more than the last."""


def _weights_of(model: Model) -> _Weights:
    """What no placement changes, remembered while the same model is asked about."""
    global _latest
    if _latest is None or _latest[0] is not model:
        kinds: dict[tuple[int | None, str, Role, int, int], int] = {}
        firsts: list[Lump] = []
        rows = []
        for tensor in multiplied(model):
            lump = lump_of(model, tensor, HOST)
            key = (lump.il, lump.type_name, lump.role, lump.n_expert, lump.n_expert_used)
            kind = kinds.setdefault(key, len(firsts))
            if kind == len(firsts):
                firsts.append(lump)
            rows.append((tensor, lump, kind))
        _latest = (model, (tuple(rows), tuple(firsts)))
    return _latest[1]


def lump_of(model: Model, tensor: Tensor, place: int) -> Lump:
    """One tensor alone, on this device; those of looped layers count once for each pass."""
    is_expert = tensor.role is Role.EXPERT and len(tensor.shape) > 2
    il = tensor.il
    times = 1 if il is None else max(1, model.hparams.n_loops)
    return Lump(
        place=place,
        il=il,
        type_name=tensor.type.name,
        role=tensor.role,
        n_bytes=tensor.n_bytes * times,
        n_weights=_elements(tensor) * times,
        for_outputs=_is_for_outputs(model, tensor),
        n_expert=tensor.shape[2] if is_expert else 1,
        n_expert_used=model.hparams.n_expert_used[il] if is_expert and il is not None else 1,
    )


def _is_for_outputs(model: Model, tensor: Tensor) -> bool:
    """Whether only rows of outputs get so far, as from the attention of most last layers on."""
    if tensor.role is Role.OUTPUT:
        return True
    last = model.n_layer - model.n_layer_nextn - 1
    crops = tensor.il == last and model.arch not in OUTPUTS_AFTER_LAYERS
    return crops and tensor.role in _AFTER_ATTENTION


def multiplied(model: Model) -> Iterator[Tensor]:
    """Matrices that every token is multiplied with; a tied output is one, MTP blocks are none."""
    n_trunk = model.n_layer - model.n_layer_nextn
    for tensor in model.tensors:
        runs = tensor.loaded and (tensor.il is None or tensor.il < n_trunk)
        if runs and len(tensor.shape) > 1 and tensor.home != "input":
            yield tensor
    if model.output_is_tied:
        yield model.token_embedding._replace(role=Role.OUTPUT, home="output")


def _place_of(tensor: Tensor, placement: Places) -> int:
    placed = placement.placed.get(tensor.name)
    if placed is not None:
        return placed
    if tensor.home == "output" or tensor.il is None:
        return placement.split.output_owner
    return placement.split.owners[tensor.il]


def _elements(tensor: Tensor) -> int:
    n = 1
    for extent in tensor.shape:
        n *= extent
    return n


def count_resent(model: Model, placement: Places, lumps: Sequence[Lump]) -> dict[int, int]:
    """Layers by card whose operations are sent to it again for one token, were it an RPC card.

    A card that gets all its layers at once is told to compute the graph it has. One that is
    interrupted by experts elsewhere gets a new graph after each interruption, and with it
    everything it leans on: all its layers up to there, through the residual stream
    (`serialize_graph`, ggml/src/ggml-rpc/ggml-rpc.cpp, b11434).
    """
    owners = trunk_owners(model, placement)
    stops = {
        lump.il
        for lump in lumps
        if lump.role is Role.EXPERT and lump.il is not None and lump.place != owners[lump.il]
    }
    resent: dict[int, int] = {}
    start = 0
    for il, owner in enumerate(owners):
        if il and owner != owners[il - 1]:
            start = il
        is_last = il + 1 == len(owners) or owners[il + 1] != owner
        n_graphs = (il in stops) + (is_last and any(start <= stop <= il for stop in stops))
        if owner != HOST and n_graphs:
            resent[owner] = resent.get(owner, 0) + n_graphs * (il - start + 1)
    return resent


def count_hops(
    model: Model, placement: Places, lumps: Sequence[Lump], offloader: int | None
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
    for il, owner in enumerate(trunk_owners(model, placement)):
        hops += owner != here
        hops += 2 * len(away.get(il, set()) - {owner})
        here = owner
    return hops + (placement.split.output_owner != here)
