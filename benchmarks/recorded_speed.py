"""Does time follow from amounts of work on machines that other people measured?

Lays the cost model over recorded speeds (tests/fixtures/recorded_speed.json). Three
questions, each with its own table in the report:

1. The straight line: a series that varies one thing (layers with experts on the host, -ub,
   depth) is fitted on its two ends; what does that say of the levels between?
2. The bend: with one more level, does letting a card that waits be slower predict the others
   better, and does a price for the first layer on the host?
3. The priors: how far from the truth is a prediction for a machine nobody measured, from
   data sheets alone, and do its intervals hold the truth as often as they promise?

    python -m benchmarks.recorded_speed > reports/recorded-speed.md

No GPU, no file, nothing is run: headers are made from the shapes of the catalogue.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from benchmarks.speed_cases import all_series, load
from benchmarks.speed_guesses import PHASES, Guess, two_ends, unmeasured, with_mid_points
from offload.cost import touched_share
from tuner.fit import solve_nnls

_WRONG: Final = 0.1
"""Levels further off than this are listed with a reason."""

REASONS: Final = {
    ("r9700-gemma-vulkan", "decode"): "the bend: no level between the ends was learned from",
    ("r9700-gemma-rocm", "decode"): "the bend; types per layer of this mix are not known either",
    ("r9700-gemma-q5-vulkan", "decode"): "the bend",
    ("r9700-gemma-q5-rocm", "decode"): "the bend",
    ("r9700-qwen-vulkan", "decode"): "the bend",
    ("r9700-qwen-vulkan", "prefill"): "the bend",
    ("r9700-qwen-rocm", "prefill"): "the bend",
    ("r9700-gemma-rocm", "prefill"): "0.9 s for each batch whatever its size, which the prior"
    " holds to be unlikely: a straight line through the ends is better here",
    ("rdna2-q30-ncmoe", "prefill"): "the end at 18 host layers was slower than at 20 and 24"
    " (350 against 393 and 361 tok/s), probably for want of memory on the card",
    ("3090-gptoss", "prefill"): "favourite experts: see -ub below",
    ("cpu-q235-q6k", "decode"): "attention on the processor, which slows down out of proportion"
    " with depth; the prior for it is off by far",
    ("2x3090-q235-q6k", "decode"): "the level at depth 0 is out of line with one card's (17.1"
    " against 12.2 tok/s, at depth 8192 10.4 against 9.9)",
    ("gb10-q235-q2k", "prefill"): "nodes added, which overlap: no term for that",
}


def _percent(values: Iterable[float], share: float) -> str:
    found = sorted(abs(v) for v in values)
    return f"{100 * float(np.percentile(found, share)):.1f}" if found else "-"


def _covered(guesses: Sequence[Guess]) -> str:
    judged = [g.is_inside for g in guesses if g.is_inside is not None]
    return f"{100 * sum(judged) / len(judged):.0f}" if judged else "-"


def _summary(name: str, guesses: Sequence[Guess]) -> Iterator[str]:
    """One row for each phase: levels, error in %, and the share inside the interval."""
    for phase in PHASES:
        mine = [g for g in guesses if g.phase == phase]
        by_case: dict[str, list[float]] = {}
        for g in mine:
            by_case.setdefault(g.case, []).append(abs(g.error))
        medians = [float(np.median(errors)) for errors in by_case.values()]
        errors = [g.error for g in mine]
        yield (
            f"| {name} | {phase} | {len(by_case)} | {len(mine)} | {_percent(errors, 50)}"
            f" | {_percent(medians, 50)} | {_percent(errors, 90)} | {_percent(errors, 100)}"
            f" | {_covered(mine)} |"
        )


_HEAD: Final = (
    "",
    "| | | cases | levels | median % | median of cases % | 90th % | worst % | inside the 90 %"
    " interval |",
    "|---|---|--:|--:|--:|--:|--:|--:|--:|",
)


def _series_rows(lines: Sequence[Guess], models: Sequence[Guess]) -> Iterator[str]:
    yield "| case | varies | | levels: error of the line, of the model, in % |"
    yield "|---|---|---|---|"
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for line, model in zip(lines, models, strict=True):
        key = (line.case, line.varies, line.label, line.phase)
        mark = "" if model.is_inside else "!"
        rows.setdefault(key, []).append(
            f"{line.x}: {100 * line.error:+.1f}, {100 * model.error:+.1f}{mark}"
        )
    for (case, varies, label, phase), cells in rows.items():
        note = f" ({label})" if label else ""
        yield f"| {case} | {varies}{note} | {phase} | {'; '.join(cells)} |"


def _failures(models: Sequence[Guess]) -> Iterator[str]:
    worst: dict[tuple[str, str], list[float]] = {}
    for g in models:
        worst.setdefault((g.case, g.phase), []).append(abs(g.error))
    for (case, phase), errors in worst.items():
        if max(errors) > _WRONG:
            reason = REASONS.get((case, phase), "not explained")
            yield (
                f"- {case}, {phase}: up to {100 * max(errors):.0f} %, median"
                f" {100 * float(np.median(errors)):.0f} %. {reason}."
            )


def _ub_rows() -> Iterator[str]:
    """The sweep of -ub with and without favourite experts, two coefficients fitted to all."""
    series = next(s for s in all_series() if s.case == "3090-gptoss")
    rows = next(c for c in load()["cases"] if c["id"] == "3090-gptoss")["series"][0]["levels"]
    truth = np.array([row["x"] / row["prefill_t_s"] for row in rows])
    yield "| routing | " + " | ".join(f"-ub {at.x}" for at in series.levels) + " | link GB/s |"
    yield "|---|" + "--:|" * (len(rows) + 1)
    layer_gb = 3 * 2880 * 2880 * 128 * 17 / 32 / 1e9
    for name, skew in (("even", 0.0), ("skew 1.0", 1.0), ("skew 1.5", 1.5), ("skew 2.0", 2.0)):
        work = [
            [r["x"], r["n_cpu_moe"] * touched_share(4 / 128, r["x"], skew) * layer_gb] for r in rows
        ]
        left = np.array(work) / truth[:, None]
        found = solve_nnls(left, np.ones(len(rows)))
        errors = left @ found - 1
        cells = " | ".join(f"{100 * e:+.1f}" for e in errors)
        yield f"| {name} | {cells} | {1 / found[1]:.0f} |"


def report() -> Iterator[str]:
    """The whole report as Markdown."""
    lines, models = two_ends()
    mids = with_mid_points()
    from_zero = {name: [g for g in found if g.from_zero] for name, found in mids.items()}
    yield from _INTRO
    yield from _HEAD
    yield from _summary("straight line", lines)
    yield from _summary("model", models)
    yield from _BEND
    yield from _HEAD
    for name in ("line", "step", "waiting"):
        yield from _summary(f"{name}, series from 0", from_zero[name])
    for name in ("line", "waiting"):
        yield from _summary(f"{name}, all series", mids[name])
    yield from _UB
    yield from _ub_rows()
    yield from _PRIORS
    yield from _HEAD
    yield from _summary("data sheets alone", list(unmeasured()))
    yield from ("", "## More than 10 % off, fitted on two ends", "")
    yield from _failures(models)
    yield from ("", "## Recorded, and not used", "")
    yield from (f"- {row['id']}: {row['reason']}." for row in load()["excluded"])
    yield from ("", "## Every series", "", "`!` marks a level outside the 90 % interval.", "")
    yield from _series_rows(lines, models)


_INTRO: Final = """\
# Recorded speeds: does time follow from amounts of work?

