"""A speed check in words, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tuner.paired.result import SpeedCheck, TestResult
from tuner.paired.verdict import Verdict


def describe_result(result: TestResult) -> str:
    """One line: `decode slower: 10.2 % more time (8.1 to 12.4), p 0.0004, tolerance 5 %`."""
    c = result.comparison
    size = f"{_share(c.ratio)} ({_share(c.low)} to {_share(c.high)}, {c.confidence:.1%} sure)"
    p = c.p_faster if c.ratio < 1 else c.p_slower
    line = f"{result.test} {c.verdict}: time {size}, p {p:.2g}, tolerance {c.tolerance:.0%}"
    if c.verdict is Verdict.CANNOT_TELL:
        line += f"; {what_it_takes(result)}"
    return line


def what_it_takes(result: TestResult) -> str:
    """What would turn "cannot tell" into an answer."""
    if result.needed_s is None:
        return (
            f"no amount of time is likely to tell at a noise of {result.noise:.0%}, or the"
            " difference lies at the tolerance itself; a quieter machine, or another tolerance"
        )
    return f"about --time {math.ceil(result.needed_s)}s would, at a noise of {result.noise:.0%}"


def describe_check(check: SpeedCheck) -> Iterator[str]:
    """All of it: who, the tests, and how much was seen."""
    yield f"{check.name_a} against {check.name_b}: {check.verdict}"
    for result in check.results:
        yield describe_result(result)
        t_s, other_t_s = 1 / result.seconds_a, 1 / result.seconds_b
        yield f"  {t_s:.4g} t/s against {other_t_s:.4g} t/s (medians)"
    what = "pairs" if check.kind == "paired" else "values"
    load = "" if check.load is None else f", others used {check.load:.0%} of the processors"
    noise = ", ".join(f"{r.test} {r.noise:.1%} (drift {r.drift:+.1%})" for r in check.results)
    yield (
        f"{check.n_pairs} {what} of {check.sizes.n_prompt} + {check.sizes.n_gen} tokens,"
        f" {check.n_starts} starts, {check.spent_s:.0f} s{load}; noise of one: {noise}"
    )
    yield from check.notes


def check_to_json(check: SpeedCheck) -> dict[str, Any]:
    """Plain values; ends of intervals that are open are null."""
    row: dict[str, Any] = _finite(asdict(check))
    return {"verdict": str(check.verdict), **row}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Verdict) else value


def _share(ratio: float) -> str:
    return f"{ratio - 1:+.1%}" if math.isfinite(ratio) else "?"
