"""Is what other people measured as the fastest what we would have chosen?"""

from __future__ import annotations

from benchmarks.recorded_choice import placement_groups, ubatch_groups


def test_the_fastest_recorded_placement_is_ranked_first_or_close() -> None:
    """In four of five cases, and groups of placements, from data sheets alone."""
    groups = placement_groups()
    assert len(groups) > 30
    assert sum(g.holds for g in groups) >= 0.8 * len(groups)
    cases = {g.case for g in groups}
    held = [case for case in cases if all(g.holds for g in groups if g.case == case)]
    assert len(held) >= 0.8 * len(cases)


def test_the_chosen_ubatch_was_measured_as_good() -> None:
    """On every recorded sweep of -ub the turn of the chosen one is within 5 % of the best."""
    groups = ubatch_groups()
    assert len(groups) > 20
    assert [g.case for g in groups if g.turn_loss > 0.05] == []
