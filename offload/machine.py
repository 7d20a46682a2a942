"""How is a whole machine written down: devices.toml to values and back?

    [[card]]
    name = "CUDA0"            # as llama-server --list-devices calls it
    memory = "22.5GiB"        # free for llama.cpp, before any margin
    bandwidth = "616GB/s"     # of the card's own memory
    link = "15.75GB/s"        # between host and card, one direction
    [host]
    memory = "120GiB"
    bandwidth = "105GB/s"
    cores = 32

Everything but a card's name and memory may be left out; docs/devices.md lists
all keys. The file names no host and no user; an RPC card keeps the endpoint it
was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from offload.device import (
    Device,
    check_devices,
    device_by_name,
    format_bandwidth,
    format_size,
    parse_endpoint,
)
from offload.errors import DeviceError, UsageError
from offload.units import parse_bandwidth_bytes_per_s, parse_size_bytes

_TEXT_MAX: Final = 1 << 20


class Host(NamedTuple):
    """The machine's own memory and processors; None means "not known"."""

    memory_available_bytes: int | None = None
    memory_total_bytes: int | None = None
    bandwidth_bytes_per_s: int | None = None
    n_cores_physical: int | None = None


class Notice(NamedTuple):
    """Something the user should know: a stable `code` for scripts and a text for people."""

    code: str
    text: str


class Machine(NamedTuple):
    """Cards in llama.cpp's order, the host, and what could not be found out."""

    devices: tuple[Device, ...] = ()
    host: Host = Host()
    warnings: tuple[Notice, ...] = ()


class _Table:
    """One TOML table whose every key must be asked for; errors name table and key."""

    def __init__(self, table: object, where: str) -> None:
        if not isinstance(table, dict):
            raise DeviceError(f"{where} must be a table of keys")
        self._rest: dict[str, Any] = dict(table)
        self.where = where

    def text(self, key: str) -> str | None:
        value = self._rest.pop(key, None)
        if value is not None and not isinstance(value, str):
            raise DeviceError(f'{self.where}: {key} must be text in quotes, e.g. {key} = "…"')
        return value

    def flag(self, key: str) -> bool | None:
        value = self._rest.pop(key, None)
        if value is not None and not isinstance(value, bool):
            raise DeviceError(f"{self.where}: {key} must be true or false")
        return value

    def count(self, key: str) -> int | None:
        value = self._rest.pop(key, None)
        if value is not None and (type(value) is not int or not 0 < value <= 1 << 20):
            raise DeviceError(f"{self.where}: {key} must be a whole number above zero")
        return value

    def quantity(
        self, key: str, parse: Callable[[str, str], int], *, minimum: int = 1
    ) -> int | None:
        value = self._rest.pop(key, None)
        if value is None:
            return None
        if type(value) is int:
            value = str(min(value, 1 << 61))  # too much already, and short enough for str()
        if not isinstance(value, str):
            raise DeviceError(f'{self.where}: {key} must be a size in quotes, e.g. "24GiB"')
        try:
            parsed = parse(value, key)
        except UsageError as error:
            raise DeviceError(f"{self.where}: {error}") from None
        if parsed < minimum:
            raise DeviceError(f"{self.where}: {key} must be more than zero")
        return parsed

    def finish(self, known: str) -> None:
        if self._rest:
            raise DeviceError(f"{self.where}: unknown key {min(self._rest)!r}; known are {known}")


def _parse_card(table: _Table) -> Device:
    name = table.text("name")
    memory = table.quantity("memory", parse_size_bytes)
    if name is None or memory is None:
        missing = "name" if name is None else "memory"
        raise DeviceError(f"{table.where}: {missing} is missing")
    endpoint = table.text("endpoint")
    try:
        device = device_by_name(
            name,
            memory,
            endpoint=None if endpoint is None else parse_endpoint(endpoint),
            served=table.text("serves"),
        )
    except (DeviceError, UsageError) as error:
        raise DeviceError(f"{table.where}: {error}") from None
    device = replace(
        device,
        memory_total_bytes=table.quantity("memory_total", parse_size_bytes),
        bandwidth_bytes_per_s=table.quantity("bandwidth", parse_bandwidth_bytes_per_s),
        link_bytes_per_s=table.quantity("link", parse_bandwidth_bytes_per_s),
        margin_bytes=table.quantity("margin", parse_size_bytes, minimum=0),
        drives_display=table.flag("display"),
        description=table.text("description") or "",
    )
    table.finish(
        "name, memory, memory_total, bandwidth, link, margin, display, description,"
        " endpoint and serves"
    )
    return device


