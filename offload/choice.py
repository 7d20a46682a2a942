"""Which placement makes a turn shortest, what else was weighed, and how much is proven?

The solver (offload/fastest) sees budgets in bytes and seconds that add up; its answer and the
placements people use are then priced by the two referees, memory and clock, and the shortest
turn that fits wins. Compute depends on the placement, so the solver is asked again with the
compute of its last answer. Two things its tables do not hold: cards that wait get slower
(offload/cost/waiting.py), and host layers without any host rule are mapped; the clock knows
both, which is why candidates are priced again. And one thing is not searched for: copies of
host experts on the first card take a tensor more or less by which experts they are, and the
bound is for the compute of the solver's own answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from offload.clock import Clock, make_clock
from offload.cost import Prediction
from offload.options import Strategy
from offload.split import HOST
from offload.strategy import Priced, Problem, solve_strategy
from offload.time_search import SAME_SHARE, Candidate, Search, solve_for_time
from offload.turn import Turn

if TYPE_CHECKING:
    from offload.across_search import Across

__all__ = ["EVEN", "SAME_SHARE", "Baseline", "Choice", "Decision", "choose_fastest"]

EVEN: Final = "even"


class Baseline(NamedTuple):
    """A placement that was weighed; without `turn_s` where it was not priced.

    `is_bound`: it takes at least so long, however little its compute buffers take, and
    neither its seconds nor whether it fits were worked out.
    """

    name: str
    feasible: bool | None
    turn_s: float | None
    is_bound: bool = False


class Choice(NamedTuple):
    """Whose placement the plan is, its turn, and what was weighed against it.

    `bound_s`: no placement on the plan's cards, in their order, takes less, given the compute
    buffers of the solver's last answer. None where the solver had no answer. `left_out` are
    cards that hold nothing.
    """

    name: str
    turn: Turn
    n_depth: int
    prediction: Prediction
    bound_s: float | None
    baselines: tuple[Baseline, ...]
    source: str
    left_out: tuple[str, ...] = ()

    @property
    def turn_s(self) -> float:
        """Seconds of the turn."""
        return self.prediction.seconds

    @property
    def gap(self) -> float | None:
        """The share of the turn by which a better placement could at most be shorter."""
        if self.bound_s is None:
            return None
        return max(0.0, 1.0 - self.bound_s / self.turn_s)


class Decision(NamedTuple):
    """The placement to take; `only` is the one card it is for, None where it is for all.

    Without `choice` nothing that was weighed fits, and `priced` is the even spread.
    """

    priced: Priced
    choice: Choice | None
    only: int | None = None


_BASELINES: Final = (Strategy.FIRST, Strategy.LAST, Strategy.ALL)


def choose_fastest(problem: Problem, clock: Clock, *, may_drop_cards: bool = True) -> Decision:
    """The shortest turn of all placements weighed; the even spread where none is shorter by 1 %.

    With `may_drop_cards` each card is weighed alone too, the others not even started.
    """
    priced = solve_strategy(problem, Strategy.EVEN)
    weighed = [Candidate(EVEN, priced, clock.seconds(priced.placement))]
    even = weighed[0]
    search = Search(problem, clock)
    found = solve_for_time(search, even)
    if found.candidate is not None:
        weighed.append(found.candidate)
    best = _shortest(weighed)
    lines = [Baseline(c.name, c.priced.fits, c.turn_s) for c in weighed]
    for strategy in _BASELINES if problem.model.expert_tensors else ():
        least_s = search.least_s(strategy)
        if best is not None and least_s >= best.turn_s:
            lines.append(Baseline(str(strategy), None, least_s, is_bound=True))
            continue
        priced = solve_strategy(problem, strategy)
        weighed.append(Candidate(str(strategy), priced, clock.seconds(priced.placement)))
        lines.append(Baseline(str(strategy), priced.fits, weighed[-1].turn_s))
    best = _shortest(weighed)
    only: int | None = None
    bound_s = found.bound_s
    winner_clock = clock
    if may_drop_cards and len(problem.backends) > 1 and _may_leave_cards(problem):
        for d, line, alone in _each_alone(
            problem, clock, None if best is None else best.turn_s / (1 + SAME_SHARE)
        ):
            lines.append(line)
            if alone is None or not alone.candidate.priced.fits:
                continue
            # all cards together prefill in turns (pipeline parallelism), which the clock leaves out
            if best is None or alone.candidate.turn_s < best.turn_s / (1 + SAME_SHARE):
                best, only, winner_clock = alone.candidate, d, alone.clock
                bound_s = alone.bound_s
    across = _weigh_across(search, clock, best, even)
    if across is not None:
        bound_s = (
            across.bound_s if bound_s is None or only is not None else min(bound_s, across.bound_s)
        )
        if across.candidate is not None:
            best, only, winner_clock, bound_s = across.candidate, None, clock, across.bound_s
            lines.append(Baseline(best.name, best.priced.fits, best.turn_s))
    if best is None:
        return Decision(even.priced, None)
    prediction = winner_clock.price(best.priced.placement)
    if prediction is None:
        return Decision(even.priced, None)
    placement = best.priced.placement
    holding = {*placement.split.owners, *placement.placed.values()} - {HOST}
    used = {winner_clock.devices[d].name for d in holding}
    choice = Choice(
        name=best.name,
        turn=clock.speeds.turn,
        n_depth=clock.prompt_depth,
        prediction=prediction,
        bound_s=None if bound_s is None else min(bound_s, prediction.seconds),
        baselines=tuple(lines),
        source=clock.source,
        left_out=tuple(d.name for d in clock.devices if d.name not in used),
    )
    return Decision(best.priced, choice, only)


def _weigh_across(
    search: Search, clock: Clock, best: Candidate | None, even: Candidate
) -> Across | None:
    """Experts on cards that do not own their layers; None where that cannot be worth anything."""
    if best is None or len(clock.devices) < 2:
        return None
    from offload.across_search import may_cross, search_across

    if not may_cross(search.problem, clock):
        return None
    return search_across(search, clock, best, even.priced.memory)


def _may_leave_cards(problem: Problem) -> bool:
    """False where the user's own shares or rules name cards."""
    return problem.tensor_split is None and all(d == HOST for d in problem.user_placed.values())


