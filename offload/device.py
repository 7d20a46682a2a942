"""Which cards does the user describe, and in which words?

A card is written `NAME[:SIZE[:BANDWIDTH[:LINK]]]` with llama.cpp's device names
(`ggml_backend_dev_name`, b11434). What a card's backend does with memory stands
in offload/backend.py; whole machines (devices.toml) in offload/machine.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from offload.backend import BACKENDS, CPU, Backend, backend_of, rpc_backend
from offload.errors import DeviceError, UsageError
from offload.units import GIB, MIB, parse_bandwidth_bytes_per_s, parse_size_bytes

__all__ = [
    "BACKENDS",
    "CPU",
    "DEVICES_MAX",
    "Backend",
    "Device",
    "backend_of",
    "check_devices",
    "device_by_name",
    "devices_from_flags",
    "format_device",
    "parse_device",
    "rpc_backend",
]

DEVICES_MAX: Final = 16
"""`llama_max_devices()` (src/llama.cpp, b11434): entries of a tensor split."""

_FORM: Final = "NAME:SIZE[:BANDWIDTH[:LINK]], e.g. CUDA0:24GiB:936GB/s:25GB/s"
_CARD: Final = re.compile(r"([^:\[\]]+)(?:\[([^\[\]]*)\])?(?::(.*))?", re.DOTALL)
# parse_endpoint (ggml-rpc.cpp) cuts at the first colon, so IPv6 addresses cannot be meant
_ENDPOINT: Final = re.compile(r"[^\s:,=\[\]]+:(\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One card. `buffer_type` is what `-ot` calls it; None anywhere means "not known".

    `memory_free_bytes` is what llama.cpp may use before any margin, bandwidth is that
    of the card's own memory, link that between the host and the card (one direction).
    """

    name: str
    backend: Backend
    buffer_type: str
    memory_free_bytes: int
    memory_total_bytes: int | None = None
    bandwidth_bytes_per_s: int | None = None
    link_bytes_per_s: int | None = None
    margin_bytes: int | None = None
    drives_display: bool | None = None
    description: str = ""
    endpoint: str | None = None


def rpc_servers(devices: Iterable[Device]) -> tuple[str, ...]:
    """Endpoints as `--rpc` needs them, each once, so that `RPC0`, `RPC1`, … are these cards.

    llama.cpp numbers RPC cards in the order of `--rpc`, whatever the order of `-dev`.
    """
    cards = [device for device in devices if device.endpoint is not None]
    numbers = {card.name: card.name.removeprefix("RPC") for card in cards}
    if all(number.isdecimal() for number in numbers.values()):
        cards.sort(key=lambda card: int(numbers[card.name]))
    return tuple(dict.fromkeys(card.endpoint for card in cards if card.endpoint is not None))


def parse_endpoint(text: str) -> str:
    """Check a `host:port` as llama.cpp's `--rpc` takes it; raises UsageError."""
    match = _ENDPOINT.fullmatch(text)
    if match is None or not 0 < int(match[1]) < 65536:
        raise UsageError(f"RPC endpoint {text!r} is not host:port, e.g. 127.0.0.1:50052")
    return text


def device_by_name(
    name: str, memory_free_bytes: int, *, endpoint: str | None = None, served: str | None = None
) -> Device:
    """A card about which only its llama.cpp name and free memory are known.

    The buffer type of a card behind an RPC server is `RPC<i>[host:port]`, i counting the
    devices of that server (`ggml_backend_rpc_buffer_type`); i is 0 until `check_devices`
    sees the neighbours. `served` names the backend behind the server. Raises DeviceError.
    """
    backend, name = backend_of(name)
    if backend.name != "RPC":
        if endpoint is not None or served is not None:
            raise DeviceError(f"{name} is not an RPC device and has no endpoint")
        buffer_type = backend.buffer_type_name or name
    else:
        buffer_type = f"RPC0[{endpoint}]" if endpoint else name
        if served is not None:
            if served not in BACKENDS or served == "RPC":
                raise DeviceError(f"{name}: {served!r} is not a backend an RPC server can serve")
            backend = rpc_backend(BACKENDS[served])
    return Device(
        name=name,
        backend=backend,
        buffer_type=buffer_type,
        memory_free_bytes=memory_free_bytes,
        endpoint=endpoint,
    )


