"""Does the placement really run? One prompt through a model that is loaded for it alone.

For more than one prompt see offload/engine/session.py, of which this is a use.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from offload.engine.load_options import LoadOptions
from offload.engine.session import load
from offload.engine.stream import Generation
from offload.engine.virtual_cards import virtual_cards
from offload.errors import UsageError


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

    Without either on the GPUs llama.cpp finds, and if there are none on the host. Greedy.
    Raises LlamaCppError with llama.cpp's last words, UsageError for a prompt the model has
    no tokens for.
    """
    if n_predict < 1:
        raise UsageError(f"{n_predict} tokens to generate; ask for at least one")
    with ExitStack() as stack:
        if n_cards and not endpoints:
            endpoints = [card.endpoint for card in stack.enter_context(virtual_cards(n_cards))]
        with load(options, endpoints=endpoints, timeout_s=timeout_s) as session:
            return session.generate(prompt, n_predict=n_predict)
