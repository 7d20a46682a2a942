"""Does a card that waits for the host work as fast as one that does not?

Time against relieved layers is not quite a straight line: recorded sweeps of one card rise
steeply for the first quarter of the layers and run straight after that (docs/cost.md). A
fixed price for the first layer on the host does not explain them; a card that works slower
the larger the share of the time it waits, up to a limit, does, as clocks that follow the load
would make it. So the feature `wait` is a card's own seconds times how far it has slowed down,
and its coefficient the share by which a card that mostly waits is slower. It needs
coefficients to be computed at all, and is left out where nothing was measured between the ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offload.cost.work import CPU, REPACKED, Work

IDLE_LOW: Final = 0.1
IDLE_HIGH: Final = 0.5
"""Shares of the time without work between which a card slows down (docs/cost.md)."""

_CARD_KINDS: Final = frozenset(("read", "layer", "context", "flops", "attention"))
_SHARED_KINDS: Final = frozenset(("const", "ubatch"))
"""Costs of a run that name no place; a card is not known to wait meanwhile."""


def wait_feature(phase: str, card: str) -> str:
    """`decode.wait.CUDA0`."""
    return f"{phase}.wait.{card}"


def add_waiting(work: Work, values: Mapping[str, float]) -> Work:
    """`work` with a `wait` amount for each card and phase, by the seconds per unit in `values`.

    Features without a value count as nothing.
    """
    shared_s: dict[str, float] = {}
    total_s: dict[str, float] = {}
    card_s: dict[tuple[str, str], float] = {}
    for name, amount in work.amounts.items():
        phase, kind, place = _parts(name)
        if kind == "wait":
            continue
        seconds = amount * values.get(name, 0.0)
        total_s[phase] = total_s.get(phase, 0.0) + seconds
        if kind in _SHARED_KINDS:
            shared_s[phase] = shared_s.get(phase, 0.0) + seconds
        elif kind in _CARD_KINDS and place not in ("", CPU, REPACKED):
            card_s[phase, place] = card_s.get((phase, place), 0.0) + seconds
    amounts = {name: a for name, a in work.amounts.items() if ".wait." not in name}
    for (phase, card), own_s in card_s.items():
        busy_s = own_s + shared_s.get(phase, 0.0)
        amount = busy_s * _slowed(1.0 - busy_s / total_s[phase]) if busy_s else 0.0
        if amount:
            amounts[wait_feature(phase, card)] = amount
    return Work(amounts=amounts)


def _parts(name: str) -> tuple[str, str, str]:
    """Phase, kind and place of a feature's name; a missing part is empty."""
    phase, kind, place = (*name.split("."), "", "")[:3]
    return phase, kind, place


def _slowed(idle: float) -> float:
    """0 for a busy card, 1 for one that mostly waits, smooth between."""
    x = min(max((idle - IDLE_LOW) / (IDLE_HIGH - IDLE_LOW), 0.0), 1.0)
    return x * x * (3.0 - 2.0 * x)