def _positive(value: int, what: str, text: str) -> int:
    if value <= 0:
        raise UsageError(f"--gpu {text!r}: {what} must be more than zero")
    return value


def _can_have(device: Device, n_bytes: int) -> bool:
    """False where a described card must be another one than the found `device`."""
    return device.memory_total_bytes is not None and n_bytes <= device.memory_total_bytes


def parse_device(text: str, found: Sequence[Device] = ()) -> Device:
    """Parse `NAME[:SIZE[:BANDWIDTH[:LINK]]]`; an RPC card is `RPC0[host:port]:SIZE…`.

    Parts left out or empty are taken from the card of that name in `found`; a card
    that is not there needs its SIZE. Raises UsageError naming the flag and its form.
    """
    match = _CARD.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--gpu {text!r} is not {_FORM}")
    name, endpoint, rest = match[1].strip(), match[2], match[3] or ""
    parts = [part.strip() for part in rest.split(":")]
    if len(parts) > 3:
        hint = "; an RPC card is RPC0[host:port]:SIZE" if name.lower().startswith("rpc") else ""
        raise UsageError(f"--gpu {text!r} has too many parts for {_FORM}{hint}")
    size, bandwidth, link = (*parts, "", "", "")[:3]
    try:
        card = device_by_name(
            name, 0, endpoint=None if endpoint is None else parse_endpoint(endpoint)
        )
    except DeviceError as error:
        raise UsageError(f"--gpu {text!r}: {error}") from None
    known = next((d for d in found if d.name == card.name and endpoint in (None, d.endpoint)), card)
    if size:
        n_bytes = _positive(parse_size_bytes(size, f"size of {card.name}"), "the size", text)
        known = replace(known if _can_have(known, n_bytes) else card, memory_free_bytes=n_bytes)
    if bandwidth:
        rate = parse_bandwidth_bytes_per_s(bandwidth, f"bandwidth of {card.name}")
        known = replace(known, bandwidth_bytes_per_s=_positive(rate, "the bandwidth", text))
    if link:
        rate = parse_bandwidth_bytes_per_s(link, f"link of {card.name}")
        known = replace(known, link_bytes_per_s=_positive(rate, "the link", text))
    if not known.memory_free_bytes:
        raise UsageError(
            f"--gpu {text!r}: no {card.name} was found here, so its size is needed: {_FORM}"
        )
    return known


