"""Is the chosen placement ever slower than what people use, does it fit, is llama.cpp agreed?

Real shapes on realistic machines, most with cards of unequal memory, bandwidth and link. For
each cell the plan is made as `offload plan` does, by data sheets; the even spread, first-N,
last-N, all experts on the host and each card alone are planned apart from it and priced by
the same clock.

    python -m benchmarks.fastest_cells [--shape NAME ...] [--machine NAME ...]
        [--judge N] [--fit PATH [--fit-answers FILE] [--reorder]] [--no-compare]

`--judge N` has llama.cpp's dry run confirm every N-th plan, `--fit PATH` asks
that llama-fit-params what it would set on the same memory and prices its answer, beside a
plan for a turn of decode alone too (`--turn prompt=0`); `--fit-answers FILE` keeps its
answers, `--reorder` lets us choose which card is the first. Prints a row for each cell and
the summary; exit 1 where a plan does not fit, is slower than a baseline, or where `--fit`
has a turn, of either kind, that is 1 % shorter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.versus_fit import SHAPES
from offload.across_search import ACROSS
from offload.clock import clock_of_plan
from offload.contenders import FitAnswer, fit_contender, make_contenders
from offload.device import Device, parse_device
from offload.engine.fit_choice import ask_fit
from offload.engine.library_build import library_build
from offload.engine.verify import verify_plan
from offload.errors import LlamaCppError, OffloadError
from offload.forecast import make_forecast
from offload.free_settings import best_settings
from offload.machine import Host
from offload.model import Model, make_model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.speeds import Speeds
from offload.time_search import SAME_SHARE
from offload.turn import Turn
from offload.units import MIB
from tuner.synth import write_shape

_3090: Final = "24GiB:936GB/s"
_3060: Final = "12GiB:360GB/s"
_4090: Final = "24GiB:1008GB/s"
_5090: Final = "32GiB:1792GB/s"
_P40: Final = "24GiB:346GB/s"
_T4: Final = "16GiB:320GB/s"
_A6000: Final = "48GiB:768GB/s"
_X16: Final = "25GB/s"
_X8: Final = "12GB/s"
_X4: Final = "6GB/s"
_X1: Final = "1GB/s"
EQUAL: Final = frozenset(("1x3090", "2x3090", "4x3090", "2xa6000", "6x3060"))
MACHINES: Final = {
    "1x3090": (f"{_3090}:{_X16}",),
    "2x3090": (f"{_3090}:{_X16}",) * 2,
    "4x3090": (f"{_3090}:{_X8}",) * 4,
    "2xa6000": (f"{_A6000}:{_X16}",) * 2,
    "6x3060": (f"{_3060}:{_X4}",) * 6,
    "3090+3060": (f"{_3090}:{_X16}", f"{_3060}:{_X4}"),
    "3060+3090": (f"{_3060}:{_X4}", f"{_3090}:{_X16}"),
    "5090+4090": (f"{_5090}:50GB/s", f"{_4090}:{_X8}"),
    "4090+2x3060": (f"{_4090}:{_X16}", f"{_3060}:{_X4}", f"{_3060}:{_X1}"),
    "2x3090+p40": (f"{_3090}:{_X8}", f"{_3090}:{_X8}", f"{_P40}:{_X4}"),
    "p40+2x3090": (f"{_P40}:{_X4}", f"{_3090}:{_X8}", f"{_3090}:{_X8}"),
    "a6000+t4": (f"{_A6000}:{_X16}", f"{_T4}:{_X4}"),
    "t4+a6000": (f"{_T4}:{_X1}", f"{_A6000}:{_X16}"),
    "4090+3p40": (f"{_4090}:{_X16}", *(f"{_P40}:{_X4}",) * 3),
    "3090+3090x1": (f"{_3090}:{_X16}", f"{_3090}:{_X1}"),
    "display": (f"20GiB:936GB/s:{_X16}", f"{_3090}:{_X8}"),
    "5090+3060+p40+t4": (f"{_5090}:50GB/s", f"{_3060}:{_X4}", f"{_P40}:{_X4}", f"{_T4}:{_X1}"),
    "8gb+24gb": (f"8GiB:288GB/s:{_X8}", f"{_3090}:{_X4}"),
}
OPTIONS: Final = PlanOptions(n_ctx=16384, n_parallel=1, llama_build=library_build())
HOST: Final = Host(bandwidth_bytes_per_s=80 * 10**9)
HOST_BYTES: Final = 1 << 40
SLACK_BYTES: Final = 16 * MIB
"""An estimate may eat this much of the margin."""


RATIOS: Final = ("decode", "prefill", "turn", "turn of decode alone", "turn, order chosen")
TURN, DECODE_TURN = RATIOS.index("turn"), RATIOS.index("turn of decode alone")


class Fit:
    """llama-fit-params, and its answers so far, in a file where they are to be kept."""

    def __init__(self, program: Path, answers: Path | None = None, reorder: bool = False) -> None:
        self._program, self._file, self.reorder = program, answers, reorder
        lines = answers.read_text().splitlines() if answers and answers.exists() else ()
        rows = (json.loads(line) for line in lines)
        self._known = {(shape, machine): answer for shape, machine, answer in rows}

    def ask(
        self, model: Model, cards: Sequence[Device], shape: str, machine: str
    ) -> FitAnswer | None:
        """What it would set; None where it gives up."""
        if (shape, machine) not in self._known:
            asked = make_plan(model, cards, OPTIONS, host_free_bytes=HOST_BYTES)
            answer: object
            try:
                answer = ask_fit(asked, self._program)._asdict()
            except LlamaCppError as error:
                answer = str(error)
            self._known[shape, machine] = answer
            if self._file is not None:
                with self._file.open("a") as file:
                    file.write(json.dumps([shape, machine, answer]) + "\n")
        found = self._known[shape, machine]
        if not isinstance(found, dict):
            return None
        return FitAnswer(
            n_gpu_layers=found["n_gpu_layers"],
            tensor_split=tuple(found["tensor_split"]),
            overrides=found["overrides"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One shape on one machine: our plan, seconds of it and of the others, verdicts."""

    shape: str
    machine: str
    plan: Plan
    turn_s: float
    others: dict[str, float]
    plan_cpu_s: float
    over_bytes: int | None = None
    fit: tuple[float, ...] | None = None
    """`--fit`'s seconds over ours: decode, prefill, turn, and what `RATIOS` names besides.

    None where it was not asked, or its answer does not fit.
    """

    @property
    def own_cards_s(self) -> float | None:
        """The turn of the best placement whose experts are on their owner or the host."""
        choice = self.plan.choice
        assert choice is not None
        turns = [
            one.turn_s
            for one in choice.baselines
            if one.feasible and one.turn_s is not None and one.name != ACROSS
        ]
        return min(turns, default=None)

    @property
    def loses_to_fit(self) -> bool:
        """Whether `--fit` has a turn that is shorter by more than is told apart."""
        if self.fit is None:
            return False
        return min(self.fit[TURN], self.fit[DECODE_TURN]) < 1 / (1 + SAME_SHARE) - 1e-9

    @property
    def worst(self) -> float:
        """Our seconds over those of the best baseline."""
        return self.turn_s / min(self.others.values()) if self.others else 0.0

    @property
    def is_slower(self) -> bool:
        """Slower than a baseline by more than the one per cent that is not told apart."""
        return self.worst > 1 + SAME_SHARE + 1e-9

    def row(self) -> str:
        """The cell as text."""
        choice = self.plan.choice
        assert choice is not None
        gap = "" if choice.gap is None else f"{100 * choice.gap:.2f}"
        checked = "" if self.over_bytes is None else f" over {self.over_bytes / MIB:.0f} MiB"
        fit = "" if self.fit is None else " fit/ours " + " ".join(f"{r:.3f}" for r in self.fit)
        even = self.others.get("even", 0.0) / self.turn_s
        return (
            f"{self.shape:22} {self.machine:17} {choice.name:12} {self.turn_s:8.2f} s"
            f" gap {gap:>5} % even/ours {even:.3f} ours/best {self.worst:.4f}"
            f" {self.plan_cpu_s:.2f} s CPU{checked}{fit}"
        )


