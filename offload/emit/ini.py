"""The launch as one section of a preset file, for `llama-server --models-preset FILE`.

Mirrors common/preset.cpp (b11434): `key = value` up to the end of the line, no quotes and
no escapes; `;` and `#` end a value wherever they stand; the section's name is the
model's; keys are flags without dashes, switches take `true`. The router turns a section
into flags in an order of its own, so `-cmoe` and `-ncmoe` are written as rules.
"""

from __future__ import annotations

from typing import Final

from offload.emit.launch import Launch
from offload.emit.settings import server_settings, with_rules_only
from offload.emit.target import Target, check_absolute, check_text, model_name
from offload.errors import UsageError

_FORBIDDEN: Final = "\0\n\r;#"
_RESERVED: Final = ("*", "default")
"""Sections that are no models."""


def emit_ini(launch: Launch, target: Target) -> str:
    """The preset file; UsageError where a value cannot stand in one."""
    if target.build.is_ik:
        raise UsageError("ik_llama.cpp reads no presets; emit args, systemd or llama-swap")
    check_absolute(launch)
    name = check_text(model_name(launch, target), "the name of a preset's section", "\0\n\r]")
    if name in _RESERVED or name != name.strip():
        raise UsageError(f"--alias {name!r}: not a name that a preset can have")
    lines = ["version = 1", "", f"[{name}]"]
    for setting in server_settings(with_rules_only(launch), target.build):
        value = "true" if setting.value is None else setting.value
        check_text(value, "a preset file", _FORBIDDEN)
        if value != value.strip(" \t"):
            raise UsageError(f"a preset file cannot hold the blanks around {value!r}")
        lines.append(f"{setting.key} = {value}")
    return "\n".join(lines) + "\n"
