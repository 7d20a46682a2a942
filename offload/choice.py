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
from offload.split import HOST, LayerSplit
from offload.strategy import Priced, Problem, price_problem, solve_strategy
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
    """The placement to take; `cards` are those it is for, None where it is for all.

    Without `choice` nothing that was weighed fits, and `priced` is the even spread.
    """

    priced: Priced
    choice: Choice | None
    cards: tuple[int, ...] | None = None


_TAKEN_OVER: Final = ("prefill.stream", "prefill.read", "prefill.flops")
"""What the first card does with host experts."""

_BASELINES: Final = (Strategy.FIRST, Strategy.LAST, Strategy.ALL)


def choose_fastest(problem: Problem, clock: Clock, *, may_drop_cards: bool = True) -> Decision:
    """The shortest turn of all placements weighed; the even spread where none is shorter by 1 %.

    With `may_drop_cards` each card is weighed alone too, and all but the first few, the others
    not even started.
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
    cards: tuple[int, ...] | None = None
    bound_s = found.bound_s
    winner = winner_of_all = search, clock, even
    may_leave = may_drop_cards and len(problem.backends) > 1 and _may_leave_cards(problem)
    if may_leave:
        for some, line, fewer in _fewer_cards(
            problem, clock, None if best is None else best.turn_s / (1 + SAME_SHARE)
        ):
            lines.append(line)
            if fewer is None or not fewer.candidate.priced.fits:
                continue
            # all cards together prefill in turns (pipeline parallelism), which the clock leaves out
            if best is None or fewer.candidate.turn_s < best.turn_s / (1 + SAME_SHARE):
                best, cards, bound_s = fewer.candidate, some, fewer.bound_s
                winner = fewer.search, fewer.clock, fewer.even
    tried: list[tuple[_Asked, tuple[int, ...] | None]] = [(winner_of_all, None)]
    if cards is not None and len(cards) > 1:
        tried.append((winner, cards))
    for (its_search, its_clock, its_even), some_cards in tried if best is not None else ():
        across = _weigh_across(its_search, its_clock, best, its_even)
        if across is None:
            continue
        if some_cards == cards:
            bound_s = across.bound_s if bound_s is None else min(bound_s, across.bound_s)
        if across.candidate is not None:
            best, cards, bound_s = across.candidate, some_cards, across.bound_s
            winner = its_search, its_clock, its_even
            lines.append(Baseline(best.name, best.priced.fits, best.turn_s))
    if best is None:
        return Decision(even.priced, None)
    winner_clock = winner[1]
    prediction = winner_clock.price(best.priced.placement)
    if prediction is None:
        return Decision(even.priced, None)
    used = {winner_clock.devices[d].name for d in _holding(best.priced)}
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
    if may_leave and choice.left_out:
        return _without_idle(problem, best.priced, choice, cards)
    return Decision(best.priced, choice, cards)


def _without_idle(
    problem: Problem, priced: Priced, choice: Choice, cards: tuple[int, ...] | None
) -> Decision:
    """The same placement for the cards that hold something; the others need no buffers then.

    The first one stays where anything is on the host, since that is what takes it over, and all
    stay where it would not fit otherwise.
    """
    all_cards = tuple(range(len(problem.backends))) if cards is None else cards
    places = {*priced.placement.split.owners, *priced.placement.placed.values()}
    kept = sorted(_holding(priced) | ({0} if HOST in places else set()))
    if len(kept) < len(all_cards):
        index = {d: n for n, d in enumerate(kept)} | {HOST: HOST}
        placement = priced.placement._replace(
            split=LayerSplit(owners=tuple(index[d] for d in priced.placement.split.owners)),
            placed={name: index[d] for name, d in priced.placement.placed.items()},
        )
        some = tuple(all_cards[d] for d in kept)
        again = price_problem(_sub_problem(problem, some), placement)
        if again.fits:
            return Decision(again, choice, some)
    return Decision(priced, choice, cards)


def _holding(priced: Priced) -> set[int]:
    """Cards that own a unit or hold anything that a rule sends there."""
    placement = priced.placement
    return {*placement.split.owners, *placement.placed.values()} - {HOST}


def _weigh_across(
    search: Search, clock: Clock, best: Candidate | None, even: Candidate
) -> Across | None:
    """Experts on cards that do not own their layers; None where that cannot be worth anything."""
    if best is None or len(clock.devices) < 2:
        return None
    from offload.across_search import may_cross, search_across

    if not may_cross(search, clock, best):
        return None
    return search_across(search, clock, best, even.priced.memory)


def _may_leave_cards(problem: Problem) -> bool:
    """False where the user's own shares or rules name cards."""
    return problem.tensor_split is None and all(d == HOST for d in problem.user_placed.values())


