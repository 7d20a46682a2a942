"""Which NVIDIA cards are here, and in which order does CUDA number them? [edge]

NVML knows what llama.cpp does not print: who drives a display, how wide the
PCIe link and the memory bus are. It numbers cards by PCI address; CUDA, and so
llama.cpp's `CUDA0`, by CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES. Every query
may fail alone (old driver, lost card, missing permission): then that fact is
unknown, and nothing here raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, TypeVar

from offload.machine import Notice

_T = TypeVar("_T")

LANE_BYTES_PER_S: Final = {
    1: 250_000_000,
    2: 500_000_000,
    3: 984_615_384,  # 8 GT/s, 128b/130b
    4: 1_969_230_769,
    5: 3_938_461_538,
    6: 7_562_500_000,  # 64 GT/s, 242 of 256 bytes of a flit
}
"""What one PCIe lane carries in one direction, by generation, after line coding."""

_INIT_ADVICE: Final = {
    4: "no permission to reach the NVIDIA driver; run with access to /dev/nvidia*",
    9: "the NVIDIA driver is not loaded; try nvidia-smi",
    15: "an NVIDIA card has fallen off the bus; reboot",
    18: "the NVIDIA driver was updated while the old one is loaded; reboot",
}
_LIBRARY_NOT_FOUND: Final = 12
_NAME_MAX: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One NVIDIA card as NVML sees it. The UUID only serves CUDA_VISIBLE_DEVICES.

    `memory_total_bytes` is without what driver and firmware reserve, as in
    cudaMemGetInfo. `speed` orders unequal cards: cores times clock, 0 if unknown.
    """

    name: str
    memory_free_bytes: int
    memory_total_bytes: int
    bandwidth_bytes_per_s: int | None = None
    link_bytes_per_s: int | None = None
    drives_display: bool | None = None
    speed: int = 0
    pci_address: tuple[int, int, int] = (0, 0, 0)
    uuid: str = field(default="", repr=False)


def clean_name(text: str, n_chars: int = _NAME_MAX) -> str:
    """A text from outside, safe to print: printable, on one line, at most `n_chars` long."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:n_chars]


class _Library:
    """NVML with every failed query turned into None."""

    def __init__(self, pynvml: ModuleType) -> None:
        self.pynvml = pynvml

    def ask(self, query: str, *args: Any) -> Any:
        """The answer of one NVML query, or None where this driver or card gives none."""
        try:
            return getattr(self.pynvml, query)(*args)
        except (self.pynvml.NVMLError, AttributeError, ValueError):
            return None  # UnicodeDecodeError of a broken name is a ValueError


def _memory_bytes(nvml: _Library, handle: object) -> tuple[int, int] | None:
    """Free and total bytes; total without the reserve where the driver tells it (R510 on)."""
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle, nvml.pynvml.nvmlMemory_v2)
    reserved = memory.reserved if memory is not None else 0
    if memory is None:
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    if memory is None or memory.total <= reserved:
        return None
    total = memory.total - reserved
    return min(memory.free, total), total


def _product(*factors: int | None) -> int | None:
    result = 1
    for factor in factors:
        if not factor or factor < 0:
            return None
        result *= factor
    return result


def _bandwidth_bytes_per_s(nvml: _Library, handle: object) -> int | None:
    """Memory bus width times clock, two transfers per clock: data-sheet numbers.

    NVML's memory clock of GDDR5X, GDDR6, GDDR6X and GDDR7 cards is already scaled so that
    this holds (RTX 3090: 384 bits, 9751 MHz, 936 GB/s; H100: 5120 bits, 2619 MHz, 3352 GB/s).
    """
    bits = nvml.ask("nvmlDeviceGetMemoryBusWidth", handle)
    mhz = nvml.ask("nvmlDeviceGetMaxClockInfo", handle, nvml.pynvml.NVML_CLOCK_MEM)
    bits_per_s = _product(bits, mhz, 2, 1_000_000)
    return None if bits_per_s is None else bits_per_s // 8


def _link_bytes_per_s(nvml: _Library, handle: object) -> int | None:
    """Lanes in use times the fastest generation card and slot agree on.

    The current generation is no use: idle cards drop to generation 1. The current width is,
    since a x16 card in a x4 slot stays at 4.
    """
    generation = nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", handle)
    width = width or nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle)
    return _product(width, LANE_BYTES_PER_S.get(generation or 0))


def _drives_display(nvml: _Library, handle: object) -> bool | None:
    """True if a screen is attached or the card is set up for one; None if neither is told."""
    answers = [
        nvml.ask("nvmlDeviceGetDisplayActive", handle),
        nvml.ask("nvmlDeviceGetDisplayMode", handle),
    ]
    known = [bool(answer) for answer in answers if answer is not None]
    return any(known) if known else None


def _pci_address(nvml: _Library, handle: object, i: int) -> tuple[int, int, int]:
    pci = nvml.ask("nvmlDeviceGetPciInfo", handle)
    return (0, 0, i) if pci is None else (pci.domain, pci.bus, pci.device)


def _read_card(nvml: _Library, i: int) -> Card | Notice:
    """Card number i, or why it cannot be planned for."""
    try:
        handle = nvml.pynvml.nvmlDeviceGetHandleByIndex(i)
    except nvml.pynvml.NVMLError as error:
        return Notice(
            code="nvml-card",
            text=f"NVIDIA card {i} does not answer ({_reason(error)}) and is left out",
        )
    name = clean_name(nvml.ask("nvmlDeviceGetName", handle) or "") or "NVIDIA card"
    mig = nvml.ask("nvmlDeviceGetMigMode", handle)
    if mig is not None and mig[0] == 1:
        return Notice(
            code="nvml-mig",
            text=f"NVIDIA card {i} ({name}) is cut into MIG slices and is left out;"
            " describe the slice to use with --gpu CUDA0:SIZE",
        )
    memory = _memory_bytes(nvml, handle)
    if memory is None:
        return Notice(
            code="nvml-memory",
            text=f"NVIDIA card {i} ({name}) does not tell its memory and is left out;"
            f" describe it with --gpu CUDA{i}:SIZE",
        )
    cores = nvml.ask("nvmlDeviceGetNumGpuCores", handle)
    clock = nvml.ask("nvmlDeviceGetMaxClockInfo", handle, nvml.pynvml.NVML_CLOCK_SM)
    return Card(
        name=name,
        memory_free_bytes=memory[0],
        memory_total_bytes=memory[1],
        bandwidth_bytes_per_s=_bandwidth_bytes_per_s(nvml, handle),
        link_bytes_per_s=_link_bytes_per_s(nvml, handle),
        drives_display=_drives_display(nvml, handle),
        speed=_product(cores, clock) or 0,
        pci_address=_pci_address(nvml, handle, i),
        uuid=nvml.ask("nvmlDeviceGetUUID", handle) or "",
    )


def _reason(error: Exception) -> str:
    """NVML's own words for an error, without trusting them to be printable."""
    try:
        return clean_name(str(error)).rstrip(".")
    except ValueError:
        return f"NVML error {getattr(error, 'value', '')}"