class _Alone(NamedTuple):
    clock: Clock
    candidate: Candidate
    bound_s: float | None


def _each_alone(
    problem: Problem, clock: Clock, limit_s: float | None
) -> Iterator[tuple[int, Baseline, _Alone | None]]:
    """Each card as the only one; worked out only where it could beat `limit_s`.

    Cards of equal memory and speeds are worked out once.
    """
    seen: dict[object, Baseline] = {}
    for d, device in enumerate(clock.devices):
        own = _sub_problem(problem, d)
        mine = make_clock(
            clock.model,
            (device,),
            clock.context,
            clock.speeds,
            op_offload=clock.op_offload,
            load_mode=clock.load_mode,
        )
        name = f"{device.name} alone"
        rates = tuple(value.value for _, value in sorted(mine.coefficients.table.items()))
        key = (own.backends, own.room_bytes, rates)
        if key in seen:
            yield d, seen[key]._replace(name=name), None
            continue
        search = Search(own, mine)
        bound_s = search.bound_s()
        alone: _Alone | None = None
        if bound_s is None:
            line = Baseline(name, feasible=False, turn_s=None)
        elif limit_s is not None and bound_s >= limit_s:
            line = Baseline(name, feasible=None, turn_s=bound_s, is_bound=True)
        else:
            alone = _best_alone(search, mine, name)
            line = Baseline(name, alone.candidate.priced.fits, alone.candidate.turn_s)
        seen[key] = line
        yield d, line, alone


def _best_alone(search: Search, clock: Clock, name: str) -> _Alone:
    even = solve_strategy(search.problem, Strategy.EVEN)
    weighed = [Candidate(name, even, clock.seconds(even.placement))]
    found = solve_for_time(search, weighed[0])
    if found.candidate is not None:
        weighed.append(found.candidate._replace(name=name))
    return _Alone(clock, _shortest(weighed) or weighed[0], found.bound_s)


def _sub_problem(problem: Problem, card: int) -> Problem:
    return problem._replace(
        backends=(problem.backends[card],),
        room_bytes=(problem.room_bytes[card],),
        free_bytes=(problem.free_bytes[card],),
    )


def _shortest(weighed: Sequence[Candidate]) -> Candidate | None:
    """The shortest turn that fits; the first of the list (even) if it is as good as that."""
    fitting = [candidate for candidate in weighed if candidate.priced.fits]
    if not fitting:
        return None
    best = min(fitting, key=lambda candidate: candidate.turn_s)
    even = weighed[0]
    if even.priced.fits and even.turn_s <= best.turn_s * (1 + SAME_SHARE):
        return even
    return best
