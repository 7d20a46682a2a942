"""Which placement has the shortest turn, given compute buffers, and what is no placement below?

Lays bytes and seconds of every unit on every card before the solver (offload/fastest), and asks
it again with the compute of its last answer: compute depends on the placement, and the
placement on compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, NamedTuple

from offload.clock import Clock
from offload.fastest import (
    Answer,
    CardProblem,
    HostProblem,
    HostUnit,
    Item,
    Unit,
    solve_fastest,
)
from offload.fastest.solve import EFFORT
from offload.memory import HOST_BACKEND, Breakdown, LayerBytes, layer_bytes, measure_memory
from offload.options import Strategy
from offload.solve import Solution
from offload.split import HOST, LayerSplit, split_layers
from offload.strategy import (
    Priced,
    Problem,
    card_tables,
    make_placement,
    price_problem,
    user_bytes,
)
from offload.unit_times import UnitTime, turn_times

SAME_SHARE: Final = 0.01
"""Turns that differ by less are not told apart: then the cards are filled evenly."""

FASTEST: Final = "fastest"

_ROUNDS: Final = 4
"""Compute depends on the placement and the placement on compute: at most this many rounds."""

_QUICK_EFFORT: Final = 10_000
_QUICK_GAP: Final = SAME_SHARE / 2
"""Steps of the solver at first; more only where its answer may be off by more than this."""

_SLACK_BYTES: Final = 64 << 20
"""Compute that turns out smaller by less than this is not worth another round."""


class Candidate(NamedTuple):
    """A placement and the seconds of its turn."""

    name: str
    priced: Priced
    turn_s: float


class Found(NamedTuple):
    """The solver's best placement that fits, if any, and the bound that holds for it."""

    candidate: Candidate | None
    bound_s: float | None


def solve_for_time(search: Search, even: Candidate) -> Found:
    """The solver's shortest turn that fits, beginning with the compute of the even spread.

    Without any rule pipeline parallelism takes more compute, and moving nothing needs no
    rule; so both ways of keeping everything where it belongs are tried.
    """
    problem, start = search.problem, even.priced
    ruled = start
    if not start.placement.has_rules:
        ruled = price_problem(problem, start.placement._replace(has_rules=True))
    enough_s = even.turn_s / (1 + SAME_SHARE) if start.fits else None
    found = search.run(ruled, movable=True, enough_s=enough_s)
    if problem.has_user_rules or start.placement.has_rules or found.candidate is None:
        return found
    unruled = search.run(start, movable=False, enough_s=enough_s)
    if unruled.candidate is None:
        return found
    best = found.candidate
    if unruled.candidate.turn_s <= best.turn_s * (1 + SAME_SHARE):
        best = unruled.candidate
    return Found(candidate=best, bound_s=found.bound_s)


