"""Does the placement really run? A few greedy tokens, and what they took.

The in-process way to use a plan's tensor overrides from Python: llama-cpp-python's
own `Llama` class has no such argument.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Final

from offload.engine.load_options import LoadOptions
from offload.engine.process import run_job
from offload.engine.report import LoadReport, report_from_reply
from offload.engine.virtual_cards import virtual_cards
from offload.errors import LlamaCppError, UsageError

_BASE_TIMEOUT_S: Final = 120.0
_SLOWEST_LOAD_BYTES_PER_S: Final = 20_000_000
_SLOWEST_TOKEN_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The tokens, their text ("" without a vocabulary), the seconds and the real memory."""

    tokens: tuple[int, ...]
    text: str
    n_prompt: int
    load_s: float
    prompt_s: float
    decode_s: float
    report: LoadReport

    @property
    def decode_t_s(self) -> float | None:
        """Tokens per second after the first; None where there was none."""
        n = len(self.tokens) - 1
        return n / self.decode_s if n and self.decode_s else None


def generate(
    options: LoadOptions,
    prompt: str | Sequence[int],
    *,
    n_predict: int = 8,
    n_cards: int = 0,
    endpoints: Sequence[str] = (),
    timeout_s: float | None = None,
) -> Generation:
    """Load the model over `n_cards` virtual cards or the RPC servers at `endpoints`, and run.

    The time-out grows with the file unless given. Raises LlamaCppError with
    llama.cpp's last words, UsageError for a prompt the model has no tokens for.
    """
    if n_predict < 1:
        raise UsageError(f"{n_predict} tokens to generate; ask for at least one")
    if timeout_s is None:
        timeout_s = _timeout_s(options.path, n_predict)
    with ExitStack() as stack:
        if n_cards and not endpoints:
            endpoints = [card.endpoint for card in stack.enter_context(virtual_cards(n_cards))]
        request = {
            "options": asdict(options),
            "endpoints": list(endpoints),
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "n_predict": n_predict,
            "n_batch_max": options.n_batch,
        }
        reply, ended = run_job("generate", request, timeout_s=timeout_s)
    if reply["buffers"] is None:
        raise LlamaCppError("this platform hides llama_get_memory_breakdown")
    return Generation(
        tokens=tuple(reply["tokens"]),
        text=reply["text"],
        n_prompt=reply["n_prompt"],
        load_s=reply["load_s"],
        prompt_s=reply["prompt_s"],
        decode_s=reply["decode_s"],
        report=report_from_reply(reply, ended.log),
    )


def _timeout_s(path: str, n_predict: int) -> float:
    try:
        n_bytes = os.stat(path).st_size
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return _BASE_TIMEOUT_S + n_bytes / _SLOWEST_LOAD_BYTES_PER_S + n_predict * _SLOWEST_TOKEN_S
