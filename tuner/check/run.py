"""[edge] All checks of all models, or what they would record, one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offload import __version__
from offload.emit import make_launch
from offload.engine.verify import Judge
from offload.errors import OffloadError, UsageError
from offload.forecast import Forecast
from offload.model import Model, make_model
from offload.plan import Plan, make_plan
from offload.render.forecast import forecast_to_json
from offload.render.request_json import request_of_plan, request_to_json
from offload.saved import as_launched
from offload.source import read_header
from tuner.check.baseline import Baseline, baseline_text, read_baseline, write_baseline
from tuner.check.config import CheckConfig, ModelEntry
from tuner.check.facts import facts_of_plan, facts_of_verification
from tuner.check.header import header_facts, header_findings
from tuner.check.memory_diff import measured_bytes, memory_findings
from tuner.check.outcome import Outcome, Report, Verdict, failed, judged
from tuner.check.plan_diff import plan_findings
from tuner.check.prediction_check import prediction_findings
from tuner.check.speed import SpeedSettings, check_recorded, record_speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """Which checks are made, and with what.

    `plan_today` plans an entry as its options say; `judge` and `speed` are None where
    llama.cpp is not asked for memory and nothing is timed; `server` is the build to time.
    """

    config: CheckConfig
    checks: tuple[str, ...]
    plan_today: Callable[[ModelEntry], tuple[Plan, Forecast | None]]
    judge: Judge | None
    server: str | None = None
    speed: SpeedSettings | None = None

    def path_of(self, entry: ModelEntry) -> Path:
        """Where the entry's baseline is."""
        return self.config.locate(self.config.baseline) / f"{entry.name}.json"

    def check(self, entries: tuple[ModelEntry, ...]) -> Report:
        """Lay every entry beside its baseline."""
        outcomes = tuple(one for entry in entries for one in self._check(entry))
        return Report(outcomes=outcomes, llama_build=self._build)

    def update(self, entries: tuple[ModelEntry, ...]) -> Report:
        """Record every entry; one that cannot be planned leaves its file as it was."""
        return Report(
            outcomes=tuple(self._update(entry) for entry in entries), llama_build=self._build
        )

    @property
    def _build(self) -> int | None:
        return None if self.judge is None else self.judge.build

    def _check(self, entry: ModelEntry) -> list[Outcome]:
        model_path = str(self.config.locate(entry.path))
        try:
            baseline = read_baseline(self.path_of(entry), model_path)
            header = read_header(model_path)
            model = make_model(header)
        except OffloadError as error:
            return [failed(entry.name, "baseline", error)]
        same = judged(
            entry.name, "model", header_findings(baseline.header, header_facts(header, model))
        )
        outcomes = [same]
        try:
            plan, forecast = self.plan_today(entry)
        except OffloadError as error:
            return [*outcomes, failed(entry.name, "plan", error)]
        if "plan" in self.checks:
            outcomes.append(self._check_plan(entry, baseline, plan))
        if self.judge is not None:
            outcomes.append(self._check_memory(entry, baseline, model, same, self.judge))
        if "prediction" in self.checks:
            outcomes.append(_check_prediction(entry, baseline, forecast))
        if self.speed is not None:
            outcomes.append(self._check_speed(entry, baseline, same, self.speed))
        return outcomes

    def _check_plan(self, entry: ModelEntry, baseline: Baseline, plan: Plan) -> Outcome:
        now = facts_of_plan(plan)
        findings = plan_findings(baseline.facts, now, self.config.plan_memory)
        return judged(entry.name, "plan", findings, _machine_notes(baseline, plan))

    def _check_memory(
        self, entry: ModelEntry, baseline: Baseline, model: Model, same: Outcome, judge: Judge
    ) -> Outcome:
        """The recorded placement, whatever today's plan is: only llama.cpp may have changed."""
        if baseline.memory is None:
            return _skipped(entry, "memory", "nothing is recorded; --update with memory does")
        if same.verdict is not Verdict.OK:
            return _skipped(entry, "memory", "the model is another; --update records it")
        request = baseline.asked(model.path)
        try:
            recorded = make_plan(
                model,
                request.devices,
                as_launched(request.options, baseline.facts.launch),
                host_free_bytes=request.host_free_bytes,
                with_advice=False,
            )
            said = judge(recorded)
            findings, notes = memory_findings(baseline.memory, said, self.config.memory)
        except OffloadError as error:
            return failed(entry.name, "memory", error)
        return judged(entry.name, "memory", findings, notes, measured_bytes(said))

    def _check_speed(
        self, entry: ModelEntry, baseline: Baseline, same: Outcome, speed: SpeedSettings
    ) -> Outcome:
        if baseline.speed is None:
            return _skipped(entry, "speed", "nothing is recorded; --update with speed does")
        if same.verdict is not Verdict.OK:
            return _skipped(entry, "speed", "the model is another; --update records it")
        launch = baseline.facts.launch
        try:
            return check_recorded(entry.name, launch, self.server, baseline.speed, speed)
        except OffloadError as error:
            return failed(entry.name, "speed", error)

    def _update(self, entry: ModelEntry) -> Outcome:
        path = self.path_of(entry)
        model_path = str(self.config.locate(entry.path))
        try:
            plan, forecast = self.plan_today(entry)
            if not plan.feasible:
                raise UsageError(
                    f"{entry.path} does not fit, so there is nothing to record;"
                    " offload plan says what would make it fit"
                )
            prediction = forecast_to_json(forecast) if "prediction" in self.checks else None
            baseline = Baseline(
                header=header_facts(read_header(model_path), plan.model),
                facts=facts_of_plan(plan),
                request=request_to_json(request_of_plan(plan)),
                memory=None if self.judge is None else facts_of_verification(self.judge(plan)),
                prediction=None if prediction is None else _rounded(prediction),
                speed=None
                if self.speed is None
                else record_speed(make_launch(plan), self.server, self.speed),
            )
            state = write_baseline(path, baseline_text(baseline, __version__))
        except OffloadError as error:
            return failed(entry.name, "update", error)
        note = f"{path}: {state}"
        return Outcome(model=entry.name, check="update", verdict=Verdict.OK, notes=(note,))


def _rounded(prediction: dict[str, Any]) -> dict[str, Any]:
    """Six digits: more of them differ between processors."""
    return {
        key: float(f"{value:.6g}") if isinstance(value, float) else value
        for key, value in prediction.items()
    }


def _check_prediction(entry: ModelEntry, baseline: Baseline, forecast: Forecast | None) -> Outcome:
    if baseline.prediction is None:
        return _skipped(entry, "prediction", "nothing is recorded; --update with prediction does")
    now = forecast_to_json(forecast)
    findings = prediction_findings(baseline.prediction, now, entry)
    was, is_now = baseline.prediction.get("source"), None if now is None else now["source"]
    notes = (f"predicted from {is_now}; recorded from {was}",) if was != is_now else ()
    return judged(entry.name, "prediction", findings, notes)


def _machine_notes(baseline: Baseline, plan: Plan) -> tuple[str, ...]:
    was = baseline.request.get("machine")
    now = request_to_json(request_of_plan(plan))["machine"]
    return () if was == now else ("the machine is described otherwise than when recorded",)


def _skipped(entry: ModelEntry, check: str, why: str) -> Outcome:
    return Outcome(model=entry.name, check=check, verdict=Verdict.SKIPPED, notes=(why,))
