"""Which term bends time over host layers, judged by levels that it was not shown?

Lays simple forms and the cost model over every recorded series with three levels of host
layers or more (tests/fixtures/recorded_speed.json), and prints reports/law.md.

    python -m benchmarks.law > reports/law.md            # with --quick: not the thresholds

No GPU, nothing is run: some minutes, nearly all for the thresholds; half a minute without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from benchmarks.law_forms import (
    FORMS,
    N_PARAMETERS,
    WAITING,
    Miss,
    all_misses,
    crossings_are_layers,
    misses_by_thresholds,
)
from benchmarks.speed_cases import all_series
from benchmarks.speed_guesses import PHASES
from offload.cost.waiting import IDLE_HIGH, IDLE_LOW

Misses = Iterable[Miss]
NAMES: Final = ("ends", *N_PARAMETERS)


def case_medians(misses: Misses) -> dict[str, float]:
    """The median absolute error of each case."""
    by_case: dict[str, list[float]] = {}
    for miss in misses:
        by_case.setdefault(miss.case, []).append(abs(miss.error))
    return {case: float(np.median(errors)) for case, errors in by_case.items()}


def percentile(misses: Misses, share: float) -> float:
    """Of the absolute errors; nan where there are none."""
    found = [abs(miss.error) for miss in misses]
    return float(np.percentile(found, share)) if found else float("nan")


def shared_levels(misses: Iterable[Miss], names: Iterable[str]) -> list[Miss]:
    """The misses on levels that every one of these forms predicted."""
    rows = [m for m in misses if m.form in set(names)]
    seen: dict[tuple[str, str, str, int], set[str]] = {}
    for m in rows:
        seen.setdefault((m.case, m.label, m.phase, m.x), set()).add(m.form)
    return [m for m in rows if seen[m.case, m.label, m.phase, m.x] == set(names)]


def thresholds_of_others(
    tried: Mapping[tuple[float, float], tuple[Miss, ...]],
) -> Iterator[tuple[str, tuple[float, float], list[Miss]]]:
    """For each case the thresholds with the least 90th percentile on all other cases."""
    cases = sorted({m.case for misses in tried.values() for m in misses})
    for case in cases:
        best = min(
            tried, key=lambda pair: percentile((m for m in tried[pair] if m.case != case), 90)
        )
        yield case, best, [m for m in tried[best] if m.case == case]


def _cell(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.1f}"


def _pooled(misses: list[Miss], names: Iterable[str]) -> Iterator[str]:
    yield (
        "| form | numbers fitted | phase | cases | levels | median % | of cases % | 90th %"
        " | worst % |"
    )
    yield "|---|--:|---|--:|--:|--:|--:|--:|--:|"
    for phase in PHASES:
        for name in names:
            mine = [m for m in misses if m.form == name and m.phase == phase]
            if mine:
                medians = case_medians(mine)
                yield (
                    f"| {name} | {N_PARAMETERS.get(name, 2)} | {phase} | {len(medians)}"
                    f" | {len(mine)}"
                    f" | {_cell(percentile(mine, 50))}"
                    f" | {_cell(float(np.median(list(medians.values()))))}"
                    f" | {_cell(percentile(mine, 90))} | {_cell(percentile(mine, 100))} |"
                )


def _by_case(misses: tuple[Miss, ...]) -> Iterator[str]:
    yield "| case | phase | " + " | ".join(NAMES) + " | bend of the ends' line % |"
    yield "|---|---|" + "--:|" * (len(NAMES) + 1)
    for case in dict.fromkeys(m.case for m in misses):
        for phase in PHASES:
            mine = [m for m in misses if m.case == case and m.phase == phase]
            if not mine:
                continue
            cells = (_cell(percentile((m for m in mine if m.form == n), 50)) for n in NAMES)
            ends = [m.error for m in mine if m.form == "ends"]
            bend = f"{100 * min(ends):+.1f} to {100 * max(ends):+.1f}"
            yield f"| {case} | {phase} | {' | '.join(cells)} | {bend} |"


def _seed() -> Iterator[str]:
    levels = next(s for s in all_series() if s.case == "seed-2080ti").levels
    none, half, every = (at.seconds["decode"] for at in sorted(levels, key=lambda at: at.x))
    mean = (none + every) / 2
    yield "| | ms per token | tok/s |"
    yield "|---|--:|--:|"
    yield f"| no experts on the host | {1e3 * none:.2f} | {1 / none:.1f} |"
    yield f"| all experts on the host | {1e3 * every:.2f} | {1 / every:.1f} |"
    yield f"| mean of the seconds | {1e3 * mean:.2f} | **{1 / mean:.1f}** |"
    rate = (1 / none + 1 / every) / 2
    yield f"| mean of the rates | {1e3 / rate:.2f} | {rate:.1f} |"
    yield f"| measured, 15 of 30 layers | {1e3 * half:.2f} | **{1 / half:.1f}** |"


def _thresholds() -> Iterator[str]:
    tried = misses_by_thresholds()
    yield "| slower from | to | decode median % | 90th % | prefill median % | 90th % |"
    yield "|--:|--:|--:|--:|--:|--:|"
    for (low, high), misses in tried.items():
        cells = (
            _cell(percentile((m for m in misses if m.phase == phase), share))
            for phase in PHASES
            for share in (50, 90)
        )
        used = " (used)" if (low, high) == (IDLE_LOW, IDLE_HIGH) else ""
        yield f"| {low} | {high}{used} | {' | '.join(cells)} |"
    yield ""
    yield "Thresholds chosen on the other cases, each time for the one left out:"
    yield ""
    yield "| case left out | thresholds | decode median % | worst % | prefill median % | worst % |"
    yield "|---|---|--:|--:|--:|--:|"
    for case, (low, high), found in thresholds_of_others(tried):
        cells = (
            _cell(percentile((m for m in found if m.phase == phase), share))
            for phase in PHASES
            for share in (50, 100)
        )
        yield f"| {case} | {low} to {high} | {' | '.join(cells)} |"


def report(*, is_quick: bool = False) -> Iterator[str]:
    """The whole report as Markdown."""
    misses = all_misses()
    yield from (_INTRO, *_seed(), _AFTER_SEED)
    yield from (f"- **{form.name}** ({form.n_parameters}): {form.what}." for form in FORMS)
    yield _WAITING
    off = crossings_are_layers()
    yield f"Crossings are a line in the layers to within {off:.0e} of their number."
    yield "\n## Sweeps that start with nothing on the host\n"
    yield from _pooled([m for m in misses if m.from_zero and m.case != "seed-2080ti"], NAMES)
    yield "\n### Where `knee` has enough levels too\n"
    yield from _pooled([m for m in shared_levels(misses, NAMES) if m.from_zero], NAMES)
    yield "\n## Sweeps that start with something on the host\n"
    names = ("ends", "line", "square", "power", WAITING)
    yield from _pooled([m for m in shared_levels(misses, names) if not m.from_zero], names)
    yield "\n## Every case: median error in %\n"
    yield from _by_case(misses)
    yield _READING
    if not is_quick:
        yield _THRESHOLDS
        yield from _thresholds()


_INTRO: Final = """\
# Is time over host layers a straight line, and what bends it?

    python -m benchmarks.law > reports/law.md

