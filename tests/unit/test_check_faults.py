"""Planted faults are found, each by the check whose it is; and nothing planted, nothing found."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from offload.device import devices_from_flags
from offload.engine.verify import Judge
from offload.errors import UsageError
from offload.forecast import Forecast, make_forecast
from offload.machine import Host
from offload.memory import MemoryBytes
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.units import GIB
from offload.verification import DeviceCheck, Verification
from tuner.check.baseline import Baseline, baseline_text, read_baseline, write_baseline
from tuner.check.config import CHECKS, ModelEntry, parse_config
from tuner.check.history import keep_history
from tuner.check.outcome import Outcome, Report, Verdict
from tuner.check.run import Checker
from tuner.history import read_history
from tuner.synth import write_shape

CARDS = devices_from_flags(2, (22 * GIB,), (), rpc=(), found=())
CONFIG = '[[model]]\nname = "m"\npath = "m.gguf"\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreeing(Judge):
    """A llama.cpp that needs what was planned, and `more` of it on one card."""

    more: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, plan: Plan) -> Verification:
        """The plan's own bytes."""
        names = (*(card.name for card in plan.devices), "CPU")
        memory = (*plan.memory.devices, plan.memory.host)
        *cards, host = (self._said(name, m) for name, m in zip(names, memory, strict=True))
        return Verification(
            devices=tuple(cards), host=host, layers=(), wrong_owners=(), wrong_tensors=(),
            source="stub", build=1,
        )  # fmt: skip

    def _said(self, name: str, memory: MemoryBytes) -> DeviceCheck:
        factor = self.more.get(name, 1.0)
        actual = replace(memory, model_bytes=int(memory.model_bytes * factor))
        return DeviceCheck(name=name, planned=memory, actual=actual, free_bytes=None)


class Bench:
    """A folder with a recorded model, and what a check of it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model_path = write_shape("gpt-oss-120b", folder / "m.gguf")
        self.config = CONFIG
        self.options = PlanOptions(n_ctx=8192)
        self.host_free_bytes = 128 * GIB
        self.judge: Judge = Agreeing()
        assert self.run(update=True).exit_code == 0

    def checker(self) -> Checker:
        """With everything as it is now."""
        config = parse_config(self.config, str(self.folder / "offload.toml"))
        return Checker(config=config, checks=CHECKS, plan_today=self.plan_today, judge=self.judge)

    def plan_today(self, entry: ModelEntry) -> tuple[Plan, Forecast | None]:
        """What this program plans for the model."""
        model = make_model(read_header(self.folder / entry.path))
        plan = make_plan(model, CARDS, self.options, host_free_bytes=self.host_free_bytes)
        return plan, make_forecast(plan, Host())

    def run(self, *, update: bool = False) -> Report:
        """Check or record."""
        checker = self.checker()
        return checker.update(checker.config.models) if update else checker.check(
            checker.config.models
        )  # fmt: skip

    @property
    def path(self) -> Path:
        """The baseline's file."""
        return self.folder / "offload.baseline" / "m.json"

    def plant(self, **changed: Any) -> None:
        """Record something else than the plan, as if this program had planned so before."""
        baseline = read_baseline(self.path, str(self.model_path))
        write_baseline(self.path, baseline_text(replace(baseline, **changed), "test"))

    def recorded(self) -> Baseline:
        """What is recorded."""
        return read_baseline(self.path, str(self.model_path))


def only(report: Report, check: str) -> Outcome:
    """The outcome of one check, all others being well."""
    for one in report.outcomes:
        assert one.check == check or one.verdict in (Verdict.OK, Verdict.SKIPPED), one
    return next(one for one in report.outcomes if one.check == check)


def codes(outcome: Outcome) -> set[str]:
    """What was found."""
    return {finding.code for finding in outcome.findings}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A recorded model."""
    return Bench(tmp_path)


def test_nothing_planted_nothing_found(bench: Bench) -> None:
    """All four checks are well, exit code 0, and recording again changes no byte."""
    report = bench.run()
    assert [one.check for one in report.outcomes] == ["model", "plan", "memory", "prediction"]
    assert {one.verdict for one in report.outcomes} == {Verdict.OK} and report.exit_code == 0
    before = bench.path.read_bytes()
    assert bench.run(update=True).outcomes[0].notes == (f"{bench.path}: unchanged",)
    assert bench.path.read_bytes() == before
    assert str(bench.folder) not in bench.path.read_text(encoding="utf-8")


def test_a_rule_dropped(bench: Bench) -> None:
    """A recorded rule that today's plan has not is named with its pattern."""
    facts = bench.recorded().facts
    rule = replace(facts.launch.rules[0], pattern="planted")
    launch = replace(facts.launch, rules=(*facts.launch.rules, rule))
    bench.plant(facts=replace(facts, launch=launch))
    found = only(bench.run(), "plan")
    assert [finding.text for finding in found.findings] == ["rule dropped: planted=CPU"]
    assert bench.run().exit_code == 1


