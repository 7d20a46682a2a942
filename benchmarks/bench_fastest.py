"""Is the fastest placement the fastest, and how long does it take to find?

Random problems (seeded: the same every time) are solved and judged three ways: small ones by all
placements there are, larger ones by HiGHS, and for every size the processor seconds it takes.

    python -m benchmarks.bench_fastest small [--n 5000] [--first 0]
    python -m benchmarks.bench_fastest highs [--n 200] [--layers 16] [--cards 3] [--limit 5]
    python -m benchmarks.bench_fastest time [--n 20] [--sizes 30x2,60x3,94x4,127x8]

Layers come with an output layer as one more unit: 127 layers are 128 units. Mixes are those of
`tests.fastest_problems.realistic_problem`. Exit status 1: a judge disagrees.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from math import inf

from offload.fastest import Answer, solve_fastest
from tests.fastest_highs import judge
from tests.fastest_problems import MIXES, Problem, all_answers, realistic_problem, small_problem

CLOSE = 1e-9
HIGHS_CLOSE = 1e-6


def main(argv: Sequence[str]) -> int:
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("small", "limited", "highs", "time"))
    parser.add_argument("--n", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--cards", type=int, default=3)
    parser.add_argument("--limit", type=float, default=5.0)
    parser.add_argument("--sizes", default="30x2,60x3,94x4,127x8")
    args = parser.parse_args(argv)
    if args.what in ("small", "limited"):
        seeds = range(args.first, args.first + (args.n or 5000))
        return _against_all(seeds, limits_host=args.what == "limited")
    if args.what == "highs":
        seeds = range(args.first, args.first + (args.n or 200))
        return _against_highs(seeds, args.layers, args.cards, args.limit)
    sizes = [tuple(map(int, size.split("x"))) for size in args.sizes.split(",")]
    return _time(sizes, args.n or 20)


def _against_all(seeds: range, *, limits_host: bool) -> int:
    """Every second problem has whole seconds, and so ties, which then must be broken right."""
    wrong = none = inexact = proven = 0
    for seed in seeds:
        is_coarse = seed % 2 == 0
        rng = random.Random(seed)
        problem = small_problem(rng, is_coarse=is_coarse, limits_host=limits_host)
        best = min(all_answers(problem), default=None)
        answer = solve_fastest(problem.cards, problem.host)
        if best is None or answer is None:
            none += 1
            wrong += (best is None) != (answer is None)
            continue
        slack = CLOSE * (1 + abs(best.seconds))
        is_equal = abs(answer.seconds - best.seconds) <= slack
        shortest = -inf if answer.headroom_bytes is None else -answer.headroom_bytes
        has_best_tie = (answer.n_rules, shortest) == best[1:3] or not is_coarse or limits_host
        proven += answer.gap_s <= slack
        inexact += not is_equal
        is_wrong = answer.bound_s > best.seconds + slack or answer.seconds < best.seconds - slack
        is_wrong |= not is_equal and answer.gap_s <= slack
        if is_wrong or not has_best_tie:
            wrong += 1
            print(f"seed {seed}: {answer} but the best is {best}")
    n = len(seeds)
    print(
        f"{n} problems, {none} without an answer, {n - none - inexact} of {n - none} equal to the"
        f" best of all placements, {proven} proven, {wrong} wrong"
    )
    return int(wrong > 0 or (inexact > 0 and not limits_host))


def _against_highs(seeds: range, n_layers: int, n_cards: int, limit_s: float) -> int:
    wrong = both = proven = highs_proven = better = worse = 0
    gaps = []
    for seed in seeds:
        problem = realistic_problem(
            random.Random(seed),
            n_layers,
            n_cards,
            mix=MIXES[seed % len(MIXES)],
            is_equal=seed // len(MIXES) % 2 == 1,
        )
        answer = solve_fastest(problem.cards, problem.host)
        judged = judge(problem, time_limit_s=limit_s, gap=1e-7)
        if answer is None or judged.seconds is None:
            wrong += answer is None and judged.seconds is not None
            continue
        both += 1
        slack = HIGHS_CLOSE * answer.seconds
        proven += answer.is_optimal
        gaps.append(answer.gap)
        highs_proven += judged.seconds - judged.bound_s <= slack
        better += answer.seconds < judged.seconds - slack
        worse += answer.seconds > judged.seconds + slack
        is_wrong = (
            answer.seconds > judged.seconds + answer.gap_s + slack
            or answer.seconds < judged.bound_s - slack
            or answer.bound_s > judged.seconds + slack
        )
        if is_wrong:
            wrong += 1
            print(f"seed {seed}: {answer.seconds} >= {answer.bound_s}, but HiGHS says {judged}")
    print(
        f"{n_layers} layers, {n_cards} cards: {both} of {len(seeds)} solved by both;"
        f" ours proven {proven}, largest gap {max(gaps, default=0):.1e}; HiGHS proven"
        f" {highs_proven} in {limit_s:g} s each; ours better {better}, worse {worse}"
        f" (within its gap), wrong {wrong}"
    )
    return int(wrong > 0)


def _time(sizes: Sequence[tuple[int, ...]], n: int) -> int:
    print("layers x cards   mix        median s   largest s   proven   largest gap")
    for n_layers, n_cards in sizes:
        for mix in MIXES:
            for is_equal in (False, True):
                seconds, answers = [], []
                for seed in range(n):
                    rng = random.Random(seed)
                    problem = realistic_problem(rng, n_layers, n_cards, mix=mix, is_equal=is_equal)
                    took, answer = _timed(problem, seed)
                    seconds.append(took)
                    answers.append(answer)
                found = [answer for answer in answers if answer is not None]
                proven = sum(answer.is_optimal for answer in found)
                gap = max((answer.gap for answer in found), default=0.0)
                name = f"{mix}{', equal' if is_equal else ''}"
                print(
                    f"{n_layers:5} x {n_cards}   {name:17} {statistics.median(seconds):8.3f}"
                    f" {max(seconds):11.3f} {proven:5}/{len(found)} {gap:12.1e}",
                    flush=True,
                )
    return 0


def _timed(problem: Problem, seed: int) -> tuple[float, Answer | None]:
    """Processor seconds; half of the problems may leave whole layers to the host."""
    started = time.process_time()
    answer = solve_fastest(problem.cards, problem.host, n_host_units=None if seed % 2 else 0)
    return time.process_time() - started, answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
