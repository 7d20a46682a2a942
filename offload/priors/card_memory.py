"""How much memory does a card of this name have, where there is only one kind of it?

GiB as the vendor sells them; cards sold with several sizes, those whose error correction takes
a part, and unified memory are left out, and their size has to be said. From the pages that
offload/priors/cards.py names.
"""

from __future__ import annotations

from typing import Final

from offload.priors.cards import card_name
from offload.units import GIB

_TEXT: Final = """
4: GTX 1650
6: GTX 1660, GTX 1660 Super, GTX 1660 Ti
8: GTX 1070, GTX 1070 Ti, GTX 1080, RTX 2060 Super, RTX 2070, RTX 2070 Super, RTX 2080
8: RTX 2080 Super, Quadro RTX 4000, RTX 3060 Ti, RTX 3070, RTX 3070 Ti, RTX 4060, RTX 5050
8: RTX 5060, RX 5700 XT, RX 6600, RX 6600 XT, RX 7600, Arc A750
10: RTX 3080, Arc B570
11: GTX 1080 Ti, RTX 2080 Ti
12: RTX 3060, RTX 3080 Ti, RTX 4070, RTX 4070 Super, RTX 4070 Ti, RTX 5070, RX 6700 XT
12: RX 6750 XT, RX 7700 XT, Arc B580
16: Quadro RTX 5000, RTX A4000, RTX 4070 Ti Super, RTX 4080, RTX 4080 Super, RTX 5070 Ti
16: RTX 5080, RX 6800, RX 6800 XT, RX 6900 XT, RX 6950 XT, RX 7800 XT, RX 7900 GRE, RX 9070
16: RX 9070 XT, Arc A770
20: RTX 4000 Ada, RX 7900 XT
24: Titan RTX, Quadro RTX 6000, RTX 3090, RTX 3090 Ti, RTX A5000, RTX 4090, RX 7900 XTX
24: Arc Pro B60
32: RTX 5000 Ada, RTX 5090, R9700, Pro V620, Pro W7800
48: Quadro RTX 8000, RTX A6000, RTX 6000 Ada, Pro W7900
80: A100 80GB, H100, H100 80GB HBM3
96: RTX PRO 6000 Blackwell
"""


def memory_bytes(description: str) -> int | None:
    """All the memory of the card that `description` names; None where that is not one size."""
    name = card_name(description)
    for line in _TEXT.lower().strip().split("\n"):
        gib, _, names = line.partition(": ")
        if name in names.split(", "):
            return int(gib) * GIB
    return None
