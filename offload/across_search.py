"""Is a turn shorter with experts on a card that does not own their layer?

Where cards differ in speed: weights that every token reads belong on the fast ones, of experts
it reads a few, so that these may lie on a slow one, if the crossings there and back take less.
Lays the units before offload/fastest/across.py, and asks again with the compute of its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Final, NamedTuple

from offload.clock import Clock
from offload.cost import Work, seconds_of
from offload.fastest.across import (
    AcrossAnswer,
    AcrossItem,
    AcrossKind,
    AcrossProblem,
    solve_across,
)
from offload.memory import Breakdown
from offload.placement import Placement
from offload.solve import Solution
from offload.speeds import PROFILE
from offload.split import HOST
from offload.strategy import Priced, make_placement, price_problem
from offload.time_search import SAME_SHARE, Candidate, Search, user_counts
from offload.unit_times import PlaceTime, place_times

ACROSS: Final = "across"

_ROUNDS: Final = 2
"""Compute depends on the placement and the placement on compute: at most this many rounds."""

_SLACK_BYTES: Final = 256 << 20
"""Compute that turns out smaller by less than this is not worth another round."""

_COMPUTED_TOGETHER: Final = frozenset(("ffn_up_exps", "ffn_gate_exps"))
"""Experts' matrices that wait for each other, and are better on one card."""


class Across(NamedTuple):
    """The best that was found, if it is shorter, and what no placement on these cards is below."""

    candidate: Candidate | None
    bound_s: float


def may_cross(search: Search, clock: Clock, best: Candidate) -> bool:
    """Whether anything could be gained: several cards, no rules of the user's, unequal speed.

    Cards that are alike can only pool what each has left, which is worth no more than that
    many bytes fewer on the host. What a crossing takes across a network only a measurement tells.
    """
    problem = search.problem
    if len(clock.devices) < 2 or problem.has_user_rules or not problem.model.expert_tensors:
        return False
    if clock.source != PROFILE and any(device.endpoint for device in clock.devices):
        return False
    if len({_rates(clock, device.name) for device in clock.devices}) > 1:
        return True
    if HOST not in best.priced.placement.placed.values():
        return False
    used = (device.total_bytes for device in best.priced.memory.devices)
    left = (max(room - n, 0) for room, n in zip(problem.room_bytes, used, strict=False))
    return sum(left) * search.most_saved_s > best.turn_s * SAME_SHARE


def _rates(clock: Clock, name: str) -> tuple[tuple[str, str, float], ...]:
    """What work takes on a card, its link aside."""
    found = []
    for feature, coefficient in clock.coefficients.table.items():
        phase, kind, place = (*feature.split("."), "", "")[:3]
        if place == name and not kind.startswith("stream"):
            found.append((phase, feature[len(phase) :].replace(name, ""), coefficient.value))
    return tuple(sorted(found))


def search_across(search: Search, clock: Clock, best: Candidate, memory: Breakdown) -> Across:
    """Shorter than `best` by more than is told apart, beginning with the compute of `memory`."""
    layout = _Layout(search, clock)
    enough_s = best.turn_s / (1 + SAME_SHARE)
    compute = [device.compute_bytes for device in memory.devices]
    found: Candidate | None = None
    bound_s = inf
    for _ in range(_ROUNDS):
        answer = layout.ask(compute, best, enough_s)
        bound_s = min(bound_s, answer.bound_s + search.constant_s)
        if not answer.places:
            break
        priced = layout.priced(answer)
        turn_s = clock.seconds(priced.placement)
        saved_s = _saved_s(clock, best, priced, turn_s) - layout.doubt_s(answer)
        is_worth = saved_s > best.turn_s * SAME_SHARE / (1 + SAME_SHARE)
        if priced.fits and is_worth and (found is None or turn_s < found.turn_s):
            found = Candidate(ACROSS, priced, turn_s)
        actual = [device.compute_bytes for device in priced.memory.devices]
        if priced.fits and found is None:
            break
        if priced.fits and all(c - a <= _SLACK_BYTES for a, c in zip(actual, compute, strict=True)):
            break
        if not priced.fits:
            actual = [max(a, c) for a, c in zip(actual, compute, strict=True)]
        if actual == compute:
            break
        compute = actual
    return Across(found, bound_s)


def _saved_s(clock: Clock, best: Candidate, priced: Priced, turn_s: float) -> float:
    """Seconds of the turn that are saved for sure, crossings aside.

    Without any rule cards prefill in turns (pipeline parallelism), which the clock leaves out:
    from there only what is saved in decode counts.
    """
    saved_s = best.turn_s - turn_s
    if best.priced.placement.has_rules:
        return saved_s
    before, after = (_decode_s(clock, one.placement) for one in (best.priced, priced))
    return min(saved_s, before - after)