_Asked = tuple[Search, Clock, Candidate]
"""A problem on some cards, laid out, with its even spread."""


class _Fewer(NamedTuple):
    """The best on some of the cards."""

    search: Search
    clock: Clock
    even: Candidate
    candidate: Candidate
    bound_s: float | None


def _fewer_cards(
    problem: Problem, clock: Clock, limit_s: float | None
) -> Iterator[tuple[tuple[int, ...], Baseline, _Fewer | None]]:
    """Each card as the only one, and all behind each that takes host experts over faster.

    The solver itself leaves cards empty, which costs nothing but for the first one: that is
    where host experts are streamed to. So only which card is the first is left to try, and
    a later one is worth it only where it does something of that faster. Worked out only
    where it could beat `limit_s`; cards of equal memory and speeds are worked out once.
    """
    n_cards = len(clock.devices)
    seen: dict[object, Baseline] = {}
    tried: list[tuple[tuple[int, ...], str]] = [
        ((d,), f"{device.name} alone") for d, device in enumerate(clock.devices)
    ]
    tried += [
        (
            tuple(range(first, n_cards)),
            f"without {', '.join(d.name for d in clock.devices[:first])}",
        )
        for first in _better_firsts(clock)
        if first < n_cards - 1
    ]
    for cards, name in tried:
        own = _sub_problem(problem, cards)
        mine = make_clock(
            clock.model,
            tuple(clock.devices[d] for d in cards),
            clock.context,
            clock.speeds,
            op_offload=clock.op_offload,
            load_mode=clock.load_mode,
        )
        rates = tuple(value.value for _, value in sorted(mine.coefficients.table.items()))
        key = (own.backends, own.room_bytes, rates)
        if key in seen:
            yield cards, seen[key]._replace(name=name), None
            continue
        search = Search(own, mine)
        bound_s = search.bound_s()
        fewer: _Fewer | None = None
        if bound_s is None:
            line = Baseline(name, feasible=False, turn_s=None)
        elif limit_s is not None and bound_s >= limit_s:
            line = Baseline(name, feasible=None, turn_s=bound_s, is_bound=True)
        else:
            fewer = _best_on(search, mine, name)
            line = Baseline(name, fewer.candidate.priced.fits, fewer.candidate.turn_s)
        seen[key] = line
        yield cards, line, fewer


def _better_firsts(clock: Clock) -> Iterator[int]:
    """Cards that no card before them is as fast as in everything that the first one takes over."""
    earlier: list[dict[str, float]] = []
    for d, device in enumerate(clock.devices):
        if not (device.backend.offloads_ops and clock.op_offload):
            continue
        mine = {
            feature.replace(f".{device.name}", ""): coefficient.value
            for feature, coefficient in clock.coefficients.table.items()
            if feature.startswith(_TAKEN_OVER) and feature.split(".")[2] == device.name
        }
        if earlier and not any(
            all(one.get(feature, value) <= value for feature, value in mine.items())
            for one in earlier
        ):
            yield d
        earlier.append(mine)


def _best_on(search: Search, clock: Clock, name: str) -> _Fewer:
    priced = solve_strategy(search.problem, Strategy.EVEN)
    even = Candidate(name, priced, clock.seconds(priced.placement))
    weighed = [even]
    found = solve_for_time(search, even)
    if found.candidate is not None:
        weighed.append(found.candidate._replace(name=name))
    return _Fewer(search, clock, even, _shortest(weighed) or even, found.bound_s)


def _sub_problem(problem: Problem, cards: tuple[int, ...]) -> Problem:
    return problem._replace(
        backends=tuple(problem.backends[d] for d in cards),
        room_bytes=tuple(problem.room_bytes[d] for d in cards),
        free_bytes=tuple(problem.free_bytes[d] for d in cards),
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
