"""The command line: parse, call one function, print, exit.

One file per command; only the typed one is imported. Nobody imports this room.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Final

COMMANDS: Final = (
    "plan",
    "inspect",
    "devices",
    "emit",
    "lint",
    "verify",
    "generate",
    "serve",
    "bench",
    "compare",
)


def main() -> None:
    """Entry point of the `offload` console script."""
    # what a plan makes it keeps to its end: looking for garbage every 700 objects took 3 % of it
    gc.set_threshold(50_000)
    typed = sys.argv[1:2]
    try:
        for command in typed if typed and typed[0] in COMMANDS else COMMANDS:
            import_module(f"offload.cli.{command}")
        from offload.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("offload: interrupted\n")
        sys.exit(130)