def test_a_layer_moved(bench: Bench) -> None:
    """A layer on another card is named with both cards."""
    facts = bench.recorded().facts
    first, second, host = facts.devices
    moved = first.layers[-1]
    devices = (
        replace(first, layers=first.layers[:-1]),
        replace(second, layers=(moved, *second.layers)),
        host,
    )
    bench.plant(facts=replace(facts, devices=devices))
    found = only(bench.run(), "plan")
    assert [finding.text for finding in found.findings] == [
        f"layer {moved} moved from CUDA1 to CUDA0"
    ]


def test_an_expert_moved(bench: Bench) -> None:
    """One matrix that goes to the host no more, or newly, is named with its layer."""
    facts = bench.recorded().facts
    name = next(iter(facts.moved))
    il, stem = name.split(".")[1], name.split(".", 2)[2]
    bench.plant(facts=replace(facts, moved={k: v for k, v in facts.moved.items() if k != name}))
    found = only(bench.run(), "plan")
    assert [finding.text for finding in found.findings] == [
        f"{stem} of layer {il}: from its layer's device to CPU"
    ]


@pytest.mark.parametrize("share", [1.03, 0.97])
def test_three_percent_in_the_plan(bench: Bench, share: float) -> None:
    """3 % more or less on one card than recorded is found and that card named, 0.5 % is not."""
    facts = bench.recorded().facts

    def plant(share: float) -> None:
        first, second, host = facts.devices
        memory = replace(second.memory, model_bytes=int(second.memory.model_bytes / share))
        second = replace(second, memory=memory)
        bench.plant(facts=replace(facts, devices=(first, second, host)))

    plant(share)
    found = only(bench.run(), "plan")
    assert {finding.device for finding in found.findings} == {"CUDA1"}
    assert codes(found) == {"memory-more" if share > 1 else "memory-less"}
    plant(1.005)
    assert bench.run().exit_code == 0


def test_three_percent_more_in_the_build(bench: Bench) -> None:
    """A llama.cpp that needs 3 % more on one card is found; 3 % less is told and no regression."""
    bench.judge = Agreeing(more={"CUDA0": 1.03})
    found = only(bench.run(), "memory")
    assert codes(found) == {"memory-more"} and {f.device for f in found.findings} == {"CUDA0"}
    bench.judge = Agreeing(more={"CUDA0": 0.97})
    report = bench.run()
    assert report.exit_code == 0 and "CUDA0" in only(report, "memory").notes[0]


def test_history(bench: Bench) -> None:
    """One line per model and run with what llama.cpp needs, the build and the verdicts."""
    path = bench.folder / "h.jsonl"
    plan = bench.plan_today(ModelEntry(name="m", path="m.gguf"))[0]
    memory = (*plan.memory.devices, plan.memory.host)
    for _ in range(2):
        keep_history(bench.run(), str(path))
    first, second = read_history(path)
    assert first.values == {"memory_bytes": sum(one.total_bytes for one in memory)}
    assert first.name == second.name == "m" and first.verdicts["plan"] == "ok"
    bench.path.unlink()
    keep_history(bench.run(), str(path))
    assert len(read_history(path)) == 2, "nothing was measured"


def test_memory_is_asked_about_the_recorded_plan(bench: Bench) -> None:
    """Where today's plan is another, the build is still judged by what was recorded."""
    bench.options = PlanOptions(n_ctx=32768)
    report = bench.run()
    assert only(report, "plan").verdict is Verdict.CHANGED
    assert "setting-changed" in codes(only(report, "plan"))


def test_a_changed_header_with_the_same_name(bench: Bench) -> None:
    """Other metadata of the same length, all sizes alike: the header's digest tells."""
    with open(bench.model_path, "rb") as file:
        data = bytearray(file.read(1 << 12))
    at = data.index(b"general.name") + len("general.name") + 4 + 8
    data[at] ^= 1
    with open(bench.model_path, "r+b") as file:
        file.write(data)
    report = bench.run()
    assert codes(only(report, "model")) == {"header-changed"} and report.exit_code == 1
    memory = next(one for one in report.outcomes if one.check == "memory")
    assert memory.verdict is Verdict.SKIPPED


