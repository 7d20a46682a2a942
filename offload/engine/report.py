"""What did llama.cpp put where? The answer of a dry run and of a real run alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offload.engine.log import LoadLog, parse_log


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferMemory:
    """llama.cpp's three numbers for one device, or for one buffer type of the host."""

    name: str
    buffer_type: str
    model_bytes: int
    context_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        """All three together."""
        return self.model_bytes + self.context_bytes + self.compute_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTensor:
    """A tensor llama.cpp created; a tied output appears a second time as `token_embd.weight`."""

    name: str
    buffer_type: str
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Memory per device as `common_memory_breakdown_print` counts it, and what went where.

    `host` sums the host's plain and pinned buffers, as llama-fit-params' Host row
    does; `extra` are buffer types of neither (repacked weights: `CPU_REPACK`).
    `is_exact` says whether the bytes are exact or MiB rounded down. `layers[il]` is
    the device of layer il, the output layer last. `tensors` is empty where only the
    log was there to read.
    """

    devices: tuple[BufferMemory, ...]
    host: BufferMemory
    extra: tuple[BufferMemory, ...]
    is_exact: bool
    tensors: tuple[PlacedTensor, ...]
    log: LoadLog
    lines: tuple[str, ...]

    @property
    def layers(self) -> tuple[str, ...]:
        """Device of every layer, the output layer last."""
        return self.log.layers

    @property
    def overridden(self) -> Mapping[str, str]:
        """Tensors a rule matched, and the buffer type each got."""
        return self.log.overridden

    @property
    def host_bytes(self) -> int:
        """Everything on the host, repacked weights included."""
        return self.host.total_bytes + sum(e.total_bytes for e in self.extra)

    def tensors_on_host(self) -> frozenset[str]:
        """Names of the tensors that no device holds."""
        on_cards = {device.buffer_type for device in self.devices}
        return frozenset(t.name for t in self.tensors if t.buffer_type not in on_cards)


def report_from_reply(reply: Mapping[str, Any], lines: Sequence[str]) -> LoadReport:
    """The report a child's reply and log make."""
    on_host = [b for b in reply["buffers"] if b["is_host"]]
    by_device: dict[str, list[Mapping[str, Any]]] = {d["name"]: [] for d in reply["devices"]}
    extra: list[Mapping[str, Any]] = []
    for buffer in reply["buffers"]:
        if not buffer["is_host"]:
            by_device.get(buffer["device"], extra).append(buffer)
    return LoadReport(
        devices=tuple(
            _sum(device["name"], device["buffer_type"], by_device[device["name"]])
            for device in reply["devices"]
        ),
        host=_sum("CPU", "CPU", on_host),
        extra=tuple(_sum(b["buffer_type"], b["buffer_type"], [b]) for b in extra),
        is_exact=True,
        tensors=tuple(
            PlacedTensor(name=name, buffer_type=buffer_type, n_bytes=n_bytes)
            for name, buffer_type, n_bytes in reply["tensors"]
        ),
        log=parse_log(lines),
        lines=tuple(lines),
    )


def _sum(name: str, buffer_type: str, buffers: Sequence[Mapping[str, Any]]) -> BufferMemory:
    return BufferMemory(
        name=name,
        buffer_type=buffer_type,
        model_bytes=sum(b["model_bytes"] for b in buffers),
        context_bytes=sum(b["context_bytes"] for b in buffers),
        compute_bytes=sum(b["compute_bytes"] for b in buffers),
    )