Printed by `python -m benchmarks.recorded_speed`; `tests/unit/test_recorded_speed.py` holds the
figures. The facts are in `tests/fixtures/recorded_speed.json`, with their sources. Nothing was
run on a card by us: other people measured, on their machines, with builds of their own.

## Fitted on two ends

A series varies one thing: layers with experts on the host, `-ub`, depth, layers on cards. Its
first and last level are learned from, the levels between are predicted. *Straight line*: seconds
are taken to be linear in what varies (in 1/`-ub` for the physical batch). *Model*: amounts of
work, data-sheet priors and non-negative least squares, as in a profile. Levels of one machine are
not independent; so the median over cases stands beside the median over levels. `-ncmoe` beyond
the number of layers is an alias of all, and such levels count once.
""".splitlines()

_BEND: Final = """
## The bend

Time against host layers is not quite straight. At 8 relieved layers the recorded seconds lie
above the line between the ends by 24 to 27 % (Gemma IQ4_XS on Vulkan), 18 % (Qwen on Vulkan), 14
% (Gemma Q5 on Vulkan), 1 to 6 % (Gemma on ROCm, where it is 10 to 12 % at 16 layers) and not at
all (Qwen on ROCm), all on one machine with an R9700. Inner levels of other machines lie above it
by 2 % (RTX 3060) and 1 % (Quadro RTX 5000), and in the case study 3 % below it. So one inner
level is learned from as well (each in turn), and the others are predicted. *line*: without a term
for the bend. *step*: a straight line and a price for the first host layer, which is what waking
up processor threads, the first crossing, or losing CUDA graphs would look like. *waiting*: a card
is slower the more of the time it waits, up to a limit.

The step is refuted: it makes few host layers far too slow. What fits is a slowdown that grows
with the share of the time the card waits and is complete at about a half, as clocks that follow
the load would make it: nobody recorded clocks, so that is the likely cause and not a shown one.
It lowers the 90th percentile and the worst error and makes the intervals honest; the median over
cases it lowers only where all series are taken together. Its two thresholds (0.1 and 0.5) were
chosen on the same R9700 sweeps; other machines only show that it does no harm there. Part of the
bend of the Gemma files may also be that such mixes give the first layers more bits, which nobody
recorded.
""".splitlines()

_UB: Final = """
## `-ub` and favourite experts

gpt-oss-120b on a RTX 3090, 25 to 28 of 36 layers' experts on the host, 240 to 2091 tok/s from
`-ub` 256 to 8192. Experts that a batch touches are copied over the link once for each batch, so
the copies of a prompt shrink with 1/`-ub`. With two coefficients fitted to all five levels,
seconds per token of arithmetic and per byte copied, the error in % of each level is:

""".splitlines()

_PRIORS: Final = """
128 experts with 4 used are all touched by 256 tokens if routing is even. Real routers have
favourites: with popularity spread by a log-normal deviation of 1.5 batches of 256 and 512 tokens
copy 78 and 88 %, and every level is within 4 %. Even routing would also need a link faster than
PCIe 4.0 x16 (31.5 GB/s). The R9700's sweeps of `-ub` are best between 1.25 and 1.75; 1.5 was
chosen on both.

## Predicted from data sheets alone

Every level of every case whose bytes are known, by a prior that has seen none of its runs. The
efficiencies in it were chosen so that the median over these same cases is about right, and the
widths so that nine in ten are inside: this is how it was set, not a test on other machines.
""".splitlines()


def main() -> int:
    """Print the report."""
    for line in report():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
