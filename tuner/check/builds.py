"""[edge] Two builds of llama.cpp side by side: what does each need for the same plan, how fast?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from offload.emit import make_launch
from offload.engine.verify import Judge
from offload.errors import OffloadError
from offload.forecast import Forecast
from offload.plan import Plan
from tuner.check.config import CheckConfig, ModelEntry
from tuner.check.facts import facts_of_verification
from tuner.check.memory_diff import measured_bytes, memory_findings
from tuner.check.outcome import Outcome, Report, failed, judged
from tuner.check.speed import SpeedSettings, check_builds


@dataclass(frozen=True, slots=True, kw_only=True)
class Builds:
    """Which two, and what of them is compared; `speed` is None where nothing is timed."""

    config: CheckConfig
    plan_today: Callable[[ModelEntry], tuple[Plan, Forecast | None]]
    old: str
    new: str
    judges: tuple[Judge, Judge] | None
    speed: SpeedSettings | None

    def compare(self, entries: tuple[ModelEntry, ...]) -> Report:
        """Every entry's plan of today with both."""
        outcomes = tuple(one for entry in entries for one in self._compare(entry))
        build = None if self.judges is None else self.judges[1].build
        return Report(outcomes=outcomes, llama_build=build)

    def _compare(self, entry: ModelEntry) -> list[Outcome]:
        try:
            plan = self.plan_today(entry)[0]
        except OffloadError as error:
            return [failed(entry.name, "plan", error)]
        outcomes = []
        if self.judges is not None:
            outcomes.append(self._memory(entry, plan, *self.judges))
        if self.speed is not None:
            try:
                launch = make_launch(plan)
                outcomes.append(check_builds(entry.name, launch, self.old, self.new, self.speed))
            except OffloadError as error:
                outcomes.append(failed(entry.name, "speed", error))
        return outcomes

    def _memory(self, entry: ModelEntry, plan: Plan, old: Judge, new: Judge) -> Outcome:
        try:
            was = facts_of_verification(old(plan))
            said = new(plan)
            findings, notes = memory_findings(was, said, self.config.memory)
        except OffloadError as error:
            return failed(entry.name, "memory", error)
        return judged(entry.name, "memory", findings, notes, measured_bytes(said))
