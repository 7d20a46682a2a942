"""Do a report's figures agree with the machine that was planted, computed another way?"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.bench_fakes import READS, planted_seconds
from tests.report_profiles import changed_samples, swept_profile, with_samples
from tuner.profile import Card, Profile
from tuner.report import Report, make_report
from tuner.report.card import make_card
from tuner.report.doubts import make_doubts
from tuner.report.glance import glance_caution, glance_sentence, glance_table
from tuner.report.judged import judge
from tuner.report.law import Law, make_law
from tuner.report.timings import Timing, by_model, model_title, read_timings


@pytest.fixture(scope="module")
def report() -> Report:
    """Of the planted machine, without noise."""
    return make_report(swept_profile())


def _work(profile: Profile, label: str, phase: str) -> Mapping[str, float]:
    """Per token: amounts of the longest test of a placement at no depth, from the raw samples."""
    key = "n_prompt" if phase == "prefill" else "n_gen"
    some = [s for s in profile.samples if s["label"] == label and s[key] and not s["n_depth"]]
    longest = max(some, key=lambda s: s[key])
    return {name: amount / longest[key] for name, amount in longest["work"].items()}


def _law(report: Report, phase: str) -> Law:
    return next(law for law in report.laws if law.phase == phase)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_the_ends_and_the_line_are_those_planted(report: Report, phase: str) -> None:
    """Times per token are the planted ones, and the line is their weighted mean."""
    law = _law(report, phase)
    none, everything = (
        planted_seconds(_work(report.profile, label, phase)) for label in ("none", "all")
    )
    assert law.n_expert_layers == 8
    assert law.none.measured_s == pytest.approx(none, rel=1e-6)
    assert law.all.measured_s == pytest.approx(everything, rel=1e-6)
    assert law.slope_s == pytest.approx((everything - none) / 8, rel=1e-6)
    half = next(point for point in law.points if point.label == "own 2/4")
    assert half.n_host == 4
    assert half.line_s == pytest.approx((none + everything) / 2, rel=1e-6)
    assert half.measured_s == pytest.approx(
        planted_seconds(_work(report.profile, "own 2/4", phase)), rel=1e-6
    )
    assert half.line_error == pytest.approx(half.line_s / half.measured_s - 1)


def test_only_what_differs_in_layers_alone_is_on_the_line(report: Report) -> None:
    """No other card, batch, depth, layout or shorter cut, for which the line says nothing."""
    labels = {point.label.split()[0] for law in report.laws for point in law.points}
    assert labels <= {"none", "all", "own", "first", "last", "only"}
    assert all("," not in point.label for law in report.laws for point in law.points)
    counts = [point.n_host for point in _law(report, "decode").points]
    assert counts == sorted(counts) and {0, 8} <= set(counts)


def test_the_first_table_and_sentence_say_what_offloading_costs(report: Report) -> None:
    """Rates of both ends, and what one layer adds, as one divides them by hand."""
    none, everything = (
        planted_seconds(_work(report.profile, label, "decode")) for label in ("none", "all")
    )
    text = glance_table(report, markdown=True)
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()[2:]
    ]
    assert [row[0] for row in rows] == ["0 of 8", "2 of 8", "4 of 8", "6 of 8", "8 of 8"]
    assert float(rows[0][1]) == pytest.approx(1 / none, rel=0.005)
    assert float(rows[-1][1]) == pytest.approx(1 / everything, rel=0.005)
    assert float(rows[-1][3]) == pytest.approx(everything / none, abs=0.006)
    assert rows[0][3] == "1.00"
    sentence = glance_sentence(report)
    assert f"{(everything - none) / 8 * 1e3:.3g} ms to each token" in sentence
    moved = sum(
        amount
        for name, amount in _work(report.profile, "all", "decode").items()
        if name.startswith("decode.read.CPU")
    )
    assert f"({(everything - none) / moved * 1e12:.3g} ms for each GB" in sentence
    assert sentence.count(". ") == 0  # one sentence


def _sentence(report: Report, change: Callable[[int, int], int]) -> str:
    """With the repetitions of `all` changed by their number and nanoseconds."""
    samples = changed_samples(
        report.profile,
        samples_ns=lambda s: [
            change(i, ns) if s["label"] == "all" else ns for i, ns in enumerate(s["samples_ns"])
        ],
    )
    timings, n_unreadable = read_timings(samples)
    assert not n_unreadable
    law = make_law([t for t in timings if not t.is_short], "decode", report.profile.coefficients)
    assert law is not None
    return glance_sentence(replace(report, laws=(law,)))


def test_a_faster_host_and_equal_ends_are_said_in_words(report: Report) -> None:
    """The sentence follows the sign: the host may be faster, or there may be no difference."""
    law = _law(report, "decode")
    ratio = law.none.measured_s / law.all.measured_s
    faster = _sentence(report, lambda i, ns: round(0.8 * ratio * ns))
    saved_us = 0.2 * law.none.measured_s / 8 * 1e6
    assert f"the host is faster here, one more layer there takes {saved_us:.3g} us off" in faster
    assert "decode is about as fast" in _sentence(report, lambda i, ns: round(ratio * ns))


def test_where_repetitions_overlap_no_cost_is_claimed(report: Report) -> None:
    """One fast repetition with all on the host is enough to leave the cost untold."""
    ratio = _law(report, "decode").none.measured_s / _law(report, "decode").all.measured_s
    said = _sentence(report, lambda i, ns: round(0.9 * ratio * ns) if i == 0 else ns)
    assert "overlap" in said and "cannot be told" in said and "add" not in said


def test_what_makes_figures_worth_less_stands_beside_them(report: Report) -> None:
    """Busy neighbours in most samples are said at once, in none not at all."""
    assert glance_caution(report) == ""
    busy, _ = read_timings(changed_samples(report.profile, load=0.9))
    n = len(busy)
    assert f"{n} of {n} samples" in glance_caution(replace(report, timings=busy))


def test_bandwidths_stand_beside_the_data_sheet(report: Report) -> None:
    """936 GB/s is the vendor's figure of the card; what was planted lies within three errors."""
    reads = [r for r in report.card if r.work == "weights read" and r.phase == "decode"]
    assert {r.sheet for r in reads if r.place.startswith("CUDA")} == {936.0}
    assert {r.sheet for r in reads if r.place.startswith("CPU")} == {None}
    links = [r for r in report.card if r.work == "experts copied over the link"]
    assert [(r.sheet, r.place) for r in links] == [(31.5, "CUDA0")]
    table = report.profile.coefficients.table
    stream = table["prefill.stream.CUDA0"]
    (link,) = links
    assert link.measured == pytest.approx(1e-9 / stream.value)
    assert link.measured_doubt == pytest.approx(stream.standard_error / stream.value)
    assert pytest.approx(stream.value, abs=3 * stream.standard_error) == 1e-10  # as planted
    for row in reads:
        name = f"decode.read.{row.place}.{row.type_name}"
        known = table[name].value > table[name].standard_error
        assert (row.measured is not None) == known
        assert row.prior is not None and row.prior_doubt is not None


