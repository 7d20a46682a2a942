"""What must be known of cards, host and units to choose the fastest placement, and the answer?

No model, no llama.cpp, no coefficients: bytes and seconds only. Units are those of `-ngl`, the
repeating layers in order and the output layer last. The first so many lie on the host as a
whole, the next on the first card, and so on; a card may own none. A unit's items (matrices of
routed experts) may leave its card for the host one by one.
"""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """The smallest thing that may leave its card.

    `extra_s` is what a turn takes longer when it lies on the host; below zero it is faster there.
    """

    n_bytes: int
    host_bytes: int
    extra_s: float


class Unit(NamedTuple):
    """One unit on one card: what stays with its owner, and what may leave.

    `base_s` is its share of a turn with every item kept, `first_item_s` what is added once as
    soon as any item is away (the way there and back).
    """

    fixed_bytes: int
    base_s: float
    items: tuple[Item, ...] = ()
    first_item_s: float = 0.0


class CardProblem(NamedTuple):
    """One card: what it may hold, and every unit as this card would hold and run it.

    `once_bytes` and `once_s` are added when it owns any unit at all.
    """

    budget_bytes: int
    units: tuple[Unit, ...]
    once_bytes: int = 0
    once_s: float = 0.0


class HostUnit(NamedTuple):
    """A whole unit on the host."""

    n_bytes: int
    base_s: float


class HostProblem(NamedTuple):
    """The host: bytes it may hold (None: no limit), and units from the first on that may lie there.

    Units beyond the end of `units` cannot lie on the host as a whole.
    """

    budget_bytes: int | None = None
    units: tuple[HostUnit, ...] = ()


class Answer(NamedTuple):
    """A placement that fits everywhere, its seconds, and a proven lower bound of any such seconds.

    `away[card]` holds (unit, item) of what left that card, in order. `n_rules` counts runs of
    neighbouring units from which the same items left. `headroom_bytes` is the least that any
    card with units has left, None where no card has any.
    """

    n_host_units: int
    counts: tuple[int, ...]
    away: tuple[tuple[tuple[int, int], ...], ...]
    seconds: float
    bound_s: float
    n_rules: int
    headroom_bytes: int | None
    host_bytes: int

    @property
    def gap_s(self) -> float:
        """Seconds by which a better placement could be faster; 0 when none can."""
        return max(0.0, self.seconds - self.bound_s)

    @property
    def gap(self) -> float:
        """The same as a share of the answer's seconds."""
        return self.gap_s / abs(self.seconds) if self.seconds else 0.0

    @property
    def is_optimal(self) -> bool:
        """Whether it is proven that nothing is faster."""
        return self.gap_s == 0.0