def check_devices(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Cards that can stand in one plan, with the buffer types of RPC cards numbered.

    Raises DeviceError for more than `llama_max_devices()` cards and for a name twice
    (several OpenCL cards share llama.cpp's name `GPUOpenCL`, which `-dev` cannot tell apart).
    """
    if len(devices) > DEVICES_MAX:
        raise DeviceError(f"{len(devices)} cards, but llama.cpp takes at most {DEVICES_MAX}")
    seen: set[str] = set()
    n_served: dict[str, int] = {}
    checked = []
    for device in devices:
        if device.name in seen:
            raise DeviceError(f"{device.name} is given twice; each card needs a name of its own")
        seen.add(device.name)
        if device.endpoint is not None:
            i_served = n_served.get(device.endpoint, 0)
            n_served[device.endpoint] = i_served + 1
            device = replace(device, buffer_type=f"RPC{i_served}[{device.endpoint}]")
        checked.append(device)
    return tuple(checked)


def _count(gpus: int | None, vram: tuple[int, ...] | None, n_rpc: int, n_found: int) -> int:
    """How many cards `--gpus`, `--vram` and `--rpc` mean together; raises UsageError."""
    if gpus is not None and not 1 <= gpus <= DEVICES_MAX:
        raise UsageError(
            f"--gpus {gpus} must be 1 to {DEVICES_MAX}; to plan for the host alone use -ngl 0"
        )
    if vram is not None and (not vram or min(vram) <= 0):
        raise UsageError("--vram needs sizes above zero, e.g. --vram 24GiB or --vram 24GiB,12GiB")
    n_vram = len(vram) if vram is not None and len(vram) > 1 else None
    wishes = {"--gpus": gpus, "--vram": n_vram, "--rpc": n_rpc or None}
    given = {flag: n for flag, n in wishes.items() if n is not None}
    if len(set(given.values())) > 1:
        listed = ", ".join(f"{flag} means {n}" for flag, n in given.items())
        raise UsageError(
            f"the number of cards differs: {listed}; give one --vram for all cards or one"
            " for each, or describe each card with --gpu"
        )
    n = next(iter(given.values()), n_found or 1)
    if n > DEVICES_MAX:
        raise UsageError(f"{n} cards are more than the {DEVICES_MAX} llama.cpp takes")
    return n


def _of_found(found: Sequence[Device], gpus: int | None, rpc: tuple[str, ...]) -> Sequence[Device]:
    """The found cards that `--gpus` and `--rpc` without any size mean; raises UsageError."""
    if rpc and not any(device.endpoint for device in found):
        raise UsageError(
            "--rpc: only llama.cpp can ask RPC servers for their memory; add --llama-server"
            " PATH, or --vram SIZE[,SIZE…] with one size for each server"
        )
    if gpus is not None and gpus > len(found):
        raise UsageError(
            f"--gpus {gpus}, but {len(found) or 'no'} cards were found here;"
            " add --vram SIZE to plan for cards that are not here"
        )
    return found[:gpus]


def devices_from_flags(
    gpus: int | None,
    vram: tuple[int, ...] | None,
    gpu: tuple[str, ...] = (),
    *,
    rpc: tuple[str, ...] = (),
    found: Sequence[Device] = (),
) -> tuple[Device, ...]:
    """The cards a plan is for: described by flags, else `found` on this machine.

    `--gpu` describes each card; `--gpus N --vram SIZE[,SIZE…]` means CUDA0..N-1 (RPC0..N-1
    with `--rpc`), except where found cards could have that memory: then it limits those.
    Returns no card when there is neither a flag nor a found card. Raises UsageError.
    """
    try:
        if gpu:
            if vram is not None or gpus not in (None, len(gpu)):
                raise UsageError(
                    f"--gpu is given {len(gpu)} times; leave --gpus and --vram out"
                    " and write each card's size as --gpu NAME:SIZE"
                )
            return check_devices([parse_device(text, found) for text in gpu])
        n = _count(gpus, vram, len(rpc), len(found))
        if vram is None:
            return check_devices(_of_found(found, gpus, rpc))
        sizes = vram if len(vram) == n else vram * n
        if rpc:
            return check_devices(
                [
                    device_by_name(f"RPC{i}", sizes[i], endpoint=parse_endpoint(endpoint))
                    for i, endpoint in enumerate(rpc)
                ]
            )
        cards = found[:n] if len(found) >= n else ()
        if cards and all(_can_have(d, s) for d, s in zip(cards, sizes, strict=True)):
            limited = zip(cards, sizes, strict=True)
            return check_devices([replace(d, memory_free_bytes=size) for d, size in limited])
        return check_devices([device_by_name(f"CUDA{i}", sizes[i]) for i in range(n)])
    except DeviceError as error:
        raise UsageError(str(error)) from None


def _exact(n: int, units: Sequence[tuple[str, int]]) -> str:
    """The shortest text that parses back to exactly `n`."""
    for suffix, factor in units:
        if n >= factor and n % factor == 0:
            return f"{n // factor}{suffix}"
    return str(n)


def format_size(n_bytes: int) -> str:
    """`24GiB`, `22528MiB` or plain bytes: what parses back to the same number."""
    return _exact(n_bytes, (("GiB", GIB), ("MiB", MIB)))


def format_bandwidth(bytes_per_s: int) -> str:
    """`936GB/s`, `15754MB/s` or plain bytes: what parses back to the same number."""
    return _exact(bytes_per_s, (("GB/s", 10**9), ("MB/s", 10**6)))


def format_device(device: Device) -> str:
    """The `--gpu` text of a card; `parse_device` reads it back."""
    name = device.name if device.endpoint is None else f"{device.name}[{device.endpoint}]"
    rates = (device.bandwidth_bytes_per_s, device.link_bytes_per_s)
    parts = [name, format_size(device.memory_free_bytes)]
    parts += ["" if rate is None else format_bandwidth(rate) for rate in rates]
    return ":".join(parts).rstrip(":")
