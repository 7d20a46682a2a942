"""What does a given choice of ranges and items take, in seconds and bytes?

The one place where a placement is priced, for whoever chose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from offload.fastest.problem import Answer, CardProblem, HostProblem


def priced(
    cards: Sequence[CardProblem],
    host: HostProblem,
    *,
    n_host_units: int,
    counts: Sequence[int],
    away: Sequence[Sequence[tuple[int, int]]],
    bound_s: float = float("-inf"),
) -> Answer | None:
    """The answer with its seconds and bytes, or None where it does not fit."""
    units = host.units[:n_host_units]
    if len(units) < n_host_units:
        return None
    seconds = [unit.base_s for unit in units]
    host_bytes = sum(unit.n_bytes for unit in units)
    headrooms = []
    n_rules = 0
    first = n_host_units
    for card, count, left in zip(cards, counts, away, strict=True):
        end = first + count
        if not count:
            continue
        used = card.once_bytes
        seconds.append(card.once_s)
        for unit in card.units[first:end]:
            used += unit.fixed_bytes + sum(item.n_bytes for item in unit.items)
            seconds.append(unit.base_s)
        masks: dict[int, int] = {}
        for u, i in left:
            item = card.units[u].items[i]
            used -= item.n_bytes
            host_bytes += item.host_bytes
            seconds.append(item.extra_s)
            masks[u] = masks.get(u, 0) | 1 << i
        seconds += (card.units[u].first_item_s for u in masks)
        n_rules += sum(masks.get(u - 1) != mask for u, mask in masks.items())
        headrooms.append(card.budget_bytes - used)
        first = end
    if min(headrooms, default=0) < 0:
        return None
    if host.budget_bytes is not None and host_bytes > host.budget_bytes:
        return None
    total = fsum(seconds)
    return Answer(
        n_host_units=n_host_units,
        counts=tuple(counts),
        away=tuple(tuple(sorted(left)) for left in away),
        seconds=total,
        bound_s=min(bound_s, total),
        n_rules=n_rules,
        headroom_bytes=min(headrooms, default=None),
        host_bytes=host_bytes,
    )