def _decode_s(clock: Clock, placement: Placement) -> float:
    amounts = clock.work(placement).amounts.items()
    work = Work(amounts={name: n for name, n in amounts if name.startswith("decode.")})
    return seconds_of(work, clock.coefficients)


class _Layout:
    """One problem as units that are alike, and its answers as placements."""

    def __init__(self, search: Search, clock: Clock) -> None:
        self._problem, tables = search.problem, search.tables
        times, time_of = place_times(clock)
        numbers: dict[tuple[object, ...], int] = {}
        kinds: list[AcrossKind] = []
        kind_of = []
        for u, t in enumerate(time_of):
            fixed = tuple(table.fixed_bytes[u] for table in tables)
            sizes = tuple(
                tuple(table.expert_units[u][i].n_bytes for table in tables)
                for i in range(len(tables[0].expert_units[u]))
            )
            stems = tuple(unit.stem for unit in tables[0].expert_units[u])
            number = numbers.setdefault((t, fixed, sizes, stems), len(kinds))
            if number == len(kinds):
                kinds.append(_kind(times[t], fixed, sizes, stems))
            kind_of.append(number)
        n_host = self._problem.n_host_layers
        counts = user_counts(self._problem)
        if counts is not None:
            n_host = len(kind_of) - sum(counts)
        self._asked = AcrossProblem(
            kinds=tuple(kinds),
            kind_of=tuple(kind_of),
            budget_bytes=self._problem.room_bytes,
            once_bytes=tuple(table.once_bytes for table in tables),
            once_s=search.once_s,
            starts=range(len(kind_of) + 1) if n_host is None else (n_host,),
            counts=counts,
        )
        self._tables = tables
        self._constant_s = search.constant_s
        hop = clock.coefficients.table.get("decode.hop")
        known = hop is not None and hop.value > 0
        self._hop_doubt = hop.standard_error / hop.value if hop is not None and known else 1.0

    def ask(self, compute: Sequence[int], best: Candidate, enough_s: float) -> AcrossAnswer:
        """The solver's answer with these compute buffers."""
        rooms = zip(self._problem.room_bytes, compute, strict=True)
        asked = self._asked._replace(budget_bytes=tuple(max(r - c, 0) for r, c in rooms))
        counts = best.priced.placement.split.counts(len(self._tables))
        ends = (*accumulate(counts, initial=len(asked.kind_of) - sum(counts)),)
        constant_s = self._constant_s
        return solve_across(asked, best.turn_s - constant_s, enough_s - constant_s, (ends,))

    def priced(self, answer: AcrossAnswer) -> Priced:
        """The answer as a placement, with its memory."""
        placed: dict[str, int] = {}
        n_cards = len(self._tables)
        for u, places in enumerate(answer.places):
            for unit, e in zip(self._tables[0].expert_units[u], places, strict=False):
                placed |= dict.fromkeys(unit.names, HOST if e == n_cards else e)
        counts = tuple(end - first for first, end in pairwise(answer.way))
        placement = make_placement(self._problem, Solution(counts=counts, reliefs=()), placed)
        return price_problem(self._problem, placement)

    def doubt_s(self, answer: AcrossAnswer) -> float:
        """Seconds by which crossings to other cards may take longer than is thought."""
        total = 0.0
        n_cards = len(self._tables)
        for d, (first, end) in enumerate(pairwise(answer.way)):
            for u in range(first, end):
                cross_s = self._asked.kinds[self._asked.kind_of[u]].cross_s[d]
                total += sum(cross_s[e] for e in set(answer.places[u]) - {d, n_cards})
        return total * self._hop_doubt


def _kind(
    time: PlaceTime,
    fixed: tuple[int, ...],
    sizes: tuple[tuple[int, ...], ...],
    stems: tuple[str, ...],
) -> AcrossKind:
    nothing = (0.0,) * (len(fixed) + 1)
    return AcrossKind(
        fixed_bytes=fixed,
        base_s=time.base_s,
        host_s=time.host_s,
        items=tuple(
            AcrossItem(n_bytes, time.expert_s.get(stem, nothing))
            for n_bytes, stem in zip(sizes, stems, strict=True)
        ),
        cross_s=time.cross_s,
        tied=sum(1 << i for i, stem in enumerate(stems) if stem in _COMPUTED_TOGETHER),
    )
