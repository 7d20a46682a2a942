"""What would llama.cpp's own `--fit` choose on these cards?

Asks `llama-fit-params` (tools/fit-params, b11434) on loopback RPC cards that report the
planned cards' free memory. Two differences to the planned run are made up for in the
margins it is given: it counts the logits of a whole ubatch on the output's card, where
llama-server keeps a row per slot, and it does not see what cards stage of host experts,
since RPC cards do not.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from offload.backend import BACKENDS
from offload.contenders import FitAnswer
from offload.engine.fit_params import BINARY
from offload.engine.process import failure, run_program
from offload.engine.virtual_cards import virtual_cards
from offload.errors import LlamaCppError
from offload.placement import price_compute
from offload.plan import Plan
from offload.units import MIB

_TIMEOUT_S: Final = 300.0


def ask_fit(plan: Plan, program: Path) -> FitAnswer:
    """What `--fit` chooses for the model, cards, margins and context of `plan`.

    Buffer types of cards in its rules are the planned cards' own. Raises LlamaCppError
    with its last words where it gives up.
    """
    context = plan.context
    logits = max(context.n_ubatch - context.n_parallel, 0) * plan.model.n_vocab * 4
    margins = [
        (margin + staged) // MIB
        for margin, staged in zip(plan.margins_bytes, _staged_bytes(plan), strict=True)
    ]
    margins[-1] = max(margins[-1] - logits // MIB, 0)
    free = [device.memory_free_bytes for device in plan.devices]
    with virtual_cards(len(free), free_bytes=free) as cards:
        argv = [
            str(program), "-m", plan.model.path, "--rpc", ",".join(c.endpoint for c in cards),
            "-c", str(context.n_ctx), "-b", str(context.n_batch), "-ub", str(context.n_ubatch),
            "-np", "1" if context.kv_unified else str(context.n_parallel),
            "-ctk", context.type_k.name.lower(), "-ctv", context.type_v.name.lower(),
            "-fitt", ",".join(map(str, margins)),
        ]  # fmt: skip
        ended = run_program(argv, timeout_s=_TIMEOUT_S)
        names = {
            card.buffer_type: device.buffer_type
            for card, device in zip(cards, plan.devices, strict=True)
        }
    lines = ended.stdout.decode(errors="replace").strip().splitlines()
    if ended.exit_code or not lines:
        raise failure(ended, BINARY)
    return parse_fit_answer(lines[-1], names)


def _staged_bytes(plan: Plan) -> tuple[int, ...]:
    """Compute bytes that the planned cards need beyond RPC cards in their place."""
    rpc = price_compute(
        plan.model,
        plan.context,
        (BACKENDS["RPC"],) * len(plan.devices),
        plan.placement,
        op_offload=plan.options.op_offload,
    )
    return tuple(
        max(memory.compute_bytes - n_bytes, 0)
        for memory, n_bytes in zip(plan.memory.devices, rpc.devices, strict=True)
    )


def parse_fit_answer(line: str, names: Mapping[str, str]) -> FitAnswer:
    """`-c 4096 -ngl 49 -ts 3,2 -ot "…"` as it prints them; `names` renames buffer types."""
    try:
        words = shlex.split(line)
        values = dict(zip(words[::2], words[1::2], strict=True))
        overrides = values.get("-ot", "")
        for ours, theirs in names.items():
            overrides = overrides.replace(f"={ours}", f"={theirs}")
        return FitAnswer(
            n_gpu_layers=int(values["-ngl"]),
            tensor_split=tuple(float(n) for n in values.get("-ts", "").split(",") if n),
            overrides=overrides,
        )
    except (ValueError, KeyError):
        raise LlamaCppError(f"{BINARY} answered {line[:200]!r}, which is no placement") from None
