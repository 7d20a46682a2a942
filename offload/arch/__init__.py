"""What llama.cpp hard-codes about each architecture: `ARCHS` by name, `Arch` the facts of one."""

from offload.arch.facts import (
    Arch,
    Attended,
    Indexed,
    Memory,
    Pattern,
    Recurrence,
    RopeCopies,
    State,
    Window,
    WindowWhen,
)
from offload.arch.table import ARCHS, UNKNOWN

__all__ = [
    "ARCHS",
    "UNKNOWN",
    "Arch",
    "Attended",
    "Indexed",
    "Memory",
    "Pattern",
    "Recurrence",
    "RopeCopies",
    "State",
    "Window",
    "WindowWhen",
]