class Search:
    """One problem laid out for the solver; asked again for other compute buffers."""

    def __init__(self, problem: Problem, clock: Clock) -> None:
        self.problem, self._clock = problem, clock
        self._times = turn_times(clock, problem.user_placed)
        self._tables = card_tables(problem, movable=True, drop_experts=False)
        self._host = layer_bytes(
            problem.model, problem.context, HOST_BACKEND, dict(problem.user_placed)
        )
        self._charged = user_bytes(problem)
        self._units: dict[tuple[int, int, bool], tuple[Unit, ...]] = {}
        on_cards = LayerSplit(owners=(0,) * problem.n_units)
        bare = measure_memory(
            problem.model, problem.context, problem.backends, on_cards, problem.user_placed
        )
        self._host_base_bytes = bare.host.model_bytes + bare.host.context_bytes

    def run(self, start: Priced, *, movable: bool, enough_s: float | None) -> Found:
        """Ask the solver until compute no longer changes; with `movable` items may leave.

        No candidate where nothing can be shorter than `enough_s`, which then is the bound.
        """
        compute = _compute_of(start.memory)
        host_bytes = start.memory.host.compute_bytes
        best: Candidate | None = None
        bound_s = inf
        for _ in range(_ROUNDS):
            answer = self._ask(compute, host_bytes, movable=movable, effort=_QUICK_EFFORT)
            if answer is None:
                break
            least_s = min(bound_s, answer.bound_s + self._times.constant_s)
            if best is None and enough_s is not None and least_s >= enough_s:
                return Found(candidate=None, bound_s=least_s)
            if answer.gap > _QUICK_GAP:
                answer = self._ask(compute, host_bytes, movable=movable, effort=EFFORT) or answer
            bound_s = min(bound_s, answer.bound_s + self._times.constant_s)
            priced = self._priced(answer, movable=movable)
            turn_s = self._clock.seconds(priced.placement)
            if priced.fits and (best is None or turn_s < best.turn_s):
                best = Candidate(FASTEST, priced, turn_s)
            actual = _compute_of(priced.memory)
            saved = max((c - a for c, a in zip(compute, actual, strict=True)), default=0)
            if priced.fits and saved <= _SLACK_BYTES:
                break
            if not priced.fits:
                actual = tuple(max(a, c) for a, c in zip(actual, compute, strict=True))
            if actual == compute and HOST not in priced.short_bytes:
                break
            compute = actual
            host_bytes = priced.memory.host.compute_bytes + priced.short_bytes.get(HOST, 0)
        return Found(candidate=best, bound_s=None if best is None else bound_s)

    @property
    def constant_s(self) -> float:
        """Seconds of the turn that no choice changes."""
        return self._times.constant_s

    @property
    def once_s(self) -> float:
        """What any card adds that owns anything."""
        return self._times.once_s

    @property
    def most_saved_s(self) -> float:
        """Seconds that a byte of experts saves at most on the first card instead of the host."""
        return max(
            (
                time.away_s.get(unit.stem, 0.0) / unit.n_bytes
                for units, time in zip(
                    self._tables[0].expert_units, self._times.cards[0], strict=True
                )
                for unit in units
                if unit.n_bytes
            ),
            default=0.0,
        )

    @property
    def tables(self) -> tuple[LayerBytes, ...]:
        """Bytes of every unit on every card, with all experts free to leave."""
        return self._tables

    def bound_s(self) -> float | None:
        """Seconds that no placement is below, whatever compute takes; None where none fits."""
        nothing = (0,) * len(self._tables)
        answer = self._ask(nothing, 0, movable=True, effort=_QUICK_EFFORT)
        return None if answer is None else answer.bound_s + self._times.constant_s

    def least_s(self, strategy: Strategy) -> float:
        """Seconds that first-N, last-N or all on the host is not below, whatever compute takes.

        Only for free layers; infinite where even compute of nothing leaves no room. 0 where
        moving experts could save time, so that more of them might be faster.
        """
        problem, times = self.problem, self._times
        n_cards = len(problem.backends)
        if strategy is Strategy.ALL:
            columns = zip(*times.cards, strict=True)
            best = [min(_all_away_s(unit) for unit in column) for column in columns]
            host = [min(b, h) for b, h in zip(best, times.host, strict=True)]
            return times.constant_s + times.once_s + sum(host)
        shares = problem.tensor_split or tuple(float(max(n, 1)) for n in problem.free_bytes)
        n_gpu_layers = -1 if problem.n_gpu_layers is None else problem.n_gpu_layers
        owners = split_layers(problem.model.n_layer, n_gpu_layers, shares).owners
        total_s = times.constant_s + times.once_s * len(set(owners) - {HOST})
        used = list(self._charged)
        for d in set(owners) - {HOST}:
            used[d] += self._tables[d].once_bytes
        for il, d in enumerate(owners):
            if d == HOST:
                total_s += times.host[il]
                continue
            total_s += times.cards[d][il].base_s
            used[d] += self._tables[d].fixed_bytes[il] + self._tables[d].expert_bytes[il]
        order = [
            il for il, d in enumerate(owners) if d != HOST and self._tables[d].expert_bytes[il]
        ]
        if strategy is Strategy.LAST:
            order.reverse()
        rooms = problem.room_bytes
        for il in order:
            d = owners[il]
            unit = times.cards[d][il]
            added_s = _all_away_s(unit) - unit.base_s
            if added_s < 0:
                return 0.0
            if all(used[c] <= rooms[c] for c in range(n_cards)):
                break
            used[d] -= self._tables[d].expert_bytes[il]
            total_s += added_s
        return total_s

    def _ask(
        self, compute: Sequence[int], host_bytes: int, *, movable: bool, effort: int
    ) -> Answer | None:
        problem = self.problem
        rooms = zip(problem.room_bytes, compute, self._charged, strict=True)
        cards = [
            CardProblem(
                budget_bytes=room - used - user,
                once_bytes=table.once_bytes,
                once_s=self._times.once_s,
                units=self._units_of(table, self._times.cards[d], movable=movable),
            )
            for d, ((room, used, user), table) in enumerate(zip(rooms, self._tables, strict=True))
        ]
        free = problem.host_free_bytes
        host = HostProblem(
            budget_bytes=None if free is None else free - self._host_base_bytes - host_bytes,
            units=tuple(
                HostUnit(n_bytes=fixed + experts, base_s=seconds)
                for fixed, experts, seconds in zip(
                    self._host.fixed_bytes, self._host.expert_bytes, self._times.host, strict=True
                )
            ),
        )
        return solve_fastest(
            cards,
            host,
            n_host_units=problem.n_host_layers,
            counts=user_counts(problem),
            effort=effort,
        )

    def _units_of(
        self, table: LayerBytes, times: tuple[UnitTime, ...], *, movable: bool
    ) -> tuple[Unit, ...]:
        """A card's units; those of cards that are alike are the same object."""
        key = (id(table), id(times), movable)
        if key not in self._units:
            self._units[key] = tuple(_units(table, self._host, times, movable=movable))
        return self._units[key]

    def _priced(self, answer: Answer, *, movable: bool) -> Priced:
        problem = self.problem
        placed: dict[str, int] = {}
        for table, left in zip(self._tables, answer.away, strict=True):
            for unit, item in left:
                names = table.expert_units[unit][item].names
                placed |= dict.fromkeys(names, HOST)
        solution = Solution(counts=tuple(answer.counts), reliefs=())
        pins_one = movable and len(problem.backends) > 1 and not problem.has_user_rules
        placement = make_placement(problem, solution, placed, pins_one=pins_one)
        return price_problem(problem, placement)


