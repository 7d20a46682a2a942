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
from offload.arch.table import ARCHS, OUTPUTS_AFTER_LAYERS, UNKNOWN

__all__ = [
    "ARCHS",
    "OUTPUTS_AFTER_LAYERS",
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
