"""What is this machine: its cards, its memory, its cores? [edge]

Two witnesses: llama.cpp's own device list (names, free memory, every vendor)
and NVML (display, PCIe link, memory bus, NVIDIA only). Where both speak about
one card, names and memory are llama.cpp's and the rest is NVML's. The order is
the one llama.cpp takes without `-dev` (`llama_prepare_model_devices`,
src/llama.cpp, b11434): RPC servers, then cards, integrated ones only alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from offload.device import DEVICES_MAX, Device, check_devices, device_by_name, parse_endpoint
from offload.device_list import TIMEOUT_S, ListedDevice, read_device_list
from offload.errors import DeviceError, LlamaCppError, UsageError
from offload.host import probe_host
from offload.machine import Machine, Notice, parse_machine
from offload.nvml import Card, cuda_order, read_cards

_ACCELERATORS: Final = ("BLAS", "ZenDNN", "zDNN")
"""Listed by llama.cpp, but they own no layers (GGML_BACKEND_DEVICE_TYPE_ACCEL)."""

_INTEGRATED: Final = re.compile(
    r"Intel\(R\) ((UHD|HD|Iris\(R\)( Xe| Pro| Plus)?|Arc\(TM\)) )?Graphics"
    r"|Arc\(TM\) 1[34]0[VT]"
    r"|Radeon(\(TM\))? (Graphics|Vega \d+|[678]\d0M|80[456]0S)"
    r"|RADV (RAVEN|RENOIR|CEZANNE|REMBRANDT|PHOENIX|RAPHAEL|STRIX|GFX115)",
    re.IGNORECASE,
)
"""Names of graphics inside processors; the list does not tell them from cards."""

_TEXT_MAX: Final = 1 << 20
"""Characters of a devices.toml that are read; a real one has a few hundred."""

_TOLERANCE: Final = 0.1
"""Two reports of one card's memory differ by what each counts as reserved."""


def no_cards_text(llama_server: str | None = None) -> str:
    """What to tell someone on whose machine no card was found: how to describe cards by hand."""
    asked = (
        f"{llama_server} --list-devices names none"
        if llama_server
        else "no llama-server was there to ask about AMD, Intel or Apple cards"
        " (--llama-server PATH)"
    )
    return (
        f"No cards found: no NVIDIA driver answered, and {asked}.\n"
        "Plan for the cards you have in mind by describing them:\n"
        "  offload plan MODEL --gpus 2 --vram 24GiB\n"
        "  offload plan MODEL --gpu CUDA0:24GiB:936GB/s:25GB/s --gpu CUDA1:12GiB:360GB/s:12GB/s\n"
        "NAME is llama.cpp's (CUDA0, ROCm0, Vulkan0, SYCL0, MTL0, RPC0[host:port]); SIZE is the\n"
        "free memory, then memory bandwidth and link to the host, both optional."
    )


def _with_facts(device: Device, card: Card) -> Device:
    return replace(
        device,
        bandwidth_bytes_per_s=card.bandwidth_bytes_per_s,
        link_bytes_per_s=card.link_bytes_per_s,
        drives_display=card.drives_display,
    )


def _devices_of_cards(cards: Sequence[Card]) -> tuple[Device, ...]:
    """NVML's word alone: the cards are CUDA0, CUDA1, … in CUDA's order."""
    return tuple(
        _with_facts(
            replace(
                device_by_name(f"CUDA{i}", card.memory_free_bytes),
                memory_total_bytes=card.memory_total_bytes,
                description=card.name,
            ),
            card,
        )
        for i, card in enumerate(cards)
    )


def _is_close(a_bytes: int, b_bytes: int) -> bool:
    return abs(a_bytes - b_bytes) <= _TOLERANCE * max(a_bytes, b_bytes)


def _device_of_listed(listed: ListedDevice) -> Device | Notice | None:
    """The device of one line; None for what owns no layers by design."""
    if listed.name.startswith(_ACCELERATORS):
        return None
    is_rpc = listed.name.startswith("RPC")  # whose description is the endpoint
    try:
        endpoint = parse_endpoint(listed.description) if is_rpc else None
        device = device_by_name(listed.name, listed.memory_free_bytes, endpoint=endpoint)
    except (DeviceError, UsageError) as error:
        return Notice(code="device-unknown", text=f"left out: {error}")
    if listed.memory_free_bytes == 0:
        text = f"{device.name} reports no free memory and is left out"
        return Notice(code="device-full", text=text)
    # builds that took a card for unified memory listed the host's free memory as the card's
    free_bytes = min(listed.memory_free_bytes, listed.memory_total_bytes or 1 << 60)
    return replace(
        device,
        memory_free_bytes=free_bytes,
        memory_total_bytes=listed.memory_total_bytes or None,
        description="RPC server" if is_rpc else listed.description,
    )


def _match_card(device: Device, cards: Sequence[Card]) -> Card | None:
    """The card of this name and memory; the exact name before one that only starts alike."""
    alike = [
        card
        for card in cards
        if device.description.startswith(card.name)
        and _is_close(device.memory_total_bytes or 0, card.memory_total_bytes)
    ]
    return min(alike, key=lambda card: -len(card.name), default=None)


def _all_with_facts(
    devices: Sequence[Device], cards: Sequence[Card], visible: Sequence[Card]
) -> list[Device]:
    """Give each device the facts of the NVML card it is; each card serves once per backend.

    CUDA's devices are among the `visible` cards, in CUDA's order; others may be any card.
    """
    left: dict[str, list[Card]] = {"CUDA": list(visible), "RPC": []}
    known = []
    for device in devices:
        rest = left.setdefault(device.backend.name, list(cards))
        card = _match_card(device, rest)
        if card is not None:
            rest.remove(card)
            device = _with_facts(device, card)
        known.append(device)
    return known