def _read_all(nvml: _Library) -> tuple[tuple[Card, ...], tuple[Notice, ...]]:
    count = nvml.ask("nvmlDeviceGetCount")
    if count is None:
        text = "the NVIDIA driver does not say how many cards there are; try nvidia-smi"
        return (), (Notice(code="nvml", text=text),)
    results = [_read_card(nvml, i) for i in range(min(count, 64))]
    cards = [r for r in results if isinstance(r, Card)]
    notices = tuple(r for r in results if isinstance(r, Notice))
    return tuple(sorted(cards, key=lambda card: card.pci_address)), notices


def read_cards() -> tuple[tuple[Card, ...], tuple[Notice, ...]]:
    """All NVIDIA cards by PCI address, and what kept some or all of them from being read.

    A machine without NVIDIA's library has no such cards and nothing to be told.
    """
    import importlib  # pynvml carries no types, and costs 30 ms that plans by hand can save

    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        text = "NVIDIA cards cannot be seen without the nvidia-ml-py package"
        return (), (Notice(code="nvml-package", text=text),)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        code = getattr(error, "value", None)
        if code == _LIBRARY_NOT_FOUND:
            return (), ()
        advice = _INIT_ADVICE.get(code or 0, f"{_reason(error)}; try nvidia-smi")
        return (), (Notice(code="nvml", text=f"NVIDIA cards cannot be read: {advice}"),)
    try:
        return _read_all(_Library(pynvml))
    finally:
        _Library(pynvml).ask("nvmlShutdown")


def _fastest_first(
    cards: Sequence[Card], environ: Mapping[str, str]
) -> tuple[list[Card], list[Notice]]:
    """Cards in CUDA's order before CUDA_VISIBLE_DEVICES.

    CUDA's default puts the card it thinks fastest first and promises nothing about the rest;
    equal cards keep their PCI order, and for unequal ones cores times clock is our guess.
    """
    equal = len({(card.name, card.memory_total_bytes) for card in cards}) <= 1
    if equal or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return list(cards), []
    text = (
        "CUDA numbers unequal cards by its own idea of speed, so which is CUDA0 is a guess here;"
        " set CUDA_DEVICE_ORDER=PCI_BUS_ID for offload and llama-server alike, or give"
        " --llama-server PATH"
    )
    ordered = sorted(cards, key=lambda card: -card.speed)
    return ordered, [Notice(code="cuda-order", text=text)]


def _leading_int(text: str) -> int:
    """The number a text starts with, as strtol reads it; -1 for none."""
    digits = text.strip().removeprefix("+")
    n = next((i for i, c in enumerate(digits) if c not in "0123456789"), len(digits))
    return int(digits[:n]) if 0 < n < 10 else -1


def _pick(items: Sequence[str], find: Callable[[str], _T | None]) -> list[_T]:
    """The items found, up to the first that is not; none at all if one is named twice."""
    picked: list[_T] = []
    for item in items:
        card = find(item)
        if card is None:
            break
        if card in picked:
            return []
        picked.append(card)
    return picked


def cuda_order(
    cards: Sequence[Card], environ: Mapping[str, str]
) -> tuple[tuple[Card, ...], tuple[Notice, ...]]:
    """The cards a CUDA program started with `environ` sees, in its order.

    CUDA_VISIBLE_DEVICES lists numbers or unique beginnings of UUIDs (`GPU-…`); the list ends
    at the first entry that names no card, empty means no card, and naming one twice hides all.
    """
    ordered, notices = _fastest_first(cards, environ)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(ordered), tuple(notices)

    def by_number(item: str) -> Card | None:
        number = _leading_int(item)
        return ordered[number] if 0 <= number < len(ordered) else None

    def by_uuid(item: str) -> Card | None:
        item = item.strip().lower()
        named = [c for c in ordered if item.startswith("gpu-") and c.uuid.lower().startswith(item)]
        return named[0] if len(named) == 1 else None

    is_uuid = visible.strip()[:4].upper() in ("GPU-", "MIG-")
    picked = _pick(visible.split(","), by_uuid if is_uuid else by_number)
    if is_uuid or not picked:
        notices = []  # their order was not a guess
    if len(picked) < len(cards):
        text = f"CUDA_VISIBLE_DEVICES hides {len(cards) - len(picked)} of {len(cards)} NVIDIA cards"
        notices.append(Notice(code="cuda-visible", text=text))
    return tuple(picked), tuple(notices)
