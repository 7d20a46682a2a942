"""The command line: parse, call one function, print, exit.

One file per command; only the typed one is imported. Nobody imports this room.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import Final, NoReturn

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
    "check",
    "report",
)


_HOLDS_NOTHING: Final = ("plan", "inspect", "emit", "lint", "compare")
"""Commands that leave no file, thread or process behind for the interpreter to close."""


def main() -> None:
    """Entry point of the `offload` console script."""
    # what a plan makes it keeps to its end: looking for garbage every 700 objects took 3 % of it
    gc.set_threshold(50_000)
    typed = sys.argv[1:2]
    if typed == ["--version"]:
        _print_version()
        return
    try:
        for command in typed if typed and typed[0] in COMMANDS else COMMANDS:
            import_module(f"offload.cli.{command}")
        from offload.cli.app import run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("offload: interrupted\n")
        sys.exit(130)
    except SystemExit as end:
        if typed and typed[0] in _HOLDS_NOTHING and isinstance(end.code, int):
            _leave(end.code)
        raise


def _print_version() -> None:
    """Answered before any command is imported, or the package's metadata looked up."""
    from offload import __version__

    if sys.stdout is not None:
        sys.stdout.write(f"offload {__version__}\n")


def _leave(exit_code: int) -> NoReturn:
    """End at once: taking a plan apart object by object took another 3 % of it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:  # nobody reads any more
                exit_code = exit_code or 2
    os._exit(exit_code)
