"""Where everything goes, and what that costs: the one value every solver produces.

`Placement` names the owner of each layer and each tensor that a rule moves.
`price` is the referee: any placement from anyone (ours, first-N, a user's own
command, `--fit`) is measured by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from offload.backend import Backend
from offload.compute import ComputeBytes, estimate_compute
from offload.context import ContextOptions
from offload.errors import UnsupportedModelError
from offload.memory import Breakdown, measure_memory
from offload.model import Model
from offload.split import HOST, LayerSplit


class Placement(NamedTuple):
    """`placed` maps each tensor that leaves its owner to a device index or HOST."""

    split: LayerSplit
    placed: Mapping[str, int]
    has_rules: bool
    """Any override at all, even one that matches nothing, switches pipeline parallelism off."""

    @property
    def host_tensors(self) -> frozenset[str]:
        """Tensors that rules send to the host."""
        return frozenset(name for name, device in self.placed.items() if device == HOST)

    @property
    def crossed(self) -> dict[str, int]:
        """Tensors of layers that rules send to another card than their layer's owner."""
        owners = self.split.owners
        return {
            name: device
            for name, device in self.placed.items()
            if device != HOST
            and name.startswith("blk.")
            and owners[int(name.split(".", 2)[1])] != device
        }


def price_compute(
    model: Model,
    context: ContextOptions,
    backends: Sequence[Backend],
    placement: Placement,
    *,
    op_offload: bool,
) -> ComputeBytes:
    """Compute bytes of every device and the host for llama-server's outputs.

    Raises UnsupportedModelError where the tensors do not fit the architecture.
    One output per slot (tools/server/server-context.cpp, `server_output_limits`, b11434).
    """
    try:
        return estimate_compute(
            model,
            context,
            placement.split,
            placement.host_tensors,
            tuple(backends),
            op_offload=op_offload,
            n_outputs=context.n_parallel,
            has_overrides=placement.has_rules,
            card_tensors=placement.crossed,
        )
    except (ArithmeticError, LookupError, StopIteration) as error:
        # a graph needs every tensor its architecture names; llama.cpp refuses such files too
        raise UnsupportedModelError(
            f"{model.path}: its tensors do not make the graph of a {model.arch} model"
            f" ({type(error).__name__}: {error}); the file is damaged, or newer than this program"
        ) from error


def price(
    model: Model,
    context: ContextOptions,
    backends: Sequence[Backend],
    placement: Placement,
    *,
    op_offload: bool,
) -> Breakdown:
    """Model, context and compute bytes of every device and the host for this placement."""
    memory = measure_memory(model, context, backends, placement.split, placement.placed)
    compute = price_compute(model, context, backends, placement, op_offload=op_offload)
    return Breakdown(
        devices=tuple(
            replace(m, compute_bytes=c)
            for m, c in zip(memory.devices, compute.devices, strict=True)
        ),
        host=replace(memory.host, compute_bytes=compute.host),
    )
