"""What do data sheets say of a card's memory, arithmetic and link?

Bandwidth in GB/s, dense FP16 arithmetic in TFLOP/s (matrix units with FP32 sums where there
are any, else shaders), link in GB/s as its name promises (PCIe 3.0 x16: 15.8, 4.0: 31.5,
5.0: 63; unified memory has none). From the vendors' figures as gathered in
https://en.wikipedia.org/wiki/List_of_Nvidia_graphics_processing_units,
https://en.wikipedia.org/wiki/List_of_AMD_graphics_processing_units,
https://en.wikipedia.org/wiki/Intel_Arc and https://en.wikipedia.org/wiki/Apple_silicon.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class CardSheet(NamedTuple):
    """One card's data sheet; `link_gb_per_s` is 0 for unified memory."""

    bandwidth_gb_per_s: float
    fp16_tflop_per_s: float
    link_gb_per_s: float


_TEXT: Final = """
GTX 1060|192|4.4|15.8
GTX 1070|256|6.5|15.8
GTX 1070 Ti|256|8.2|15.8
GTX 1080|320|8.9|15.8
GTX 1080 Ti|484|11.3|15.8
GTX 1650|128|6|15.8
GTX 1660|192|10|15.8
GTX 1660 Super|336|10|15.8
GTX 1660 Ti|288|11|15.8
Tesla P40|346|11.8|15.8
Tesla P100|732|19|15.8
Tesla V100|900|112|15.8
Tesla T4|320|65|15.8
RTX 2060|336|26|15.8
RTX 2060 Super|448|29|15.8
RTX 2070|448|30|15.8
RTX 2070 Super|448|36|15.8
RTX 2080|448|40|15.8
RTX 2080 Super|496|45|15.8
RTX 2080 Ti|616|54|15.8
Titan RTX|672|130|15.8
Quadro RTX 4000|416|57|15.8
Quadro RTX 5000|448|89|15.8
Quadro RTX 6000|672|130|15.8
Quadro RTX 8000|672|130|15.8
RTX 3050|224|18|15.8
RTX 3060|360|25|31.5
RTX 3060 Ti|448|32|31.5
RTX 3070|448|41|31.5
RTX 3070 Ti|608|44|31.5
RTX 3080|760|60|31.5
RTX 3080 Ti|912|68|31.5
RTX 3090|936|71|31.5
RTX 3090 Ti|1008|80|31.5
RTX A2000|288|64|31.5
RTX A4000|448|77|31.5
RTX A5000|768|111|31.5
RTX A6000|768|155|31.5
A10|600|125|31.5
A40|696|150|31.5
A100|1555|312|31.5
A100 80GB|1935|312|31.5
RTX 4060|272|30|15.8
RTX 4060 Ti|288|44|15.8
RTX 4070|504|58|31.5
RTX 4070 Super|504|71|31.5
RTX 4070 Ti|504|80|31.5
RTX 4070 Ti Super|672|88|31.5
RTX 4080|717|97|31.5
RTX 4080 Super|736|104|31.5
RTX 4090|1008|165|31.5
RTX 4000 Ada|360|107|31.5
RTX 5000 Ada|576|261|31.5
RTX 6000 Ada|960|364|31.5
L4|300|121|31.5
L40|864|181|31.5
L40S|864|362|31.5
H100|2039|756|63
H100 80GB HBM3|3350|990|63
H200|4800|990|63
B200|8000|2250|63
RTX 5050|320|26|31.5
RTX 5060|448|38|31.5
RTX 5060 Ti|448|47|31.5
RTX 5070|672|62|63
RTX 5070 Ti|896|88|63
RTX 5080|960|113|63
RTX 5090|1792|209|63
RTX PRO 6000 Blackwell|1792|500|63
GB10|273|125|0
RX 5700 XT|448|19|31.5
RX 6600|224|18|15.8
RX 6600 XT|256|21|15.8
RX 6700 XT|384|26|31.5
RX 6750 XT|432|27|31.5
RX 6800|512|32|31.5
RX 6800 XT|512|41|31.5
RX 6900 XT|512|46|31.5
RX 6950 XT|576|47|31.5
RX 7600|288|43|15.8
RX 7700 XT|432|70|31.5
RX 7800 XT|624|75|31.5
RX 7900 GRE|576|92|31.5
RX 7900 XT|800|103|31.5
RX 7900 XTX|960|123|31.5
RX 9060 XT|320|103|63
RX 9070|640|145|63
RX 9070 XT|640|195|63
R9700|640|191|63
Pro V620|512|41|31.5
Pro W7800|576|90|31.5
Pro W7900|864|122|31.5
MI50|1024|27|31.5
MI60|1024|29|31.5
MI100|1229|184|31.5
MI210|1638|181|31.5
MI300X|5300|1307|63
8060S|256|59|0
Arc A750|512|118|31.5
Arc A770|560|138|31.5
Arc B570|380|93|15.8
Arc B580|456|117|15.8
Arc Pro B60|456|98|15.8
M1|68|2.6|0
M1 Pro|200|5.2|0
M1 Max|400|10.4|0
M1 Ultra|800|21|0
M2|100|3.6|0
M2 Pro|200|6.8|0
M2 Max|400|13.6|0
M2 Ultra|800|27|0
M3|100|4.1|0
M3 Pro|150|7.4|0
M3 Max|400|16|0
M3 Ultra|819|28|0
M4|120|4.3|0
M4 Pro|273|9.3|0
M4 Max|546|18|0
"""


def find_card(description: str) -> CardSheet | None:
    """The data sheet of the card that `description` names, the longest name first.

    llama.cpp's descriptions carry the vendor's name and more: `NVIDIA GeForce RTX 3090`.
    Only whole words count.
    """
    _, figures = _find(description)
    return CardSheet(*map(float, figures.split("|"))) if figures else None


def card_name(description: str) -> str:
    """The name under which the card stands here, in small letters; nothing where it does not."""
    return _find(description)[0]


def _find(description: str) -> tuple[str, str]:
    best, figures = "", ""
    if description:
        text = f" {re.sub(r'[^a-z0-9]+', ' ', description.lower()).strip()} "
        for line in _TEXT.lower().split("\n"):
            name, _, rest = line.partition("|")
            if len(name) > len(best) and f" {name} " in text:
                best, figures = name, rest
    return best, figures
