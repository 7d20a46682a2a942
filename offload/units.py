"""How sizes and rates are written by people, and how we print them.

Memory is binary as in llama.cpp's logs (`24GiB`, `24G`, `24576MiB`), bandwidth
decimal as in data sheets (`936GB/s`); `24GB` is decimal everywhere.
"""

from __future__ import annotations

import re
from typing import Final

from offload.errors import UsageError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

_FACTOR: Final = {
    "": 1, "B": 1,
    "K": 1 << 10, "KIB": 1 << 10, "KB": 10**3,
    "M": 1 << 20, "MIB": 1 << 20, "MB": 10**6,
    "G": 1 << 30, "GIB": 1 << 30, "GB": 10**9,
    "T": 1 << 40, "TIB": 1 << 40, "TB": 10**12,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"\s*(\d{1,19}(?:\.\d{1,19})?)\s*([A-Za-z]*)\s*", re.ASCII)
_SIZE_MAX_BYTES: Final = 1 << 60


def _parse(text: str, what: str, example: str) -> int:
    match = _QUANTITY.fullmatch(text)
    factor = _FACTOR.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{what} {text!r} is not a size; write it like {example}")
    number = match[1]
    value = round(float(number) * factor) if "." in number else int(number) * factor
    if value > _SIZE_MAX_BYTES:
        raise UsageError(f"{what} {text!r} is larger than any machine; write it like {example}")
    return value


def parse_size_bytes(text: str, what: str = "size") -> int:
    """Parse `24GiB`, `24G`, `24576MiB`, `24GB` or plain bytes to bytes.

    Raises UsageError naming `what` when the text is not a size.
    """
    return _parse(text, what, "24GiB, 24576MiB or 24GB")


def parse_bandwidth_bytes_per_s(text: str, what: str = "bandwidth") -> int:
    """Parse `936GB/s` (the `/s` may be left out) to bytes per second."""
    return _parse(text.removesuffix("/s"), what, "936GB/s")


def mib(n_bytes: int) -> float:
    """Bytes as MiB, the unit of llama.cpp's memory breakdown."""
    return n_bytes / MIB


def format_mib(n_bytes: int) -> str:
    """`1234 MiB`, rounded to whole MiB like llama.cpp's own table."""
    return f"{n_bytes / MIB:,.0f} MiB"


def format_gib(n_bytes: int) -> str:
    """`21.5 GiB`, one decimal."""
    return f"{n_bytes / GIB:.1f} GiB"
