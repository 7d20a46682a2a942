"""What do pairs of our placement and `--fit`'s say: faster, slower, or not to be told apart?

Reads the rows of benchmarks/measured_cells.py. A value is the least of two neighbouring pairs,
as in speed checks; the interval is that of Hodges and Lehmann at 95 %.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from offload.turn import Turn
from tuner.paired.verdict import Comparison, compare_pairs

TESTS: Final = ("decode", "prefill", "turn")
_ALPHA: Final = 0.025
_TOLERANCE: Final = 0.03
_GROUP: Final = 2


class Measured(NamedTuple):
    """One cell: `--fit`'s seconds over ours by test, as measured and as predicted."""

    model: str
    cell: str
    measured: dict[str, Comparison]
    predicted: dict[str, float]
    n_pairs: int


def print_summary(rows: Sequence[Mapping[str, Any]], turn: Turn, *, is_detailed: bool) -> None:
    """Counts, medians, and where ours is slower."""
    skipped = [row for row in rows if "skipped" in row]
    over = [row for row in rows if "skipped" not in row and row["over_mib"] > 64]
    timed = [row for row in rows if "skipped" not in row and row["over_mib"] <= 64]
    equal = [row for row in timed if not row["pairs"]]
    found = [_judge(row, turn) for row in timed if row["pairs"]]
    print(
        f"{len(rows)} cells: {len(found)} timed, {len(equal)} with the same placement,"
        f" {len(over)} where --fit's overruns a card by more than 64 MiB, {len(skipped)} skipped"
    )
    if is_detailed:
        _print_cells(found)
        for row in (*over, *skipped):
            print(f"- {row['model']} {row['cell']}: {row.get('skipped', 'overruns')}")
    for test in TESTS:
        ratios = sorted(one.measured[test].ratio for one in found)
        if not ratios:
            continue
        slower = [one for one in found if one.measured[test].high < 1]
        faster = sum(one.measured[test].low > 1 for one in found)
        off = [one.predicted[test] / one.measured[test].ratio - 1 for one in found]
        print(
            f"{test}: --fit over ours, median {statistics.median(ratios):.3f}"
            f" ({ratios[0]:.3f} to {ratios[-1]:.3f}); ours faster beyond noise in {faster},"
            f" slower in {len(slower)} of {len(found)}; predicted ratio off by"
            f" {statistics.median(map(abs, off)):.1%} in the median"
        )
        for one in slower:
            said = one.measured[test]
            print(
                f"  slower: {one.model} {one.cell}: {said.ratio:.3f}"
                f" ({said.low:.3f} to {said.high:.3f}), predicted {one.predicted[test]:.3f}"
            )


def _judge(row: Mapping[str, Any], turn: Turn) -> Measured:
    pairs = row["pairs"]
    ours = [_by_test(pair[0], pair[1], turn) for pair in pairs]
    theirs = [_by_test(pair[2], pair[3], turn) for pair in pairs]
    said = [_by_test(one["decode"], one["prefill"], turn) for one in row["predicted"]]
    starts = range(0, len(pairs) - len(pairs) % _GROUP or 1, _GROUP)
    values = {
        test: [
            min(one[test] for one in theirs[i : i + _GROUP])
            / min(one[test] for one in ours[i : i + _GROUP])
            for i in starts
        ]
        for test in TESTS
    }
    return Measured(
        model=row["model"],
        cell=row["cell"],
        measured={
            test: compare_pairs(values[test], tolerance=_TOLERANCE, alpha=_ALPHA) for test in TESTS
        },
        predicted={test: said[1][test] / said[0][test] for test in TESTS},
        n_pairs=len(pairs),
    )


def _by_test(decode_s: float, prefill_s: float, turn: Turn) -> dict[str, float]:
    total = turn.n_prompt * prefill_s + turn.n_generate * decode_s
    return {"decode": decode_s, "prefill": prefill_s, "turn": total}


def _print_cells(found: Sequence[Measured]) -> None:
    print("| model | cards, share, memory | pairs | decode | prefill | turn | predicted turn |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for one in found:
        cells = " | ".join(
            f"{said.ratio:.3f} ({said.low:.3f}-{said.high:.3f})"
            for said in (one.measured[test] for test in TESTS)
        )
        print(
            f"| {one.model} | {one.cell} | {one.n_pairs} | {cells} | {one.predicted['turn']:.3f} |"
        )
