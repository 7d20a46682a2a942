"""What can go wrong, one class per kind of answer the user needs.

Every message says what failed, where, and what to try. The CLI prints the
message on one line and exits 2; nothing here knows about terminals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class OffloadError(Exception):
    """Base of every error this package raises on purpose."""


class UsageError(OffloadError):
    """A flag or argument that cannot be meant as written."""


class GGUFError(OffloadError):
    """A file that is not a GGUF we can trust.

    `path` is the file (may be empty for bytes in memory), `offset_bytes` where
    reading stopped, `key` the metadata key or tensor name being read.
    """

    def __init__(
        self, message: str, *, path: str = "", offset_bytes: int | None = None, key: str = ""
    ) -> None:
        self.message = message
        self.path = path
        self.offset_bytes = offset_bytes
        self.key = key
        super().__init__(str(self))

    def __str__(self) -> str:
        where = self.path or "GGUF"
        if self.offset_bytes is not None:
            where += f" at byte {self.offset_bytes}"
        if self.key:
            where += f" ({self.key!r})"
        return f"{where}: {self.message}"


class UnsupportedModelError(OffloadError):
    """A well-formed GGUF that is not a language model we can place."""


class DeviceError(OffloadError):
    """Cards that cannot be read, parsed or used."""


class InfeasibleError(OffloadError):
    """No placement fits; `short_bytes` says by how much on each device."""

    def __init__(self, message: str, *, short_bytes: Mapping[str, int]) -> None:
        self.short_bytes = dict(short_bytes)
        super().__init__(message)


class LlamaCppError(OffloadError):
    """llama.cpp failed; carries its command, exit code and last words."""

    def __init__(
        self,
        message: str,
        *,
        argv: Sequence[str] = (),
        exit_code: int | None = None,
        last_lines: Sequence[str] = (),
    ) -> None:
        self.argv = tuple(argv)
        self.exit_code = exit_code
        self.last_lines = tuple(last_lines)
        super().__init__(message)