def cards_of(machine: str) -> tuple[str, ...]:
    """The machine's cards as `--gpu` takes them."""
    return tuple(f"CUDA{d}:{text}" for d, text in enumerate(MACHINES[machine]))


def make_cell(
    shape: str,
    model: Model,
    machine: str,
    *,
    judge: bool = False,
    fit: Fit | None = None,
    compare: bool = True,
) -> Cell:
    """Plan one cell and everything it is compared with."""
    cards = [parse_device(text) for text in cards_of(machine)]
    speeds = Speeds(host=HOST)
    started = time.process_time()
    plan = make_plan(model, cards, OPTIONS, host_free_bytes=HOST_BYTES, speeds=speeds)
    cpu_s = time.process_time() - started
    turn_s = clock_of_plan(plan, speeds).seconds(plan.placement)
    others = {
        one.name: one.turn.seconds
        for one in (
            make_contenders(
                model, cards, OPTIONS, host_free_bytes=HOST_BYTES, speeds=speeds, own=plan
            )
            if compare
            else ()
        )
        if one.plan.feasible and one.turn is not None and one.name != "own"
    }
    over = None
    if judge:
        over = max(check.over_budget_bytes for check in verify_plan(plan).devices)
    ratios = None if fit is None else _fit_ratios(plan, cards, turn_s, speeds, fit, shape, machine)
    return Cell(
        shape=shape, machine=machine, plan=plan, turn_s=turn_s, others=others,
        plan_cpu_s=cpu_s, over_bytes=over, fit=ratios,
    )  # fmt: skip