Everything here is arithmetic on speeds other people recorded (tests/fixtures/recorded_speed.json,
with sources); nothing was run for it. An error is predicted over measured seconds, less one.
*ends* is the straight line in seconds through the first and the last level, judged on the levels
between. All others are judged held out: fitted to all levels of a series but one between the ends,
and asked for that one. Series that differ in `-ub` only repeat the same decode, so "of cases" (the
median over cases of their medians) counts each file on each back end once.

## What came out

- The bend is real on one machine (an R9700: three files, two back ends; up to 21 % in decode, 16 %
  in prefill) and hardly there on the others, whose sweeps start with 16 or more layers on the host.
- A price for the first layer on the host (threads that wake up, a first crossing, a constant as
  soon as any expert is there) does not pay: held out it is worse than the line in decode.
- Crossings cannot be what bends, they grow by two with every layer; nor can bytes, since one and
  the same file (Qwen) bends by 15 % on Vulkan and by 2 % on ROCm.
- What pays is a slope that is steep at first and flat later. A card that is slower the more it
  waits (`decode.wait`, in the cost model since the first recorded sweeps) takes the 90th percentile
  in decode from 12.2 to 8.1 %, in prefill from 7.4 to 4.0 %. Another price for each of the first
  eight layers does as well (6.3 and 5.2 %); the eight was chosen after these sweeps had been seen,
  and it says nothing of a model with other layers or several cards, so it is not in the model.
- The typical level gains nothing: over cases the median of the line in decode is 3.6 %, and no
  richer form is below it. The terms pay in the tail, where the line is 12 to 21 % off.
- On ROCm the slope rises before it falls (0.85, 1.12, 1.12, 0.60 ms per layer), which no form here
  follows; there the line is as good as any in decode.
- Which clock, card's or processor's, is behind it nobody recorded.

The sweep of `offload bench` runs a quarter and a half of the layers on the host right after the two
ends (`tuner/sweep.py`, FIRST), which is what it takes to see the term; without such a run the
straight line is predicted, and the interval widened.

## The seed's law
"""

_AFTER_SEED: Final = """\

A token visits the layers one after another, so the seconds of layers add, and the rate half-way is
the harmonic mean of the ends' and not their mean. The line is 3 % slower than what was measured:
this case bends the other way than those below (0.37 ms for each of the first 15 layers, 0.44 for
the others).

## Forms

In brackets the numbers fitted to each series.
"""

_WAITING: Final = """\
- **waiting** (3 that matter, and priors; two thresholds shared by all): the cost model. A card's
  own seconds are longer by a share that is fitted, the more of the time it waits.

Not in the list, since no such sweep can tell them from a layer's price: bytes on the host and
crossings (graph splits). With `-ncmoe N` each further layer adds the same two crossings.
"""

_READING: Final = """\

*-*: fewer levels than needed to say anything (a form with n numbers is judged from n + 1 other
levels on, the line from 2 on, the model from 3 on), or, for *step* and *first 8*, no level without
host layers.
"""

_THRESHOLDS: Final = """\

## The thresholds of waiting

Shares of the time without work between which a card slows down. The six cases are three files on
one machine and two back ends, so "others" below are other files or back ends, not other machines.
An upper end of 0.6 does better than the 0.5 in use and is what the others choose for each case left
out. It stays at 0.5 until another machine says so too: profiles were fitted with it.
"""


if __name__ == "__main__":
    for line in report(is_quick="--quick" in sys.argv[1:]):
        print(line)
