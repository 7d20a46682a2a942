"""What can lint find? Every finding has a stable code; docs/lint.md explains each by example."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """How bad: `error`, it will not start or not hold; `warning`, not as meant; `note`."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


CODES: Final = frozenset(
    # the words of the command
    "unknown-program unknown-flag ik-flag removed-flag flag-equals-value missing-value bad-value"
    " repeated-flag flash-attn-without-value no-model model-not-read unknown-device bench-variants"
    # rules
    " comma-or-equals-in-rule bad-regex slow-regex class-as-number glob-or-space-in-rule"
    " unknown-buffer too-many-rules rule-matches-nothing rule-matches-too-much rule-shadowed"
    " rule-misses-merged-experts"
    # experts
    " moe-flag-on-dense ncmoe-beyond-layers ncmoe-counts-dense-layers ncpu-ffn-on-moe"
    " ncmoe-relieves-first-card-only expert-biases-on-host expert-off-its-owner up-gate-apart"
    " kv-elsewhere mtp-on-host"
    # memory
    " card-over-budget card-over-margin pinned-beyond-host-ram pipeline-copies context-shrinks"
    " extra-memory-not-counted no-cards cannot-be-priced"
    # how layers are split and who decides it
    " layers-left-on-host no-tensor-split tensor-split-length split-mode-row rpc-with-row-split"
    " split-mode-tensor fit-switched-off fit-decides card-without-layers"
    # loading and speed
    " mmap-with-host-experts slow-link-first rpc-not-needed prefill-on-first-card"
    " ubatch-above-batch bench-ubatch-clamped draft-inherits-overrides"
    # what llama.cpp refuses
    " mla-cache-types-differ quantised-v-without-flash-attention cache-type-not-whole-blocks"
    " slots-do-not-divide-ubatch"
    # what a log tells
    " out-of-memory same-bytes-again card-unlike-the-others pipeline-retried rpc-unreachable"
    " llama-stopped nothing-in-log".split()
)
"""Codes are never renamed; new ones may come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know: what will happen and why (`text`), and what to write instead (`fix`)."""

    code: str
    severity: Severity
    text: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.code in CODES, self.code


def error(code: str, text: str, fix: str = "") -> Finding:
    """llama.cpp stops, or memory does not suffice."""
    return Finding(code=code, severity=Severity.ERROR, text=text, fix=fix)


def warning(code: str, text: str, fix: str = "") -> Finding:
    """It runs, but not as it was meant."""
    return Finding(code=code, severity=Severity.WARNING, text=text, fix=fix)


def note(code: str, text: str, fix: str = "") -> Finding:
    """Nothing wrong, but worth knowing."""
    return Finding(code=code, severity=Severity.NOTE, text=text, fix=fix)


SEVERITIES: Final = tuple(Severity)


def sort_key(finding: Finding) -> int:
    """Errors first."""
    return SEVERITIES.index(finding.severity)
