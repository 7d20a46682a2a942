"""Who leaves fewer expert bytes in host RAM, our spread or llama.cpp's own `--fit`?

Real shapes on realistic machines, equal budgets: both get the same cards
(loopback RPC devices that report the machine's memory), context, ubatch and
margin. Each answer is checked by a dry run of llama.cpp first, since an answer
that does not fit leaves nothing to compare. `llama-fit-params` counts logits of
a whole ubatch on the output's card where llama-server keeps one row per slot;
its margin there is lowered by the difference (offload/engine/fit_choice.py).

    python -m benchmarks.versus_fit --fit-params PATH [--shape NAME ...]

Prints one row per cell: GiB of routed experts on the host for each, whether
each fits, the ratio; then how often ours leaves at most 1 % more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offload.contenders import fit_contender
from offload.device import Device, parse_device
from offload.engine.fit_choice import ask_fit
from offload.engine.verify import verify_plan
from offload.engine.virtual_cards import virtual_cards
from offload.errors import LlamaCppError, OffloadError
from offload.model import Model, make_model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.render.text import render_columns
from offload.source import read_header
from offload.split import HOST
from offload.units import GIB, MIB
from offload.verification import Verification
from tuner.synth import write_shape

MACHINES: Final = {
    "3x22": (22, 22, 22),
    "2x24": (24, 24),
    "24+12": (24, 12),
    "4x16": (16, 16, 16, 16),
    "1x12": (12,),
}
SHAPES: Final = (
    "mistral-small-4-119b", "gpt-oss-120b", "qwen3-235b-a22b", "glm-4.5-air", "deepseek-v3",
    "kimi-k2", "minimax-m2", "qwen3-next-80b-a3b", "qwen3.5-35b-a3b", "gemma-4-26b-a4b",
    "mixtral-8x7b", "llama-4-scout", "llama-4-maverick",
)  # fmt: skip
MARGIN_BYTES: Final = GIB
SLACK_BYTES: Final = 16 * MIB
"""An estimate may eat this much of the margin; more and the answer does not count as fitting."""
OPTIONS: Final = PlanOptions(n_ctx=16384, n_parallel=1, margin_bytes=(MARGIN_BYTES,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One planner's placement: expert bytes on the host, and llama.cpp's verdict on it."""

    host_expert_bytes: int
    verification: Verification | None
    note: str = ""

    @property
    def over_bytes(self) -> int:
        """Largest overrun of free less margin on any card, by llama.cpp's dry run."""
        if self.verification is None:
            return 0
        return max(check.over_budget_bytes for check in self.verification.devices)

    @property
    def fits(self) -> bool:
        """True when llama.cpp's dry run keeps to the budget, give or take `SLACK_BYTES`."""
        return self.verification is not None and self.over_bytes <= SLACK_BYTES


def host_expert_bytes(plan: Plan) -> int:
    """Routed-expert bytes that no card holds, layers wholly on the host included."""
    return sum(
        t.n_bytes
        for t in plan.model.expert_tensors
        if t.loaded and plan.placement.placed.get(t.name, plan.split.owners[t.il or 0]) == HOST
    )


def judge(plan: Plan, endpoints: Sequence[str], note: str = "") -> Answer:
    """Have llama.cpp check a plan."""
    return Answer(
        host_expert_bytes=host_expert_bytes(plan),
        verification=verify_plan(plan, endpoints=endpoints),
        note=note,
    )


def ours(model: Model, cards: Sequence[Device], endpoints: Sequence[str]) -> Answer:
    """Our spread."""
    plan = make_plan(model, cards, OPTIONS)
    return judge(plan, endpoints, "" if plan.feasible else "planned as not fitting")


def by_fit(
    program: Path, model: Model, cards: Sequence[Device], endpoints: Sequence[str]
) -> Answer:
    """llama.cpp's own answer, laid out as a plan so that the same judge prices it."""
    try:
        found = ask_fit(make_plan(model, cards, OPTIONS), program)
    except LlamaCppError as error:
        return Answer(host_expert_bytes=0, verification=None, note=str(error))
    return judge(fit_contender(model, cards, OPTIONS, found).plan, endpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell of the comparison."""

    shape: str
    machine: str
    ours: Answer
    fit: Answer

    @property
    def is_comparable(self) -> bool:
        """`--fit` gave an answer that llama.cpp itself says fits."""
        return self.fit.fits

    @property
    def holds(self) -> bool:
        """Ours fits and leaves at most 1 % more on the host."""
        return self.ours.fits and self.ours.host_expert_bytes <= (1.01 * self.fit.host_expert_bytes)

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        return (
            self.shape,
            self.machine,
            f"{self.ours.host_expert_bytes / GIB:.2f}",
            _verdict(self.ours),
            f"{self.fit.host_expert_bytes / GIB:.2f}",
            _verdict(self.fit),
            "" if not self.is_comparable else ("ok" if self.holds else "MORE"),
        )


def _verdict(answer: Answer) -> str:
    if answer.verification is None:
        return answer.note[:60]
    if answer.fits:
        return "fits"
    return f"over by {answer.over_bytes / MIB:.0f} MiB {answer.note}".strip()


def compare(program: Path, shapes: Sequence[str], folder: Path) -> Iterator[Row]:
    """Every shape on every machine."""
    for shape in shapes:
        path = folder / f"{shape}.gguf"
        model = make_model(read_header(write_shape(shape, path)))
        for machine, sizes in MACHINES.items():
            free = [size * GIB for size in sizes]
            with virtual_cards(len(free), free_bytes=free) as served:
                cards = [
                    parse_device(f"{card.name}[{card.endpoint}]:{n_bytes}")
                    for card, n_bytes in zip(served, free, strict=True)
                ]
                endpoints = [card.endpoint for card in served]
                yield Row(
                    shape=shape,
                    machine=machine,
                    ours=ours(model, cards, endpoints),
                    fit=by_fit(program, model, cards, endpoints),
                )
        path.unlink()


def main() -> int:
    """Print the table; exit 1 when a plan of ours does not fit or too many leave more."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fit-params", type=Path, required=True)
    parser.add_argument("--shape", action="append", choices=SHAPES)
    args = parser.parse_args()
    head = ("shape", "cards", "ours GiB", "ours", "--fit GiB", "--fit", "<= 1 % more")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        for row in compare(args.fit_params, args.shape or SHAPES, Path(name)):
            rows.append(row)
            print("  ".join(row.cells()), flush=True)
    print()
    print("\n".join(render_columns([head, *(row.cells() for row in rows)], "<<><><<")))
    comparable = [row for row in rows if row.is_comparable]
    held = sum(row.holds for row in comparable)
    unfit = [row for row in rows if not row.ours.fits and not row.ours.note]
    print(f"\n{held} of {len(comparable)} cells where --fit's answer fits: at most 1 % more")
    print(f"plans of ours marked feasible that do not fit: {len(unfit)}")
    return 1 if unfit or held < 0.9 * len(comparable) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OffloadError as error:
        sys.exit(f"versus_fit: {error}")