def _fit_ratios(
    plan: Plan,
    cards: Sequence[Device],
    turn_s: float,
    speeds: Speeds,
    fit: Fit,
    shape: str,
    machine: str,
) -> tuple[float, ...] | None:
    model = plan.model
    answer = fit.ask(model, cards, shape, machine)
    if answer is None:
        return None
    found = fit_contender(model, cards, OPTIONS, answer, host_free_bytes=HOST_BYTES, speeds=speeds)
    theirs, ours = make_forecast(found.plan, HOST), make_forecast(plan, HOST)
    over = max(found.plan.short_bytes.values(), default=0)
    if theirs is None or ours is None or found.turn is None or over > 64 * MIB:
        return None
    alone = speeds._replace(turn=Turn(n_prompt=0))
    decoding = make_plan(model, cards, OPTIONS, host_free_bytes=HOST_BYTES, speeds=alone)
    decode_s = clock_of_plan(decoding, alone).seconds(decoding.placement)
    ratios = (
        theirs.decode.seconds / ours.decode.seconds,
        theirs.prefill.seconds / ours.prefill.seconds,
        found.turn.seconds / turn_s,
        clock_of_plan(found.plan, alone).seconds(found.plan.placement) / decode_s,
    )
    if not fit.reorder:
        return ratios
    return (*ratios, found.turn.seconds / _turn_in_best_order(model, cards, speeds))


def _turn_in_best_order(model: Model, cards: Sequence[Device], speeds: Speeds) -> float:
    plan = best_settings(
        model,
        cards,
        OPTIONS,
        speeds=speeds,
        host_free_bytes=HOST_BYTES,
        ubatches=(),
        may_reorder=True,
    )
    return clock_of_plan(plan, speeds).seconds(plan.placement)


def make_cells(
    shapes: Sequence[str],
    machines: Sequence[str],
    folder: Path,
    *,
    judge_every: int = 0,
    fit: Fit | None = None,
    compare: bool = True,
) -> Iterator[Cell]:
    """Every shape on every machine."""
    n = 0
    for shape in shapes:
        path = folder / f"{shape}.gguf"
        model = make_model(read_header(write_shape(shape, path)))
        for machine in machines:
            n += 1
            judge = bool(judge_every) and n % judge_every == 0
            yield make_cell(shape, model, machine, judge=judge, fit=fit, compare=compare)
        path.unlink()


