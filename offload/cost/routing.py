"""Which share of a layer's experts does a batch visit?"""

from __future__ import annotations

from functools import lru_cache
from math import exp
from typing import Final

ROUTING_SKEW: Final = 1.5
"""What recorded sweeps of -ub show for real models (docs/cost.md)."""

# (deviations from the mean, weight) of nine points that stand for a normal distribution: the
# roots and weights of Gauss-Hermite quadrature
_NORMAL: Final = (
    (0.0, 0.40634920634920635),
    (1.0232556637891326, 0.24409750289493945), (2.0768479786778302, 0.049916406765217881),
    (3.2054290028564700, 0.0027891413212317680), (4.5127458633997826, 2.2345844007746e-05),
)  # fmt: skip


@lru_cache(maxsize=1024)
def touched_share(used: float, n_tokens: int, skew: float) -> float:
    """The share of a layer's experts that `n_tokens` tokens visit, each of them `used` of all.

    With even routing 1 - (1 - used)^n_tokens. Real routers have favourites: `skew` is the
    deviation of the logarithm of an expert's popularity, taken as log-normal.
    """
    if n_tokens <= 1 or not skew:
        evenly: float = 1.0 - (1.0 - used) ** n_tokens
        return evenly
    missed = 0.0
    for z, weight in _NORMAL:
        for side in (z, -z) if z else (z,):
            popularity = min(used * exp(skew * side - skew * skew / 2), 1.0)
            missed += weight * (1.0 - popularity) ** n_tokens
    return 1.0 - missed
