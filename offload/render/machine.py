"""Cards and host as `offload devices` shows them; no host or user names, no serials."""

from __future__ import annotations

from typing import Any

from offload.machine import Machine
from offload.render.plan_json import SCHEMA_VERSION
from offload.render.text import printable, render_columns
from offload.units import format_gib


def machine_to_json(machine: Machine) -> dict[str, Any]:
    """The object `offload devices -o json` prints; null means "not known"."""
    return {
        "schema_version": SCHEMA_VERSION,
        "devices": [
            {
                "name": card.name,
                "description": card.description,
                "backend": card.backend.name,
                "buffer_type": card.buffer_type,
                "memory_free_bytes": card.memory_free_bytes,
                "memory_total_bytes": card.memory_total_bytes,
                "bandwidth_bytes_per_s": card.bandwidth_bytes_per_s,
                "link_bytes_per_s": card.link_bytes_per_s,
                "drives_display": card.drives_display,
            }
            for card in machine.devices
        ],
        "host": {
            "memory_available_bytes": machine.host.memory_available_bytes,
            "memory_total_bytes": machine.host.memory_total_bytes,
            "bandwidth_bytes_per_s": machine.host.bandwidth_bytes_per_s,
            "n_cores_physical": machine.host.n_cores_physical,
        },
        "warnings": [{"code": w.code, "text": w.text} for w in machine.warnings],
    }


def _size(n_bytes: int | None) -> str:
    return "?" if n_bytes is None else format_gib(n_bytes)


def _rate(bytes_per_s: int | None) -> str:
    return "?" if bytes_per_s is None else f"{bytes_per_s / 1e9:.1f} GB/s"


def render_devices(machine: Machine) -> str:
    """The same as a table."""
    rows = [("card", "free", "total", "memory", "link", "display", "")]
    for card in machine.devices:
        shows = {True: "yes", False: "no", None: "?"}[card.drives_display]
        rows.append(
            (
                card.name,
                _size(card.memory_free_bytes),
                _size(card.memory_total_bytes),
                _rate(card.bandwidth_bytes_per_s),
                _rate(card.link_bytes_per_s),
                shows,
                printable(card.description),
            )
        )
    host = machine.host
    rows.append(
        (
            "host",
            _size(host.memory_available_bytes),
            _size(host.memory_total_bytes),
            _rate(host.bandwidth_bytes_per_s),
            "",
            "",
            f"{host.n_cores_physical or '?'} cores",
        )
    )
    return "\n".join(render_columns(rows, "<>>>><<"))
