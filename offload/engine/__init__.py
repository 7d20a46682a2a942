"""llama.cpp, really running: as the judge of a plan and as the one who carries it out.

Everything here is an edge: it starts processes. llama.cpp always runs in a child,
so that its aborts, exits and out-of-memory reach the caller as `LlamaCppError`.
What a Python program needs is here by name, but looked up only when it is asked for,
because the children import this package and must start fast:

- `load(plan)`: the model as planned, for prompt after prompt (docs/python.md)
- `virtual_cards.virtual_cards(n)`: n cards played by loopback RPC servers
- `dry_run.dry_run(options, ...)`: what llama.cpp would allocate where, no weights loaded
- `generate.generate(options, ...)`: a real run of a few tokens, with what it allocated
- `binaries`: the user's own llama.cpp programs; `log`: what llama.cpp says
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from offload.engine.session import LoadProgress, Session, load
    from offload.engine.stream import Generation, Sampling, Stream

__all__ = ["Generation", "LoadProgress", "Sampling", "Session", "Stream", "load"]

_HOMES: Final = {
    "Generation": "stream",
    "LoadProgress": "session",
    "Sampling": "stream",
    "Session": "session",
    "Stream": "stream",
    "load": "session",
}


if not TYPE_CHECKING:  # else every name would pass for known

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
