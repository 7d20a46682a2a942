"""What did one check of one model find, and what does all of it together mean?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Verdict(StrEnum):
    """What a check came to."""

    OK = "ok"
    CHANGED = "changed"
    SKIPPED = "skipped"
    UNSURE = "cannot tell"
    ERROR = "error"


EXIT_CODES: Final = {Verdict.CHANGED: 1, Verdict.ERROR: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as recorded; `was` and `now` are None where it is not a number.

    `code` is for scripts: `rule-dropped`, `layers-moved`, `memory-more`, …
    """

    code: str
    text: str
    device: str | None = None
    was: float | None = None
    now: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One check of one model; `notes` tell what does not decide, `values` what was measured."""

    model: str
    check: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All outcomes in the order of the models; `llama_build` is who was asked, if anyone."""

    outcomes: tuple[Outcome, ...]
    llama_build: int | None = None

    @property
    def exit_code(self) -> int:
        """2 where a check could not be made, else 1 where something changed, else 0."""
        return max((EXIT_CODES.get(one.verdict, 0) for one in self.outcomes), default=0)


def failed(model: str, check: str, error: Exception) -> Outcome:
    """A check that could not be made."""
    finding = Finding(code="error", text=str(error))
    return Outcome(model=model, check=check, verdict=Verdict.ERROR, findings=(finding,))


def judged(
    model: str,
    check: str,
    findings: tuple[Finding, ...],
    notes: tuple[str, ...] = (),
    values: Mapping[str, float] | None = None,
) -> Outcome:
    """Changed where there are findings, else ok."""
    verdict = Verdict.CHANGED if findings else Verdict.OK
    return Outcome(
        model=model,
        check=check,
        verdict=verdict,
        findings=findings,
        notes=notes,
        values=values or {},
    )