def test_another_model_with_the_same_name(bench: Bench) -> None:
    """Another model under the name: its figures are told."""
    write_shape("gpt-oss-20b", bench.model_path)
    report = bench.run()
    model = report.outcomes[0]
    assert "n_layer was 36 and is 24" in model.findings[0].text and report.exit_code == 1
    assert "layer-count" in codes(report.outcomes[1])


def test_a_prediction_outside_its_interval(bench: Bench) -> None:
    """Today's prediction beside the recorded interval."""
    prediction = dict(bench.recorded().prediction or {})
    prediction |= {"decode_low_t_s": prediction["decode_high_t_s"] * 2}
    prediction |= {"decode_high_t_s": prediction["decode_low_t_s"] * 2}
    bench.plant(prediction=prediction)
    found = only(bench.run(), "prediction")
    assert codes(found) == {"prediction-moved"} and "decode" in found.findings[0].text


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("measured = { decode-t-s = 9999 }", "measured-outside"),
        ("budgets = { prefill-t-s = 1e6 }", "below-budget"),
    ],
)
def test_what_the_user_measured_or_needs(bench: Bench, line: str, code: str) -> None:
    """A measured speed outside today's interval, and a budget above the prediction."""
    bench.config = CONFIG + line
    assert codes(only(bench.run(), "prediction")) == {code}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: "", "not JSON"),
        (lambda text: text[: len(text) // 2], "not JSON"),
        (lambda text: "[" * 100_000, "not JSON"),
        (lambda text: "[]", "not a baseline"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 0'), "version 0"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 2'), "newer offload"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": null'), "None"),
        (lambda text: text.replace('"feasible": true', '"feasible": false'), "by hand"),
        (lambda text: text.replace('"n_ctx": 8192', '"n_ctx": 4096'), "by hand"),
        (lambda text: text.replace('"digest": "', '"digest": "0'), "by hand"),
    ],
)
def test_baselines_that_are_not_whole(bench: Bench, edit: Any, said: str) -> None:
    """Broken, old, newer or edited files: an error that names the file and what to do."""
    text = bench.path.read_text(encoding="utf-8")
    assert edit(text) != text
    bench.path.write_text(edit(text), encoding="utf-8")
    report = bench.run()
    (outcome,) = report.outcomes
    assert outcome.verdict is Verdict.ERROR and report.exit_code == 2
    message = outcome.findings[0].text
    assert str(bench.path) in message and said in message and "\n" not in message


def test_a_baseline_that_contradicts_itself(bench: Bench) -> None:
    """A file whose digest was made again, but whose layers are owned twice or by nobody."""
    facts = bench.recorded().facts
    first, *others = facts.devices
    twice = replace(first, layers=(*first.layers, others[0].layers[0]))
    bench.plant(facts=replace(facts, devices=(twice, *others)))
    with pytest.raises(UsageError, match="contradicts itself: its layers are not each owned once"):
        bench.recorded()


def test_nothing_recorded_and_no_model(bench: Bench) -> None:
    """A missing baseline or model is an error, not a pass."""
    bench.path.unlink()
    assert "nothing is recorded yet" in bench.run().outcomes[0].findings[0].text
    assert bench.run().exit_code == 2
    bench.run(update=True)
    bench.model_path.unlink()
    assert bench.run().exit_code == 2


def test_what_does_not_fit_is_not_recorded(bench: Bench) -> None:
    """An update that finds no plan says so and leaves the file as it was."""
    before = bench.path.read_bytes()
    bench.host_free_bytes = GIB
    assert bench.run(update=True).exit_code == 2
    assert bench.path.read_bytes() == before
    assert "does-not-fit" in codes(bench.run().outcomes[1])


def test_updates_at_once(tmp_path: Path) -> None:
    """Many writers and a reader: every file read is whole and one of those written."""
    path = tmp_path / "b" / "m.json"
    texts = [f"{i}" * 200_000 for i in range(8)]
    write_baseline(path, texts[0])
    with ThreadPoolExecutor(9) as pool:
        for _ in range(5):
            written = [pool.submit(write_baseline, path, text) for text in texts]
            while not all(one.done() for one in written):
                assert path.read_text(encoding="utf-8") in texts
            assert {one.result() for one in written} <= {"changed", "unchanged"}
    assert [one.name for one in path.parent.iterdir()] == ["m.json"]
