"""What a speed check says becomes an outcome: slower fails, "cannot tell" does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload.emit import Launch
from tuner.check import speed
from tuner.check.outcome import Report, Verdict
from tuner.check.speed import SpeedSettings, check_builds
from tuner.check.text import render_markdown
from tuner.paired import Comparison, Sizes, SpeedCheck, SpeedOptions, result
from tuner.paired import Verdict as Said

LAUNCH = Launch(model_path="m.gguf", n_gpu_layers=0, n_ctx=512, n_batch=512, n_ubatch=512)


def said(test: str, verdict: Said, ratio: float) -> result.TestResult:
    """A judgement of one test."""
    comparison = Comparison(
        verdict=verdict, ratio=ratio, low=ratio - 0.01, high=ratio + 0.01, confidence=0.98,
        p_slower=0.1, p_faster=0.1, n=20, tolerance=0.05, needed_times=3.0,
    )  # fmt: skip
    return result.TestResult(
        test=test, comparison=comparison, seconds_a=0.01 * ratio, seconds_b=0.01,
        noise=0.02, start_noise=None, drift=0.0, needed_s=90.0,
    )  # fmt: skip


def check(*results: result.TestResult) -> SpeedCheck:
    """A whole check."""
    return SpeedCheck(
        name_a="new", name_b="old", results=results, sizes=Sizes(n_prompt=32, n_gen=8),
        n_pairs=20, n_starts=2, spent_s=12.0, time_s=48.0, load=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("decode", "prefill", "verdict", "codes"),
    [
        (Said.SAME, Said.FASTER, Verdict.OK, []),
        (Said.SLOWER, Said.SAME, Verdict.CHANGED, ["decode-slower"]),
        (Said.CANNOT_TELL, Said.SLOWER, Verdict.CHANGED, ["prefill-slower"]),
        (Said.CANNOT_TELL, Said.SAME, Verdict.UNSURE, []),
    ],
)
def test_verdicts(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    decode: Said,
    prefill: Said,
    verdict: Verdict,
    codes: list[str],
) -> None:
    """The worst of the two tests decides; the new build is the one that is checked."""
    asked = []

    def compare(a: str, b: str, options: SpeedOptions) -> SpeedCheck:
        asked.append((a, b))
        return check(said("decode", decode, 1.1), said("prefill", prefill, 1.2))

    monkeypatch.setattr(speed, "compare_builds", compare)
    monkeypatch.setattr(speed, "choose_arm", lambda build, launch, n_threads: build)
    outcome = check_builds("m", LAUNCH, "OLD", "NEW", SpeedSettings(options=SpeedOptions()))
    assert asked == [("NEW", "OLD")]
    assert outcome.verdict is verdict and [one.code for one in outcome.findings] == codes
    report = Report(outcomes=(outcome,))
    assert report.exit_code == int(verdict is Verdict.CHANGED)
    assert str(verdict) in render_markdown(report)
    if verdict is Verdict.UNSURE:
        assert any("90s" in note for note in outcome.notes)