def test_bounds_need_no_fit_and_hold(report: Report) -> None:
    """What a device read at the least is below what was planted, and is the fastest run's."""
    bounds = {row.place: row for row in report.card if row.is_bound}
    assert set(bounds) >= {"CUDA0", "CUDA1", "CPU"}
    for place, row in bounds.items():
        assert row.measured is not None and row.measured < 1e-9 / READS[place]
    fastest = max(
        sum(a for n, a in s["work"].items() if n.startswith("decode.read.CUDA0."))
        / statistics.median(s["samples_ns"])
        for s in report.profile.samples
        if s["n_gen"]
    )
    assert bounds["CUDA0"].measured == pytest.approx(fastest)


def test_without_noise_predictions_are_exact_and_with_it_as_wide_as_it(report: Report) -> None:
    """Errors of the fit follow the planted noise, and intervals cover about what they promise."""
    exact = {(s.phase, s.kind): s for s in report.scores}
    noisy = {
        (s.phase, s.kind): s for s in make_report(swept_profile(noise=0.02, time_s=130.0)).scores
    }
    assert set(exact) == {
        (phase, kind) for phase in ("decode", "prefill") for kind in ("in the fit", "left out")
    }
    for phase in ("decode", "prefill"):
        assert exact[phase, "in the fit"].median_error < 0.002
        assert exact[phase, "left out"].median_error < 0.01
        assert exact[phase, "in the fit"].median_error < noisy[phase, "in the fit"].median_error
        assert noisy[phase, "in the fit"].median_error < 0.03
        assert noisy[phase, "in the fit"].coverage >= 0.85
        assert noisy[phase, "left out"].coverage >= 0.75
    assert exact["decode", "left out"].n == exact["decode", "in the fit"].n


def test_what_was_left_out_had_no_part_in_its_prediction() -> None:
    """A placement made ten times slower moves its own fit, and not what others say of it."""
    profile = swept_profile()
    plain = [s for s in profile.samples if s["n_gen"]]
    slowed = [
        dict(s) | {"samples_ns": [10 * ns for ns in s["samples_ns"]]}
        if s["label"] == "own 1/4"
        else s
        for s in plain
    ]
    before, after = (
        [
            one
            for one in judge(
                read_timings(samples)[0], profile.coefficients, profile.hardware.card_models
            )
            if one.timing.label == "own 1/4"
        ]
        for samples in (plain, slowed)
    )
    assert before and len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        assert one.left_out is not None and other.left_out is not None
        assert other.timing.seconds == pytest.approx(10 * one.timing.seconds)
        assert other.left_out.seconds == pytest.approx(one.left_out.seconds)


