"""The case this project was born from, from the header to generated tokens.

A 119B mixture-of-experts model (57 GB at a Q3 mix) on two and three 22 GiB
cards. Sending "the experts of the first N layers" to the host never relieves
the second card, because `-sm layer` gives those layers to the first; relief
within each card's own layers fits. llama.cpp confirms every number on virtual
cards, then a small random model really runs, split over three of them.

    python -m benchmarks.case_study

No GPU, no download: the big model is a true header over a hole in a sparse
file, the small one is made of random weights.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from offload.device import Device, devices_from_flags, parse_device
from offload.emit import emit_server_args, make_launch, quote_argv
from offload.engine.generate import generate
from offload.engine.verify import check_report, load_options, verify_plan
from offload.engine.virtual_cards import virtual_cards
from offload.errors import OffloadError
from offload.memory import MemoryBytes
from offload.model import Model, make_model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.render import render_plan
from offload.render.text import render_columns
from offload.source import read_header
from offload.units import GIB, MIB
from offload.verification import Verification
from tuner.synth import write_random, write_shape

N_CTX = 8192
CARD_BYTES = 22 * GIB + GIB // 2
"""A 2080 Ti modified to 22 GB shows about 22.5 GiB of it."""
HOST_BYTES = 120 * GIB
"""What 128 GB of RAM leave free."""


def say(text: str = "") -> None:
    """Print at once, so that progress shows through a pipe."""
    print(text, flush=True)


def headline(text: str) -> None:
    """A line that starts a part."""
    say(f"\n== {text}")


def cards(n: int) -> tuple[Device, ...]:
    """`n` cards of the case study."""
    return devices_from_flags(n, (CARD_BYTES,))


def first_n_rows(model: Model, endpoints: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Weights of both cards for -ncmoe 0, 8…11: ours, and llama.cpp's own."""
    yield "-ncmoe", "card 0 planned", "llama.cpp", "card 1 planned", "llama.cpp", ""
    rpc = [parse_device(f"RPC{i}[{e}]:{CARD_BYTES}") for i, e in enumerate(endpoints)]
    for n in (0, 8, 9, 10, 11):
        options = PlanOptions(
            n_ctx=N_CTX, tensor_split=(1.0, 1.0), n_cpu_moe=n or None, strategy=Strategy.NONE
        )
        plan = make_plan(model, rpc, options)
        checks = verify_plan(plan, endpoints=endpoints).devices
        cells = [
            f"{number.model_bytes / MIB:.0f}"
            for check in checks
            for number in (check.planned, check.actual)
        ]
        over = checks[1].actual.total_bytes - CARD_BYTES
        yield str(n), *cells, f"card 1 over by {over / MIB:.0f} MiB" if over > 0 else ""


def check_rows(verification: Verification) -> Iterator[tuple[str, ...]]:
    """Planned beside llama.cpp's own numbers, MiB."""
    yield "MiB", "weights", "llama.cpp", "context", "llama.cpp", "compute", "llama.cpp", "free"
    for check in (*verification.devices, verification.host):
        free = "" if check.free_bytes is None else f"{check.free_bytes / MIB:.0f}"
        yield check.name, *_pairs(check.planned, check.actual), free


def _pairs(planned: MemoryBytes, actual: MemoryBytes) -> tuple[str, ...]:
    return tuple(
        f"{value / MIB:.1f}"
        for p, a in (
            (planned.model_bytes, actual.model_bytes),
            (planned.context_bytes, actual.context_bytes),
            (planned.compute_bytes, actual.compute_bytes),
        )
        for value in (p, a)
    )


def show(rows: Iterator[tuple[str, ...]]) -> None:
    """Rows as an aligned table."""
    listed = list(rows)
    for line in render_columns(listed, "<" + ">" * (len(listed[0]) - 1)):
        say(line)


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What the whole run found; every False makes the exit code 1."""

    ok: bool = True

    def expect(self, holds: bool, text: str) -> None:
        """Say what was expected and whether it holds."""
        self.ok &= holds
        say(f"{'ok' if holds else 'NOT OK'}: {text}")


def plan_and_confirm(model: Model, n_cards: int, verdict: Verdict) -> Plan:
    """Plan for `n_cards` of the case study's cards and have llama.cpp confirm it."""
    headline(f"{n_cards} cards of 22.5 GiB: the plan, and llama.cpp's answer to it")
    plan = make_plan(model, cards(n_cards), PlanOptions(n_ctx=N_CTX), host_free_bytes=HOST_BYTES)
    say(render_plan(plan))
    verification = verify_plan(plan)
    say()
    show(check_rows(verification))
    verdict.expect(verification.places_equal, "every layer and tensor is where it was planned")
    verdict.expect(plan.feasible and verification.fits, "llama.cpp's own numbers fit every card")
    return plan


def run_small(folder: Path, verdict: Verdict) -> None:
    """A small model, too big for three small cards, really runs where it was planned."""
    headline("a small random model, really loaded and run over three virtual cards")
    path = write_random(
        folder / "small.gguf", arch="qwen3moe", n_layer=12, n_embd=512, n_expert=16,
        n_expert_used=4, n_ff_exp=512, quant="Q4_K_M", seed=1,
    )  # fmt: skip
    model = make_model(read_header(path))
    with virtual_cards(3) as served:
        endpoints = [card.endpoint for card in served]
        room = model.size_bytes // 5 + 12 * MIB
        devices = [parse_device(f"RPC{i}[{e}]:{room}") for i, e in enumerate(endpoints)]
        options = PlanOptions(n_ctx=1024, n_ubatch=128, margin_bytes=(4 * MIB,))
        plan = make_plan(model, devices, options, host_free_bytes=HOST_BYTES)
        say(render_plan(plan))
        ran = generate(load_options(plan), "Once upon a time", n_predict=8, endpoints=endpoints)
    say(f"\ntokens {ran.tokens}, {ran.decode_t_s or 0:.1f} tok/s: planned and really allocated")
    verification = check_report(plan, ran.report)
    show(check_rows(verification))
    verdict.expect(plan.feasible and verification.fits, "the real buffers fit every card")
    verdict.expect(bool(plan.rules) and verification.places_equal, "the rules hit what they mean")
    verdict.expect(len(ran.tokens) == 8, "eight tokens came out")


def main() -> int:
    """Run the whole story; exit 1 when llama.cpp disagrees anywhere."""
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(read_header(write_shape("mistral-small-4-119b", folder / "119b.gguf")))
        headline("two cards, -ts 1,1, -c 8192: the first N layers' experts on the host")
        with virtual_cards(2) as served:
            show(first_n_rows(model, [card.endpoint for card in served]))
        say("The number that does not move belongs to the card that owns none of those layers.")
        plan_and_confirm(model, 3, verdict)
        two = plan_and_confirm(model, 2, verdict)
        say("\nThe command for two cards, with the model's real path:")
        say(quote_argv(emit_server_args(make_launch(two))))
        run_small(folder, verdict)
    headline("all as planned" if verdict.ok else "something is not as planned, see above")
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OffloadError as error:
        sys.exit(f"case_study: {error}")