def _parse_host(table: _Table) -> Host:
    host = Host(
        memory_available_bytes=table.quantity("memory", parse_size_bytes),
        memory_total_bytes=table.quantity("memory_total", parse_size_bytes),
        bandwidth_bytes_per_s=table.quantity("bandwidth", parse_bandwidth_bytes_per_s),
        n_cores_physical=table.count("cores"),
    )
    table.finish("memory, memory_total, bandwidth and cores")
    return host


def machine_of_document(document: Mapping[str, object]) -> Machine:
    """The machine a parsed devices.toml (or its like in JSON) describes; raises DeviceError."""
    top = dict(document)
    cards = top.pop("card", [])
    if not isinstance(cards, list):
        raise DeviceError("cards are written as [[card]], with two brackets")
    devices = [_parse_card(_Table(card, f"card {i + 1}")) for i, card in enumerate(cards)]
    host = _parse_host(_Table(top.pop("host", {}), "host"))
    if top:
        raise DeviceError(f"unknown table {min(top)!r}; known are [[card]] and [host]")
    return Machine(devices=check_devices(devices), host=host)


def parse_machine(text: str, path: str = "devices.toml") -> Machine:
    """The machine a devices.toml describes; raises DeviceError naming file, table and key."""
    import tomllib  # only users of the file pay for the parser

    try:
        if len(text) > _TEXT_MAX:
            raise DeviceError("larger than any description of a machine")
        try:
            document: Mapping[str, object] = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: also a number too long
            raise DeviceError(f"not TOML: {error}") from None
        return machine_of_document(document)
    except DeviceError as error:
        raise DeviceError(f"{path}: {error}") from None


def _size(n_bytes: int | None) -> str | None:
    return None if n_bytes is None else format_size(n_bytes)


def _rate(bytes_per_s: int | None) -> str | None:
    return None if bytes_per_s is None else format_bandwidth(bytes_per_s)


def _known(table: dict[str, str | int | bool | None]) -> dict[str, str | int | bool]:
    return {key: value for key, value in table.items() if value is not None}


def machine_to_document(machine: Machine) -> dict[str, Any]:
    """What `machine_of_document` reads the same machine from; keys as in devices.toml."""
    host = machine.host
    return {
        "card": [
            _known(
                {
                    "name": card.name,
                    "description": card.description or None,
                    "endpoint": card.endpoint,
                    "serves": card.backend.serves or None,
                    "memory": _size(card.memory_free_bytes),
                    "memory_total": _size(card.memory_total_bytes),
                    "bandwidth": _rate(card.bandwidth_bytes_per_s),
                    "link": _rate(card.link_bytes_per_s),
                    "margin": _size(card.margin_bytes),
                    "display": card.drives_display,
                }
            )
            for card in machine.devices
        ],
        "host": _known(
            {
                "memory": _size(host.memory_available_bytes),
                "memory_total": _size(host.memory_total_bytes),
                "bandwidth": _rate(host.bandwidth_bytes_per_s),
                "cores": host.n_cores_physical,
            }
        ),
    }


def _toml(value: str | int | bool) -> str:
    """A TOML basic string or number; control characters, which no card needs, become spaces."""
    if not isinstance(value, str):
        return str(value).lower()
    clean = "".join(c if c.isprintable() else " " for c in value)
    return '"' + clean.replace("\\", "\\\\").replace('"', '\\"') + '"'


def render_machine(machine: Machine) -> str:
    """The devices.toml of a machine; `parse_machine` reads the same machine back."""
    document = machine_to_document(machine)
    lines: list[str] = []
    for card in document["card"]:
        lines += ["[[card]]", *(f"{key} = {_toml(value)}" for key, value in card.items()), ""]
    lines += ["[host]", *(f"{key} = {_toml(value)}" for key, value in document["host"].items())]
    return "\n".join(lines) + "\n"