def test_drift_outliers_heat_and_neighbours_are_told() -> None:
    """Each of them as it is recorded in the samples."""
    profile = swept_profile()
    samples = changed_samples(profile)
    anchors = [s for s in samples if s["is_anchor"] and s["n_gen"]]
    assert len(anchors) > 1
    anchors[-1]["samples_ns"] = [round(1.25 * ns) for ns in anchors[-1]["samples_ns"]]
    samples[4] |= {"outliers": [2]}
    samples[5] |= {"throttled": [1]}
    for sample in samples[:10]:
        sample["load"] = 0.5
    changed = with_samples(profile, samples)
    text = "\n".join(make_doubts(changed, *_read(changed)).notes)
    assert "decode: the repeated run took up to 25.0% longer" in text
    assert f"1 of {3 * len(samples)} repetitions stood out" in text
    assert "1 samples with a card slowed by heat or power: 1" in text
    assert f"10 of {len(samples)} samples were taken while other programs used 50%" in text
    clean = "\n".join(make_doubts(profile, *_read(profile)).notes)
    assert "no card was seen slowed" in clean and "beside a busy neighbour" in clean


def test_costs_that_are_not_those_of_the_samples_are_noticed() -> None:
    """A profile whose samples were made twice as slow by hand says so, an honest one does not."""
    profile = swept_profile()
    assert not any("edited" in note for note in make_doubts(profile, *_read(profile)).notes)
    slow = changed_samples(profile, samples_ns=lambda s: [2 * ns for ns in s["samples_ns"]])
    edited = with_samples(profile, slow)
    assert any("edited" in note for note in make_doubts(edited, *_read(edited)).notes)


def _read(profile: Profile) -> tuple[tuple[Timing, ...], int]:
    return read_timings(profile.samples)


def test_what_is_known_in_sums_only_names_a_run(report: Report) -> None:
    """Each such cost, a cost it goes with, and what would part them."""
    unknown = report.doubts.unidentified
    assert unknown and report.doubts.n_costs == len(report.profile.coefficients.table)
    assert {u.feature for u in unknown} <= set(report.profile.coefficients.table)
    assert all(u.advice.startswith(("a run", "runs")) for u in unknown)


def test_samples_that_cannot_be_read_are_counted() -> None:
    """Cut, edited and foreign samples are left out and said, and the rest is reported."""
    profile = swept_profile()
    samples = changed_samples(profile)
    broken: list[Any] = [
        {},
        samples[0] | {"samples_ns": []},
        samples[0] | {"samples_ns": [0, 0, 0]},
        samples[0] | {"samples_ns": ["x"]},
        samples[0] | {"work": {"decode.const": float("nan")}},
        samples[0] | {"work": {"decode.const": -1.0}},
        samples[0] | {"work": {}},
        samples[0] | {"work": 5},
        samples[0] | {"outliers": [0, 1, 2]},
        samples[0] | {"outliers": ["a"]},
        samples[0] | {"model": "m"},
        samples[0] | {"cell": None},
        samples[0] | {"load": "high"},
        samples[0] | {"n_gen": -4},
        samples[0] | {"label": 3},
    ]
    timings, n_unreadable = read_timings([*broken, *samples])
    assert len(timings) == len(samples) and n_unreadable == len(broken)
    doubts = make_doubts(profile, timings, n_unreadable)
    assert f"{len(broken)} samples cannot be read and are left out" in doubts.notes


def test_a_profile_without_samples_still_has_its_costs() -> None:
    """The machine card is there, and the rest says that there is nothing to say."""
    found = make_report(with_samples(swept_profile(), []))
    assert found.card and not found.laws and not found.scores
    assert any("keeps no samples" in note for note in found.doubts.notes)
    assert "cannot say what offloading costs" in glance_sentence(found)
    assert glance_table(found, markdown=True) == ""


def test_virtual_cards_are_called_what_they_are() -> None:
    """No data sheet and no prior speaks for them, and nobody takes them for cards."""
    profile = swept_profile()
    played = tuple(
        Card(name=card.name, description="virtual card (one thread of the processor)")
        for card in profile.hardware.cards
    )
    found = replace(profile, hardware=replace(profile.hardware, cards=played))
    timings, n_unreadable = _read(found)
    assert "virtual" in make_doubts(found, timings, n_unreadable).notes[0]
    rows = [row for row in make_card(found, timings) if row.place.startswith("CUDA")]
    assert rows and all(row.sheet is None and row.prior is None for row in rows)


def test_the_model_timed_last_comes_first() -> None:
    """A profile of several models opens with the newest; shorter cuts are none of their own."""
    profile = swept_profile()
    older = changed_samples(
        profile,
        model=lambda s: s["model"] | {"digest": f"old {s['model']['digest']}", "arch": "old"},
    )
    groups = by_model(read_timings([*older, *changed_samples(profile)])[0])
    titles = [model_title(timings[0]) for timings in groups.values()]
    assert [title.split(", 128")[0] for title in titles] == [
        "qwen3moe, 8 of 48 layers",
        "old, 8 of 48 layers",
    ]