def main() -> int:
    """Print the cells; exit 1 where one does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--machine", action="append", choices=MACHINES)
    parser.add_argument("--judge", type=int, default=0, metavar="N")
    parser.add_argument("--fit", type=Path, metavar="PATH")
    parser.add_argument("--fit-answers", type=Path, metavar="FILE")
    parser.add_argument("--reorder", action="store_true")
    parser.add_argument("--no-compare", action="store_true", help="plan, and judge, no more")
    args = parser.parse_args()
    fit = None if args.fit is None else Fit(args.fit, args.fit_answers, args.reorder)
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory() as name:
        for cell in make_cells(
            args.shape or SHAPES,
            args.machine or tuple(MACHINES),
            Path(name),
            judge_every=args.judge,
            fit=fit,
            compare=not args.no_compare,
        ):
            cells.append(cell)
            print(cell.row(), flush=True)
    return _summary(cells)


def _summary(cells: Sequence[Cell]) -> int:
    unfit = [c for c in cells if not c.plan.feasible]
    slower = [c for c in cells if c.is_slower]
    judged = [c.over_bytes for c in cells if c.over_bytes is not None]
    over = [n for n in judged if n > SLACK_BYTES]
    uneven = [c for c in cells if c.machine not in EQUAL]
    print(f"\n{len(cells)} cells: {len(unfit)} do not fit, {len(slower)} slower than a baseline")
    for text, some in (("all cells", cells), ("unequal cards", uneven)):
        ratios = [c.others["even"] / c.turn_s for c in some if "even" in c.others] or [1.0]
        print(
            f"{text}: even spread over ours, median {statistics.median(ratios):.3f}"
            f", best {max(ratios):.3f}"
        )
        _fit_summary([c for c in some if c.fit is not None])
    _across_summary(cells)
    _across_summary(cells)
    cpu = sorted(c.plan_cpu_s for c in cells)
    print(f"CPU seconds of a plan: median {statistics.median(cpu):.3f}, most {cpu[-1]:.3f}")
    print(f"{len(judged)} judged by llama.cpp's dry run, {len(over)} over their budget")
    return 1 if unfit or slower or over or any(c.loses_to_fit for c in cells) else 0


def _fit_summary(cells: Sequence[Cell]) -> None:
    """`--fit`'s seconds over ours, and why a token takes longer here than there."""
    asked = [c.fit for c in cells if c.fit is not None]
    for k, what in enumerate(RATIOS):
        found = sorted(ratio[k] for ratio in asked if k < len(ratio))
        if found:
            print(
                f"  --fit over ours, {what}: median {statistics.median(found):.3f},"
                f" least {found[0]:.3f}, {sum(r < 0.9999 for r in found)} of {len(found)}"
                f" where --fit is faster, {sum(r < 1 / (1 + SAME_SHARE) for r in found)} by 1 %"
            )
    slower = [ratio for ratio in asked if ratio[0] < 1 / (1 + SAME_SHARE)]
    traded = [ratio for ratio in slower if ratio[TURN] > 1 + SAME_SHARE]
    if slower:
        print(
            f"  decode is slower by 1 % in {len(slower)}; {len(traded)} of them for a shorter turn:"
            f" prefill {min((r[1] for r in traded), default=0.0):.2f} to"
            f" {max((r[1] for r in traded), default=0.0):.2f} times as fast"
        )


def _across_summary(cells: Sequence[Cell]) -> None:
    """What experts on cards that do not own their layers are worth."""
    for text, some in (
        ("unequal cards", [c for c in cells if c.machine not in EQUAL]),
        ("equal cards", [c for c in cells if c.machine in EQUAL and len(MACHINES[c.machine]) > 1]),
    ):
        gains = sorted(
            c.own_cards_s / c.turn_s
            for c in some
            if c.plan.placement.crossed and c.own_cards_s is not None
        )
        if some:
            said = (
                f", the turn without over that: median {statistics.median(gains):.3f}, least"
                f" {gains[0]:.3f}, most {gains[-1]:.3f}"
                if gains
                else ""
            )
            print(f"{text}: experts on other cards in {len(gains)} of {len(some)}{said}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OffloadError as error:
        sys.exit(f"fastest_cells: {error}")
