"""What can the units of one kind free between them, and for how much waste?

By bytes freed beyond the relaxation's corner: the least waste at its price of a byte, for so many
units that differ. Found in order of waste and only so far, so that what is left out is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from offload.fastest.group import Difference


class Label(NamedTuple):
    """Waste and bytes of some units of one kind that differ, how many they are, and how."""

    waste: float
    freed: int
    n_units: int
    path: tuple[int, ...]


class Front:
    """One kind at one price: labels in order of waste, none beaten by fewer units as well."""

    __slots__ = ("_by_count", "_labels", "cut", "spent")

    def __init__(
        self,
        differences: Sequence[tuple[int, Difference]],
        n_units: int,
        most: float,
        labels_max: int,
    ) -> None:
        fewest: dict[int, int] = {}
        self._labels: list[Label] = []
        self._by_count: dict[int, tuple[Label, ...]] = {}
        self.cut = inf
        heap: list[Label] = [Label(0.0, 0, 0, ())]
        while heap:
            label = heappop(heap)
            waste, freed, n, path = label
            if fewest.get(freed, n_units + 1) <= n:
                continue
            if len(self._labels) >= labels_max or waste >= most:
                self.cut = waste
                break
            fewest[freed] = n
            self._labels.append(label)
            if n < n_units:
                for d, more in differences:
                    following = freed + more.freed
                    if fewest.get(following, n_units + 1) > n + 1:
                        new = Label(waste + more.waste, following, n + 1, (*path, d))
                        heappush(heap, new)
        self.spent = 2 * len(self._labels) * max(1, len(differences))

    def labels(self, n_units: int) -> tuple[Label, ...]:
        """Those of at most so many units, in order of waste."""
        found = self._by_count.get(n_units)
        if found is None:
            found = tuple(label for label in self._labels if label.n_units <= n_units)
            self._by_count[n_units] = found
        return found
