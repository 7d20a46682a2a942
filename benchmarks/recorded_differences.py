"""Do intervals of differences between two placements hold what was measured?

Every two levels of a recorded series were run on one machine; their predicted difference in
seconds per token, by data sheets alone, is laid beside the measured one. Pairs of one series are
not independent of each other. Repeated runs of one placement are left out: there is no difference
to predict. Run it with `python -m benchmarks.recorded_differences`; docs/explain.md quotes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from benchmarks.speed_cases import PHASES, all_series, cards_of, host_of, load
from offload.cost.difference import Difference, Side, difference
from offload.priors import make_priors


def pairs() -> Iterator[tuple[str, str, Difference, float]]:
    """Phase, what varies, the predicted difference and the measured one."""
    cases = {case["id"]: case for case in load()["cases"]}
    for series in all_series():
        if series.varies == "repeats":
            continue
        case = cases[series.case]
        names = {name for level in series.levels for w in level.work.values() for name in w.amounts}
        known = make_priors(sorted(names), cards_of(case), host_of(case))
        for phase in PHASES:
            for a, b in combinations(series.levels, 2):
                if phase in a.seconds and phase in b.seconds:
                    found = difference(Side(a.work[phase], known), Side(b.work[phase], known))
                    yield phase, series.varies, found, b.seconds[phase] - a.seconds[phase]


def main() -> None:
    """Print how many differences lie in their interval, and how often a told sign was wrong."""
    n, held, told, wrong, signs = (Counter[tuple[str, str]]() for _ in range(5))
    for phase, varies, found, measured in pairs():
        for key in ((phase, varies), (phase, "all")):
            n[key] += 1
            held[key] += found.low_s <= measured <= found.high_s
            signs[key] += found.seconds * measured > 0
            told[key] += found.is_told
            wrong[key] += found.is_told and found.seconds * measured < 0
    print("phase    varies         pairs  in interval  sign right  told  told wrongly")
    for key in sorted(n):
        print(
            f"{key[0]:8} {key[1]:13} {n[key]:6} {held[key] / n[key]:12.0%}"
            f" {signs[key] / n[key]:11.0%} {told[key]:5} {wrong[key]:13}"
        )


if __name__ == "__main__":
    main()
