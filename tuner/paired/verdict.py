"""From ratios of times to one word: same, slower, faster, or cannot tell?

A build is `slower` when all three hold: the rank test says that chance does not do this,
the near end of the interval is beyond half the tolerance, and the size itself reaches the
tolerance; `faster` likewise. It is the `same` when the whole interval lies within the
tolerance; that interval may be wrong more often, since missing a small difference costs less
than a false alarm. Else nobody can tell, and it is said what it would take.

One may look several times at a growing series and stop when it has decided, since every
look spends its share of the false alarms only (Bonferroni: looks need not be independent).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tuner.paired.rank import (
    Shift,
    paired_shift,
    rank_sum_p,
    separate_shift,
    signed_rank_p,
)

ALPHA: Final = 0.01
"""False alarms of one test (decode or prefill) to one side, over all looks."""

ALPHA_SAME: Final = 0.05
"""How often a build at the tolerance itself may pass for the same, over all looks."""

LOOKS: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""After these shares of the time one looks: a clear case is over soon, a hard one gets it all."""

N_LOOKS: Final = len(LOOKS)
TOLERANCES: Final = {"decode": 0.05, "prefill": 0.08}
_NEAR_END_SHARE: Final = 0.5
_HOPELESS: Final = 50.0
"""More than this many times what was done is no advice."""


def looks_due(spent_s: float, time_s: float) -> int:
    """How many looks have their time by now."""
    return sum(spent_s >= share * time_s for share in LOOKS)


class Verdict(StrEnum):
    """What a comparison says of A, seen from B."""

    SAME = "same"
    SLOWER = "slower"
    FASTER = "faster"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Times of A over times of B: above 1 is slower.

    `low` and `high` are the ends of the interval at `confidence`, `p_slower` and `p_faster`
    the chances of the rank test, `n` the pairs (or the smaller series). `needed_times` is
    how many times as much would probably decide; None where decided, or where no amount
    would since the difference lies at the tolerance.
    """

    verdict: Verdict
    ratio: float
    low: float
    high: float
    confidence: float
    p_slower: float
    p_faster: float
    n: int
    tolerance: float
    needed_times: float | None = None

    @property
    def is_decided(self) -> bool:
        """Whether more would be of no use."""
        return self.verdict is not Verdict.CANNOT_TELL


def compare_pairs(
    ratios: Sequence[float], *, tolerance: float, alpha: float = ALPHA / N_LOOKS
) -> Comparison:
    """Judge the ratios of pairs, A over B; `alpha` is what this look may spend on each side."""
    logs = [math.log(ratio) for ratio in ratios]
    return _judged(
        paired_shift(logs, alpha) if logs else _UNKNOWN,
        paired_shift(logs, ALPHA_SAME / N_LOOKS) if logs else _UNKNOWN,
        signed_rank_p(logs),
        signed_rank_p([-log for log in logs]),
        len(logs),
        tolerance,
        alpha,
    )


def compare_separate(
    seconds: Sequence[float],
    others: Sequence[float],
    *,
    tolerance: float,
    alpha: float = ALPHA / N_LOOKS,
) -> Comparison:
    """Judge two series that are no pairs, A and B."""
    logs, other_logs = [math.log(s) for s in seconds], [math.log(s) for s in others]
    is_some = bool(logs and other_logs)
    return _judged(
        separate_shift(logs, other_logs, alpha) if is_some else _UNKNOWN,
        separate_shift(logs, other_logs, ALPHA_SAME / N_LOOKS) if is_some else _UNKNOWN,
        rank_sum_p(logs, other_logs),
        rank_sum_p(other_logs, logs),
        min(len(logs), len(other_logs)),
        tolerance,
        alpha,
    )


def widest(comparisons: Sequence[Comparison]) -> Comparison:
    """One judgement of several views of the same thing: as unsure as they are together.

    The size is that of the first view; the interval reaches over all of them.
    """
    first = comparisons[0]
    shift = Shift(
        middle=math.log(first.ratio),
        low=min(_log(c.low) for c in comparisons),
        high=max(_log(c.high) for c in comparisons),
    )
    # the view in which it is smallest must reach the tolerance as well
    smallest = min((math.log(c.ratio) for c in comparisons), key=abs)
    alike = len({c.ratio > 1 for c in comparisons}) == 1
    return _judged(
        shift,
        shift,
        max(c.p_slower for c in comparisons),
        max(c.p_faster for c in comparisons),
        min(c.n for c in comparisons),
        first.tolerance,
        max((1 - c.confidence) / 2 for c in comparisons),
        size=smallest if alike else 0.0,
    )


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio else -math.inf


_UNKNOWN: Final = Shift(middle=0.0, low=-math.inf, high=math.inf)


def _judged(
    shift: Shift,
    narrow: Shift,
    p_slower: float,
    p_faster: float,
    n: int,
    tolerance: float,
    alpha: float,
    *,
    size: float | None = None,
) -> Comparison:
    size = shift.middle if size is None else size
    limit, near = math.log1p(tolerance), math.log1p(tolerance * _NEAR_END_SHARE)
    if p_slower <= alpha and shift.low > near and size >= limit:
        verdict = Verdict.SLOWER
    elif p_faster <= alpha and shift.high < -near and size <= -limit:
        verdict = Verdict.FASTER
    elif -limit < narrow.low and narrow.high < limit:
        verdict = Verdict.SAME
        shift, alpha = narrow, ALPHA_SAME / N_LOOKS
    else:
        verdict = Verdict.CANNOT_TELL
    is_open = verdict is Verdict.CANNOT_TELL
    return Comparison(
        verdict=verdict,
        ratio=math.exp(shift.middle),
        low=math.exp(shift.low),
        high=math.exp(shift.high),
        confidence=1 - 2 * alpha,
        p_slower=p_slower,
        p_faster=p_faster,
        n=n,
        tolerance=tolerance,
        needed_times=_needed_times(shift, narrow, size, limit, near) if is_open else None,
    )


def _needed_times(
    shift: Shift, narrow: Shift, size: float, limit: float, near: float
) -> float | None:
    """Intervals shrink with the root of the number; how far is the nearest decision?"""
    is_beyond = abs(size) >= limit
    gap = abs(size) - near if is_beyond else limit - abs(size)
    half = (shift.high - shift.low) / 2 if is_beyond else (narrow.high - narrow.low) / 2
    if not math.isfinite(half):
        return _FIRST_STEP
    times = 1.1 * (half / gap) ** 2 if gap > 0 else math.inf
    return max(times, 1.2) if times <= _HOPELESS else None


_FIRST_STEP: Final = 4.0
"""With too few for any interval, more is needed before one can say how much."""