def _compute_of(memory: Breakdown) -> tuple[int, ...]:
    return tuple(device.compute_bytes for device in memory.devices)


def _all_away_s(unit: UnitTime) -> float:
    away = unit.away_s.values()
    return unit.base_s + (unit.crossing_s + sum(away) if away else 0.0)


def _units(
    table: LayerBytes, host: LayerBytes, times: Sequence[UnitTime], *, movable: bool
) -> Iterator[Unit]:
    """A card's units as the solver wants them; items in the order of the table's."""
    for il, (fixed, units) in enumerate(zip(table.fixed_bytes, table.expert_units, strict=True)):
        time = times[il]
        items = tuple(
            Item(
                n_bytes=unit.n_bytes,
                host_bytes=on_host.n_bytes,
                extra_s=time.away_s.get(unit.stem, 0.0),
            )
            for unit, on_host in zip(units, host.expert_units[il], strict=True)
        )
        yield Unit(
            fixed_bytes=fixed if movable else fixed + table.expert_bytes[il],
            base_s=time.base_s,
            items=items if movable else (),
            first_item_s=time.crossing_s,
        )


def user_counts(problem: Problem) -> tuple[int, ...] | None:
    """Units of each card by the user's `-ts`."""
    if problem.tensor_split is None:
        return None
    n_active = problem.n_units - (problem.n_host_layers or 0)
    split = split_layers(problem.model.n_layer, n_active, problem.tensor_split)
    return split.counts(len(problem.backends))
