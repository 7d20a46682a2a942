"""Which placement is fastest, and is that proven?"""

from __future__ import annotations

from offload.fastest.problem import Answer, CardProblem, HostProblem, HostUnit, Item, Unit
from offload.fastest.solve import solve_fastest

__all__ = [
    "Answer",
    "CardProblem",
    "HostProblem",
    "HostUnit",
    "Item",
    "Unit",
    "solve_fastest",
]
