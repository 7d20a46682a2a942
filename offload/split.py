"""Which device owns which layer, exactly as llama.cpp decides it?

Mirrors `llama_model_base::load_tensors` in src/llama-model.cpp (b11434): the
`n_layer + 1` units (every block of the file, MTP blocks included, then the
output layer) go to the first device whose cumulated share exceeds the unit's
position, all in float32. A layer's KV cache and recurrent state follow its
owner; tensor overrides never move ownership.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from offload.errors import UsageError

HOST: Final = -1
"""The owner index of layers that stay on the host."""

_FLOAT32: Final = Struct("<f")


def _f32(value: float) -> float:
    """Round to the nearest float32, as every C++ `float` assignment does."""
    return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])


class LayerSplit(NamedTuple):
    """`owners[il]` is the device index of layer `il` or HOST; the last is the output layer's."""

    owners: tuple[int, ...]

    @property
    def n_layer(self) -> int:
        """Repeating layers, the output layer not counted."""
        return len(self.owners) - 1

    @property
    def output_owner(self) -> int:
        """Device index of the output layer, or HOST."""
        return self.owners[-1]

    @property
    def n_gpu_layers(self) -> int:
        """Units on devices: the `-ngl` that gives this split."""
        return sum(owner != HOST for owner in self.owners)

    def layers_of(self, device: int) -> tuple[int, ...]:
        """Repeating layers whose attention and KV `device` owns (HOST for the host)."""
        return tuple(il for il, owner in enumerate(self.owners[:-1]) if owner == device)

    def counts(self, n_devices: int) -> tuple[int, ...]:
        """Units per device; as `-ts` these counts reproduce the split exactly."""
        counts = [0] * n_devices
        for owner in self.owners:
            if owner != HOST:
                counts[owner] += 1
        return tuple(counts)


def split_layers(n_layer: int, n_gpu_layers: int, tensor_split: Sequence[float]) -> LayerSplit:
    """Assign `n_layer` blocks and the output layer to `len(tensor_split)` devices.

    `n_gpu_layers` below zero means all, as llama.cpp's `-ngl -1` does. Shares
    need not sum to one; an all-zero list is refused because llama.cpp then
    splits by the memory that happens to be free, which no plan can reproduce.
    """
    n_units = n_layer + 1
    if n_gpu_layers < 0:
        n_gpu_layers = n_units
    n_active = min(n_gpu_layers, n_units) if tensor_split else 0
    if n_active == 0:
        return LayerSplit(owners=(HOST,) * n_units)
    ends = _cumulated_shares(tensor_split)
    start = n_units - n_active
    owners = [HOST] * start
    for unit in range(n_active):
        owners.append(bisect_right(ends, _f32(_f32(unit) / _f32(n_active))))
    return LayerSplit(owners=tuple(owners))


def _cumulated_shares(tensor_split: Sequence[float]) -> list[float]:
    ends: list[float] = []
    total = 0.0
    for share in tensor_split:
        if not 0 <= share < 3e38:
            raise UsageError(f"-ts {share}: a share must be a number of 0 or more")
        total = _f32(total + _f32(share))
        ends.append(total)
    if total == 0:
        raise UsageError("-ts: all shares are 0; give at least one card a share")
    return [_f32(end / total) for end in ends]


def split_by_counts(n_layer: int, counts: Sequence[int]) -> LayerSplit:
    """The split in which device d owns `counts[d]` consecutive units and the host the rest first.

    `counts` may sum to less than `n_layer + 1`; the missing units are the first
    layers and stay on the host. Raises UsageError when they sum to more.
    """
    n_active = sum(counts)
    if n_active > n_layer + 1:
        raise UsageError(f"-ts {tuple(counts)} places {n_active} of {n_layer + 1} units")
    owners = [HOST] * (n_layer + 1 - n_active)
    for device, count in enumerate(counts):
        owners += [device] * count
    return LayerSplit(owners=tuple(owners))
