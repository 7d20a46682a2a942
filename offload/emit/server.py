"""The llama-server command line of a launch, for llama.cpp or for ik_llama.cpp.

Which flags, and what older builds are told instead, stands in settings.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from offload.emit.build import NEWEST, Build
from offload.emit.launch import Launch
from offload.emit.settings import server_settings


def quote_argv(argv: Sequence[str]) -> str:
    """The command for a POSIX shell, whatever bytes the arguments hold."""
    return shlex.join(argv)


def quote_for_terminal(argv: Sequence[str]) -> str:
    """One printable line; bash's `$'…'` where a character would drive the terminal."""
    return " ".join(
        shlex.quote(text) if text.isprintable() else _ansi_c_quote(text) for text in argv
    )


def _ansi_c_quote(text: str) -> str:
    r"""`$'a\x0ab'`: every byte that is not plain ASCII as its hexadecimal escape."""
    plain = set(range(0x20, 0x7F)) - set(b"'\\")
    raw = text.encode("utf-8", "surrogateescape")
    return "$'" + "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in raw) + "'"


def emit_server_args(
    launch: Launch,
    program: str = "llama-server",
    known_flags: frozenset[str] | None = None,
    *,
    build: Build = NEWEST,
) -> tuple[str, ...]:
    """The argv that loads `launch`; UsageError when a needed flag is unknown to the build.

    `known_flags` are those of the build's help, where nothing more of it is known.
    """
    if known_flags is not None:
        build = Build(flags=known_flags)
    if build.is_ik:
        from offload.emit.ik import emit_ik_args

        return emit_ik_args(launch, program)
    return (program, *(text for item in server_settings(launch, build) for text in item.argv))
