"""Do `offload verify` and llama.cpp's own llama-fit-params say the same of every architecture?

Plans each model of MODELS_DIR (one GGUF per architecture, as llama.cpp's
test-llama-archs writes them) for two cards, then asks twice about exactly the same
arguments, on the same build: our dry run in process, and `llama-fit-params -fitp on`
on loopback RPC cards. Weights and context must be equal to the MiB it prints; compute
too, since both are told to count the outputs of a whole batch.

    python -m benchmarks.verify_peers MODELS_DIR --fit-params PATH

Prints a row per architecture that differs, and the count of those that agree.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from offload.device import devices_from_flags
from offload.engine.binaries import library_folder
from offload.engine.dry_run import BINARY, IN_PROCESS, dry_run, nearest_for_fit_params
from offload.engine.load_options import LoadOptions
from offload.engine.report import LoadReport
from offload.engine.verify import load_options
from offload.engine.virtual_cards import virtual_cards
from offload.errors import LlamaCppError, OffloadError
from offload.model import Model, make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.source import read_header
from offload.units import GIB, MIB


def planned(model: Model) -> LoadOptions:
    """Two cards that hold about half of the experts, as settings of a load."""
    room = (model.size_bytes - model.expert_bytes // 2) // 2 + 300 * MIB
    cards = devices_from_flags(2, (room, room))
    options = PlanOptions(n_ctx=1024, margin_bytes=(0,), n_ubatch=128)
    plan = make_plan(model, cards, options, host_free_bytes=100 * GIB)
    return nearest_for_fit_params(load_options(plan))


def rows(report: LoadReport) -> dict[str, tuple[int, int, int]]:
    """MiB rounded down of model, context and compute, as llama-fit-params prints them."""
    devices = (*report.devices, report.host)
    return {
        d.name: (d.model_bytes // MIB, d.context_bytes // MIB, d.compute_bytes // MIB)
        for d in devices
    }


def compare(
    paths: Sequence[Path], program: Path, endpoints: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Name and verdict (`equal` or what differs) of every architecture."""
    folder = library_folder(program)
    for path in paths:
        name = path.stem
        try:
            options = planned(make_model(read_header(path)))
            ours = dry_run(options, endpoints=endpoints, backend=IN_PROCESS, library_folder=folder)
            theirs = dry_run(options, endpoints=endpoints, backend=BINARY, fit_params=program)
        except LlamaCppError as error:
            yield name, f"llama.cpp refuses: {error}"
            continue
        except OffloadError as error:
            yield name, f"not planned: {error}"
            continue
        mine, other = rows(ours), rows(theirs)
        differing = [
            f"{device} {mine[device]} is not {other.get(device)}"
            for device in mine
            if mine[device] != other.get(device)
        ]
        yield name, "; ".join(differing) or "equal"


def main() -> int:
    """Run the comparison; exit code 1 where one architecture differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path)
    parser.add_argument("--fit-params", type=Path, required=True)
    arguments = parser.parse_args()
    paths = sorted(arguments.models.glob("*.gguf"))
    verdicts: dict[str, str] = {}
    with virtual_cards(2) as cards:
        endpoints = [card.endpoint for card in cards]
        for name, verdict in compare(paths, arguments.fit_params, endpoints):
            verdicts[name] = verdict
            if verdict != "equal":
                print(f"{name}: {verdict}")
            print(f"\r{len(verdicts)} of {len(paths)}", end="", file=sys.stderr)
    n_equal = sum(verdict == "equal" for verdict in verdicts.values())
    n_refused = sum(
        verdict.startswith(("llama.cpp refuses", "not planned")) for verdict in verdicts.values()
    )
    print(f"\n{n_equal} equal, {n_refused} not asked, {len(verdicts) - n_equal - n_refused} differ")
    return 0 if n_equal + n_refused == len(verdicts) and n_equal else 1


if __name__ == "__main__":
    sys.exit(main())
