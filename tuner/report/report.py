"""What does one profile say, all of it, before anybody decides how it looks?"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.profile import Profile
from tuner.report.card import CardRow, make_card
from tuner.report.doubts import Doubts, make_doubts
from tuner.report.judged import Judged, Score, judge, score
from tuner.report.law import Law, make_law
from tuner.report.timings import Timing, by_model, read_timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is shown. `laws` are by model, the one timed last first, decode first."""

    profile: Profile
    timings: tuple[Timing, ...]
    laws: tuple[Law, ...]
    card: tuple[CardRow, ...]
    judged: tuple[Judged, ...]
    scores: tuple[Score, ...]
    doubts: Doubts


def make_report(profile: Profile) -> Report:
    """The report of a profile: fits its samples about a dozen times, which takes seconds."""
    timings, n_unreadable = read_timings(profile.samples)
    known = profile.coefficients
    laws = tuple(
        law
        for mine in by_model(timings).values()
        for phase in ("decode", "prefill")
        if (law := make_law(mine, phase, known)) is not None
    )
    judged = judge(timings, known, profile.hardware.card_models)
    return Report(
        profile=profile,
        timings=timings,
        laws=laws,
        card=make_card(profile, timings),
        judged=judged,
        scores=score(judged),
        doubts=make_doubts(profile, timings, n_unreadable),
    )