def _is_twin(a: Device, b: Device) -> bool:
    """Two backends' names for one card, which llama.cpp itself knows by its PCI address."""
    if a.backend == b.backend or a.endpoint or b.endpoint:
        return False
    one, other = sorted((a.description.lower(), b.description.lower()), key=len)
    is_same_size = _is_close(a.memory_total_bytes or 0, b.memory_total_bytes or 0)
    return bool(one) and one in other and is_same_size


def _without_twins(devices: Sequence[Device]) -> tuple[list[Device], list[Notice]]:
    kept: list[Device] = []
    twins: set[tuple[str, str]] = set()
    notices = []
    for device in devices:
        twin = next(
            (d for d in kept if _is_twin(d, device) and (d.name, device.backend.name) not in twins),
            None,
        )
        if twin is not None:
            twins.add((twin.name, device.backend.name))
            text = f"{device.name} is {twin.name} through another backend and is left out"
        elif any(d.name == device.name for d in kept):
            text = f"a second {device.name} is left out: -dev cannot tell them apart"
        else:
            kept.append(device)
            continue
        notices.append(Notice(code="device-twin", text=text))
    return kept, notices


def _in_llama_order(devices: Sequence[Device]) -> tuple[list[Device], list[Notice]]:
    """RPC servers first, integrated cards only where there is no other local card."""
    rpc = [d for d in devices if d.backend.name == "RPC"]
    local = [d for d in devices if d.backend.name != "RPC"]
    integrated = [d for d in local if _INTEGRATED.search(d.description)]
    discrete = [d for d in local if d not in integrated]
    if not discrete or not integrated:
        return rpc + local, []
    names = ", ".join(d.name for d in integrated)
    text = f"{names}: integrated graphics, which llama.cpp leaves out beside other cards"
    return rpc + discrete, [Notice(code="device-integrated", text=text)]


def devices_of_list(
    listed: Sequence[ListedDevice], cards: Sequence[Card], visible: Sequence[Card]
) -> tuple[tuple[Device, ...], tuple[Notice, ...]]:
    """Merge llama.cpp's list with NVML's facts about the same cards (`visible`: to CUDA)."""
    results = [_device_of_listed(line) for line in listed]
    notices = [r for r in results if isinstance(r, Notice)]
    devices = [r for r in results if isinstance(r, Device)]
    devices = _all_with_facts(devices, cards, visible)
    if visible and all(d.backend.name == "RPC" for d in devices):
        text = (
            f"this llama.cpp sees none of the {len(visible)} NVIDIA cards here;"
            " it was probably built without CUDA and Vulkan"
        )
        notices.append(Notice(code="llama-cpp-without-gpu", text=text))
    devices, more = _without_twins(devices)
    notices += more
    devices, more = _in_llama_order(devices)
    notices += more
    if len(devices) > DEVICES_MAX:
        text = f"only the first {DEVICES_MAX} of {len(devices)} cards are used, as llama.cpp does"
        notices.append(Notice(code="device-count", text=text))
    return check_devices(devices[:DEVICES_MAX]), tuple(notices)


def _display_notices(devices: Sequence[Device]) -> list[Notice]:
    return [
        Notice(
            code="display",
            text=f"{device.name} drives a display, whose programs take card memory as they come"
            " and go; consider a larger --margin for it",
        )
        for device in devices
        if device.drives_display
    ]


def find_llama_server() -> str | None:
    """The llama-server on PATH, by its bare name, which is also what plans print."""
    import shutil

    return "llama-server" if shutil.which("llama-server") else None


def probe_machine(
    llama_server: str | None = None,
    rpc: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Machine:
    """Cards, host memory and cores of this machine.

    `llama_server` (else the one on PATH) is asked for its devices, with the RPC servers of
    `rpc` added. A binary that was named, or is needed for `rpc`, must answer: LlamaCppError,
    or DeviceError where there is none. One merely found is only warned about.
    """
    import os

    environ = os.environ if environ is None else environ
    for endpoint in rpc:
        parse_endpoint(endpoint)
    cards, notices = read_cards()
    visible, order_notices = cuda_order(cards, environ)
    devices = _devices_of_cards(visible[:DEVICES_MAX])
    binary = llama_server or find_llama_server()
    if rpc and binary is None:
        raise DeviceError(
            "--rpc: only llama.cpp can ask RPC servers for their memory; add --llama-server PATH"
            " or describe them with --gpu 'RPC0[host:port]:SIZE'"
        )
    if binary is not None:
        try:
            listed = read_device_list(binary, rpc, timeout_s=timeout_s)
            devices, told = devices_of_list(listed, cards, visible)
            # with llama.cpp's list the order is known; what is hidden stays worth saying
            order_notices = (*(n for n in order_notices if n.code != "cuda-order"), *told)
        except LlamaCppError as error:
            if llama_server or rpc:
                raise
            notices = (*notices, Notice(code="llama-cpp", text=str(error)))
    warnings = (*notices, *order_notices, *_display_notices(devices))
    return Machine(devices=devices, host=probe_host(), warnings=warnings)


def read_machine(path: str | Path) -> Machine:
    """Read a devices.toml; raises DeviceError naming the file."""
    try:
        if not Path(path).is_file():
            raise DeviceError(f"{path}: no such file, or not a file")
        with open(path, encoding="utf-8") as file:
            text = file.read(_TEXT_MAX)
    except OSError as error:
        raise DeviceError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DeviceError(f"{path}: not a text file") from None
    return parse_machine(text, str(path))
