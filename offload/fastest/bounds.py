"""How few ticks could each range of units take on one card?"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final

from offload.fastest.tables import Table

_SLACK: Final = 2.0**-48
"""What rounding may do to a sum of bytes times ticks per byte, as a share of it."""


def bound_rows(table: Table, n_units: int) -> list[list[float]]:
    """`rows[first][end - first - 1]`: fewest ticks of each range that can fit at all.

    For each price of a byte, prefix sums bound all ranges. The longer a range, the dearer the
    price that bounds it best, so a row is a few pieces laid end to end.
    """
    prices = table.prices()
    sums = [table.priced_sum(price) for price in prices]
    total = abs(table.budget) + table.bytes_sum[-1]
    starts = [table.once_ticks - price * table.budget - price * total * _SLACK for price in prices]
    rises = [[b - a for a, b in zip(low, high, strict=True)] for low, high in pairwise(sums)]
    rows = []
    for first in range(n_units):
        reach = table.reach(first) + 1
        row: list[float] = []
        low = first + 1
        for k, (line, start) in enumerate(zip(sums, starts, strict=True)):
            high = reach
            if k < len(rises):
                level = rises[k][first] + start - starts[k + 1]
                high = bisect_right(rises[k], level, low, max(low, reach))
            if high > low:
                offset = start - line[first]
                row += [ticks + offset for ticks in line[low:high]]
                low = high
        rows.append(row)
    return rows
