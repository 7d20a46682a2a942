"""What does the llama.cpp at hand understand, as far as its `--help` says?

A value, so that emitters stay pure: `offload.engine.binaries.read_build` asks a
program and makes one. Without a program, `NEWEST` stands for b11434.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PARTIAL_NGL_BUILD: Final = 7500
"""From about here on a partial `-ngl` counts the output layer, and counts it first.

Before llama.cpp's pull request 18148 (December 2025, between b7407 and b7500) `-ngl N`
meant the last N repeating layers, and the output layer only came with N > n_layer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One build of llama.cpp or of ik_llama.cpp.

    `flags` are all spellings its help lists, None when nobody asked; `hints` what the help
    shows as the value of each (empty for a switch); `environment` the variable of each;
    `number` as in `b11434`.
    """

    flags: frozenset[str] | None = None
    hints: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    number: int | None = None

    @property
    def is_ik(self) -> bool:
        """ik_llama.cpp has had `-mla` since early 2025; llama.cpp never had it."""
        return self.flags is not None and bool(self.flags & {"-mla", "--mla-use"})

    @property
    def counts_output_last(self) -> bool:
        """True where a partial `-ngl` leaves the output layer on the host."""
        if self.flags is None:
            return False
        if self.number is not None:
            return self.number < PARTIAL_NGL_BUILD
        return not self.flags & {"-fit", "--fit"}

    def spelling(self, spellings: tuple[str, ...]) -> str | None:
        """The first spelling this build knows."""
        if self.flags is None:
            return spellings[0]
        return next((text for text in spellings if text in self.flags), None)

    def describe(self) -> str:
        """`this build (b7000)`."""
        return "this build" + (f" (b{self.number})" if self.number else "")


NEWEST: Final = Build()
"""b11434, which the tables in settings.py describe."""
