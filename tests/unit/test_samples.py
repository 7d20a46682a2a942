"""What is kept of a timed test, and what of it counts."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.samples import anchor_drift, counted_ns, make_runs, outliers, sample_seconds


def _sample(samples_ns: list[int], **more: Any) -> dict[str, Any]:
    return {
        "label": "none", "n_prompt": 0, "n_gen": 8, "n_depth": 0, "samples_ns": samples_ns,
        "outliers": list(outliers(samples_ns)), "work": {"decode.const": 8.0}, "load": 0.0,
        "is_anchor": True, "model": {"digest": "a"}, **more,
    }  # fmt: skip


def test_what_stands_out_is_marked_and_kept() -> None:
    """One of five that takes twice as long does not count, and is still there."""
    sample = _sample([100, 101, 99, 100, 200])
    assert sample["outliers"] == [4]
    assert counted_ns(sample) == [100, 101, 99, 100]
    assert len(sample["samples_ns"]) == 5
    assert sample_seconds(sample) == 100e-9


def test_of_two_nothing_stands_out() -> None:
    """Nobody can tell which of two is wrong; nor do small differences count."""
    assert outliers([100, 200]) == ()
    assert outliers([100, 100, 104]) == ()


def test_noise_grows_with_scatter_and_with_load() -> None:
    """A fit believes quiet and steady samples more."""
    quiet, shaky, disturbed = make_runs(
        [_sample([100] * 3), _sample([90, 100, 110]), _sample([100] * 3, load=0.5)]
    )
    assert quiet.noise < shaky.noise
    assert disturbed.noise == pytest.approx(0.125)
    assert quiet.label == "none tg8" and quiet.seconds == 100e-9


def test_runs_aside_do_not_count() -> None:
    """Another number of threads is another machine to the fit."""
    assert len(make_runs([_sample([100] * 3), _sample([50] * 3, is_aside=True)])) == 1


def test_drift_is_seen_in_anchors_only() -> None:
    """Largest over smallest of the same test; one anchor shows nothing."""
    a, b = _sample([100] * 3), _sample([110] * 3)
    other = _sample([500] * 3, is_anchor=False)
    assert anchor_drift([a, b, other]) == {"decode": pytest.approx(0.1)}
    assert anchor_drift([a, other]) == {}
