"""How far are predictions of held-out targets off, beside how far a run is from itself?

Reads what benchmarks/held_out.py measured. The costs are fitted to the samples of the
target's own cut, and once more to those of all other cuts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from offload.cost import Coefficients, Prediction, Work, predict
from tuner.fit import fit
from tuner.samples import make_runs

CARD_MODELS: Final = {"RPC0": "virtual card", "RPC1": "virtual card"}


class Held(NamedTuple):
    """One timed thing that was held out, with what was predicted of it."""

    target: str
    label: str
    phase: str
    n_tokens: int
    round: int
    seconds: float
    """The median of its repetitions."""
    scatter: float
    """Standard deviation of its repetitions over their median."""
    load: float
    prediction: Prediction
    slowness: float = 1.0
    """What the run of the cut took beside it, over what was expected of that."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.prediction.seconds / self.seconds - 1.0

    @property
    def error_beside(self) -> float:
        """The same with the machine's speed at that time divided out."""
        return self.prediction.seconds * self.slowness / self.seconds - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the 90 % interval holds it."""
        return self.prediction.low_s <= self.seconds <= self.prediction.high_s


def read_rows(folders: Sequence[Path]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows of every finished target by folder and name."""
    found = {}
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl")):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            if rows and rows[-1]["kind"] == "done":
                found[folder.name, path.stem] = rows
    return found


def predicted(rows: Sequence[Mapping[str, Any]], coefficients: Coefficients) -> Iterator[Held]:
    """What the coefficients say of each held-out row."""
    slowness = _slowness_at(rows, coefficients)
    for i, row in enumerate(rows):
        if row["kind"] != "held":
            continue
        said = predict(Work(amounts=row["work"]), coefficients)
        if said is None:
            continue
        seconds = [ns / 1e9 for ns in row["samples_ns"]]
        middle = statistics.median(seconds)
        yield Held(
            target=row["target"],
            label=row["label"],
            phase=row["phase"],
            n_tokens=row["n_tokens"],
            round=row["round"],
            seconds=middle,
            scatter=statistics.stdev(seconds) / middle,
            load=row["load"],
            prediction=said,
            slowness=slowness(i, row["phase"]),
        )


def _slowness_at(
    rows: Sequence[Mapping[str, Any]], coefficients: Coefficients
) -> Callable[[int, str], float]:
    """How slow the machine was at row `i`: by the runs of the cut before and after it.

    Their seconds over what is expected of them, geometric mean; 1 where none was made.
    """
    found: dict[str, list[tuple[int, float]]] = {"decode": [], "prefill": []}
    for i, row in enumerate(rows):
        if row["kind"] == "beside":
            said = predict(Work(amounts=row["work"]), coefficients)
            if said is not None:
                seconds = statistics.median(row["samples_ns"]) / 1e9
                found[row["phase"]].append((i, seconds / said.seconds))

    def at(i: int, phase: str) -> float:
        # a run of the cut leaves several rows: two prompts, one generation
        n = 2 if phase == "prefill" else 1
        before = [ratio for j, ratio in found[phase] if j < i][-n:]
        after = [ratio for j, ratio in found[phase] if j > i][:n]
        return statistics.geometric_mean(before + after) if before or after else 1.0

    return at


def judge(folders: Sequence[Path], *, is_detailed: bool) -> None:
    """Print errors of each folder: costs of the target's own cut, and of all other cuts."""
    everything = read_rows(folders)
    for folder in folders:
        mine = {name: rows for (place, name), rows in everything.items() if place == folder.name}
        samples = {
            name: [row for row in rows if row["kind"] == "sample"] for name, rows in mine.items()
        }
        own: list[Held] = []
        other: list[Held] = []
        for name, rows in mine.items():
            own += predicted(
                rows, fit(make_runs(samples[name]), card_models=CARD_MODELS).coefficients
            )
            rest = [row for key, rows_ in samples.items() if key != name for row in rows_]
            if rest:
                other += predicted(rows, _fitted(rest))
        print(f"## {folder.name}: {len(mine)} targets, {len(own)} held-out measurements")
        if is_detailed:
            _print_cells(own)
        _print_errors("its own cut", own)
        _print_errors("all other cuts", other)
        _print_noise(own)


def _fitted(samples: Sequence[Mapping[str, Any]]) -> Coefficients:
    return fit(make_runs(samples), card_models=CARD_MODELS).coefficients


def _print_cells(cells: Sequence[Held]) -> None:
    print(
        "| target | placement | phase | t/s | predicted | 90 % | error | beside"
        " | scatter | others' load |"
    )
    print("|---|---|---|--:|--:|---|--:|--:|--:|--:|")
    for cell in cells:
        said, n = cell.prediction, cell.n_tokens
        print(
            f"| {cell.target} | {cell.label} | {cell.phase} | {n / cell.seconds:.1f}"
            f" | {n / said.seconds:.1f} | {n / said.high_s:.1f}-{n / said.low_s:.1f}"
            f" | {cell.error:+.1%} | {cell.error_beside:+.1%} | {cell.scatter:.1%}"
            f" | {cell.load:.0%} |"
        )


def _print_errors(source: str, cells: Sequence[Held]) -> None:
    for phase in ("decode", "prefill"):
        chosen = [cell for cell in cells if cell.phase == phase]
        if not chosen:
            continue
        errors = sorted(abs(cell.error) for cell in chosen)
        within = sum(error <= 0.10 for error in errors) / len(errors)
        inside = sum(cell.is_inside for cell in chosen) / len(chosen)
        scatter = statistics.median(cell.scatter for cell in chosen)
        bias = statistics.median(cell.error for cell in chosen)
        print(
            f"{phase}, costs of {source}: median error {statistics.median(errors):.1%}"
            f" (signed {bias:+.1%}), largest {errors[-1]:.1%}, within 10 % {within:.0%},"
            f" inside the 90 % interval {inside:.0%}; repetitions scatter {scatter:.1%};"
            f" machine's speed divided out: {_errors_beside(chosen)}"
        )


def _errors_beside(cells: Sequence[Held]) -> str:
    errors = sorted(abs(cell.error_beside) for cell in cells)
    within = sum(error <= 0.10 for error in errors) / len(errors)
    return f"median error {statistics.median(errors):.1%}, within 10 % {within:.0%}"


def _print_noise(cells: Sequence[Held]) -> None:
    """How far rounds of the same run differ, and runs of the cut: no prediction is in that."""
    for phase in ("decode", "prefill"):
        by_run: dict[tuple[str, str], list[Held]] = {}
        for cell in cells:
            if cell.phase == phase:
                by_run.setdefault((cell.target, cell.label), []).append(cell)
        raw = [_spread([c.seconds for c in runs]) for runs in by_run.values() if runs[1:]]
        if not raw:
            continue
        rest = [
            _spread([c.seconds / c.slowness for c in runs]) for runs in by_run.values() if runs[1:]
        ]
        print(
            f"{phase}, the same run in another round: differs by {statistics.median(raw):.1%}"
            f" (median of {len(raw)}), at most {max(raw):.1%}; machine's speed divided out"
            f" {statistics.median(rest):.1%}, at most {max(rest):.1%}"
        )


def _spread(seconds: Sequence[float]) -> float:
    return max(seconds) / min(seconds) - 1.0
