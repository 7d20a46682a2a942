"""How is a run told: how fast it was, and what it took beside what was planned?

Text is for stderr, in llama.cpp's own terms (`llama_perf_context_print`, src/llama-context.cpp,
b11434); the JSON object is the answer of `offload generate -o json`.
"""

from __future__ import annotations

from typing import Any, Final

from offload.engine.session import LoadProgress, Session
from offload.engine.stream import Generation
from offload.memory import MemoryBytes
from offload.render.text import render_columns
from offload.units import GIB, MIB
from offload.verification import KINDS, Verification

SCHEMA_VERSION: Final = 1
_STOPS: Final = {
    "end": "the model ended it",
    "length": "as many tokens as asked for",
    "stop": "a stop word",
    "context": "the context is full",
    "cancelled": "interrupted",
}


def render_progress(progress: LoadProgress) -> str:
    """`loading 12.3 of 53.1 GiB, 1.24 GB/s`."""
    return (
        f"loading {progress.n_bytes / GIB:.1f} of {progress.total_bytes / GIB:.1f} GiB,"
        f" {progress.bytes_per_s / 1e9:.2f} GB/s"
    )


def render_timings(session: Session, run: Generation) -> list[str]:
    """Load, prompt and generation: seconds, counts and rates."""
    rate = session.model_bytes / session.load_s / 1e9 if session.load_s else 0.0
    size = f"{session.model_bytes / GIB:.2f} GiB"
    prompt = f"{run.n_prompt} tokens"
    if run.n_reused:
        prompt += f", {run.n_reused} of them reused"
    rows = [
        ("load", f"{session.load_s:.2f} s", size, f"{rate:.2f} GB/s"),
        ("prompt eval", f"{run.prompt_s:.2f} s", prompt, _rate(run.prompt_t_s)),
        ("eval", f"{run.decode_s:.2f} s", f"{len(run.tokens)} tokens", _rate(run.decode_t_s)),
    ]
    return [*render_columns(rows, "<>>>"), f"stopped: {_STOPS[run.stop]}"]


def _rate(t_s: float | None) -> str:
    return "" if t_s is None else f"{t_s:.1f} tokens/s"


def render_memory(verification: Verification) -> list[str]:
    """llama.cpp's own three numbers of every device, each beside the planned one."""
    rows = [("MiB", "", "weights", "context", "compute")]
    for check in (*verification.devices, verification.host):
        name = "host" if check is verification.host else check.name
        rows.append((name, "planned", *_cells(check.planned)))
        rows.append(("", "allocated", *_cells(check.actual)))
    return render_columns(rows, "<<>>>")


def _cells(memory: MemoryBytes) -> tuple[str, str, str]:
    model, context, compute = (f"{getattr(memory, kind) / MIB:.2f}" for kind in KINDS)
    return model, context, compute


def run_to_json(session: Session, run: Generation) -> dict[str, Any]:
    """The text, its tokens, why it stopped, the seconds, and the memory."""
    verification = session.check()
    return {
        "schema_version": SCHEMA_VERSION,
        "text": run.text,
        "tokens": list(run.tokens),
        "stop": run.stop,
        "seed": run.seed,
        "n_prompt": run.n_prompt,
        "n_reused": run.n_reused,
        "timings": {
            "load_s": session.load_s,
            "prompt_s": run.prompt_s,
            "prompt_t_s": run.prompt_t_s,
            "decode_s": run.decode_s,
            "decode_t_s": run.decode_t_s,
        },
        "model_bytes": session.model_bytes,
        "n_ctx": session.n_ctx,
        "devices": [
            {
                "name": check.name,
                "runs_on": device.name,
                "planned": {kind: getattr(check.planned, kind) for kind in KINDS},
                "actual": {kind: getattr(check.actual, kind) for kind in KINDS},
            }
            for check, device in zip(verification.devices, session.report.devices, strict=True)
        ]
        if verification is not None
        else None,
        "host": {
            "planned": {kind: getattr(verification.host.planned, kind) for kind in KINDS},
            "actual": {kind: getattr(verification.host.actual, kind) for kind in KINDS},
        }
        if verification is not None
        else None,
    }
