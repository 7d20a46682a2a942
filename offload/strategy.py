"""Which placement does each strategy choose for this problem?

`own` is this project's spread over each card's own layers; without anything known of
speeds it is `even`, the spread that fills the cards evenly and sends the fewest bytes to the
host (offload/choice.py has the other). `first`, `last`, `all` and `none` are what people do
by hand, kept for comparison and priced by the same referee. What the user fixed (`-ts`,
`-ngl`, `-ot`, `-ncmoe`) is never
moved: it is part of the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from offload.backend import Backend
from offload.context import ContextOptions
from offload.memory import Breakdown, LayerBytes, layer_bytes
from offload.model import Model
from offload.options import Strategy
from offload.placement import Placement, price
from offload.solve import CardTable, Solution, relieve, solve_spread
from offload.split import HOST, LayerSplit, split_by_counts, split_layers

_ROUNDS: Final = 5
"""Compute depends on the placement and the placement on compute: at most this many rounds."""


class Problem(NamedTuple):
    """Everything a strategy needs; sizes in bytes, one entry per device."""

    model: Model
    context: ContextOptions
    backends: tuple[Backend, ...]
    room_bytes: tuple[int, ...]
    """Free memory less the margin."""
    free_bytes: tuple[int, ...]
    host_free_bytes: int | None
    op_offload: bool
    n_gpu_layers: int | None
    tensor_split: tuple[float, ...] | None
    user_placed: Mapping[str, int]
    """Tensors the user's own rules place: device index or HOST."""
    has_user_rules: bool

    @property
    def n_units(self) -> int:
        """Units of `-ngl`: every block and the output layer."""
        return self.model.n_layer + 1

    @property
    def n_host_layers(self) -> int | None:
        """First units that the user's `-ngl` leaves on the host; None when not set."""
        if self.n_gpu_layers is None:
            return None
        if self.n_gpu_layers < 0:
            return 0
        return max(self.n_units - self.n_gpu_layers, 0)


class Priced(NamedTuple):
    """A placement with its memory and what is missing on each device (index HOST = -1: host)."""

    placement: Placement
    memory: Breakdown
    short_bytes: Mapping[int, int]
    host_expert_bytes: int

    @property
    def fits(self) -> bool:
        """True when no device and not the host is short."""
        return not self.short_bytes

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is better: bytes short, then expert bytes that left the cards."""
        return sum(self.short_bytes.values()), self.host_expert_bytes


def solve_strategy(problem: Problem, strategy: Strategy) -> Priced:
    """The placement of `strategy`, priced; `fits` says whether it holds."""
    if not problem.backends:
        return price_problem(problem, _host_only(problem))
    if strategy in (Strategy.OWN, Strategy.EVEN):
        return _solve_own(problem)
    if strategy is Strategy.NONE:
        return _even_without_relief(problem, problem.n_host_layers or 0)
    if strategy is Strategy.ALL:
        return _all_on_host(problem, problem.n_host_layers or 0)
    return _fewest_experts(problem, from_last=strategy is Strategy.LAST)


def _host_only(problem: Problem) -> Placement:
    owners = (HOST,) * problem.n_units
    return Placement(
        split=LayerSplit(owners=owners),
        placed=dict(problem.user_placed),
        has_rules=problem.has_user_rules,
    )


def price_problem(problem: Problem, placement: Placement) -> Priced:
    """Any placement as an answer to `problem`: what each device then holds, and what is short."""
    memory = price(
        problem.model,
        problem.context,
        problem.backends,
        placement,
        op_offload=problem.op_offload,
    )
    short: dict[int, int] = {}
    for d, (used, room) in enumerate(zip(memory.devices, problem.room_bytes, strict=True)):
        if used.total_bytes > room:
            short[d] = used.total_bytes - room
    if problem.host_free_bytes is not None and memory.host.total_bytes > problem.host_free_bytes:
        short[HOST] = memory.host.total_bytes - problem.host_free_bytes
    experts = sum(
        t.n_bytes
        for t in problem.model.expert_tensors
        if placement.placed.get(t.name, placement.split.owners[t.il or 0]) == HOST
    )
    return Priced(placement=placement, memory=memory, short_bytes=short, host_expert_bytes=experts)


def _solve_own(problem: Problem) -> Priced:
    """No relief when everything fits, else the spread, else whole layers on the host too."""
    fixed = problem.n_host_layers
    if problem.model.expert_tensors and _is_hopeless(problem):
        return _fewest_host_layers(problem, _spread)
    untouched = _even_without_relief(problem, fixed or 0)
    if untouched.fits or not problem.model.expert_tensors:
        return (
            untouched if fixed is not None else _fewest_host_layers(problem, _even_without_relief)
        )
    if len(problem.backends) > 1 and not problem.has_user_rules:
        # relief needs rules and so ends pipeline parallelism; ending it alone may be enough
        unpiped = _iterate(problem, fixed or 0, movable=False, experts_to_host=False, pins_one=True)
        if unpiped.fits:
            return unpiped
    return _fewest_host_layers(problem, _spread)


def _is_hopeless(problem: Problem) -> bool:
    """True when the routed experts alone are more than all cards have room for."""
    return problem.model.expert_bytes > sum(problem.room_bytes)


def _fewest_host_layers(problem: Problem, solve: Callable[[Problem, int], Priced]) -> Priced:
    """Fewest whole layers on the host with which `solve` fits; the user's `-ngl` is kept.

    Leaving more layers on the host never needs more card memory, so the count is
    found by bisection. When even that does not fit, the answer for all layers on
    the cards is returned: its shortage is what the user has to find.
    """
    if problem.n_host_layers is not None:
        return solve(problem, problem.n_host_layers)
    wanted = solve(problem, 0)
    if not _cards_short(wanted):
        return wanted
    low, high, best = 1, problem.n_units - 1, None
    while low <= high:
        middle = (low + high) // 2
        tried = solve(problem, middle)
        if _cards_short(tried):
            low = middle + 1
        else:
            best, high = tried, middle - 1
    return wanted if best is None else best


def _cards_short(priced: Priced) -> bool:
    return any(device != HOST for device in priced.short_bytes)


def _even_without_relief(problem: Problem, n_host_layers: int) -> Priced:
    """Every expert on its owner's card; cards filled evenly."""
    return _iterate(problem, n_host_layers, movable=False, experts_to_host=False)


def _all_on_host(problem: Problem, n_host_layers: int) -> Priced:
    """Every routed expert on the host; cards filled evenly with the rest."""
    return _iterate(problem, n_host_layers, movable=False, experts_to_host=True)


def _spread(problem: Problem, n_host_layers: int) -> Priced:
    """Each card relieved within its own range."""
    return _iterate(problem, n_host_layers, movable=True, experts_to_host=False)


def _iterate(
    problem: Problem,
    n_host_layers: int,
    *,
    movable: bool,
    experts_to_host: bool,
    pins_one: bool = False,
) -> Priced:
    """Solve for the compute bytes of the last placement, at first none, until nothing changes.

    The best placement seen is kept: one that fits, with the fewest expert bytes
    on the host. After a round that does not fit, compute is only ever raised.
    """
    moved = _all_experts(problem) if movable or experts_to_host else {}
    compute = (0,) * len(problem.backends)
    tables = card_tables(problem, movable=movable, drop_experts=experts_to_host)
    best: Priced | None = None
    for _ in range(_ROUNDS):
        solution = _solve_cards(problem, tables, compute, n_host_layers)
        placed = moved if experts_to_host else _relieved(solution)
        priced = price_problem(problem, make_placement(problem, solution, placed, pins_one))
        if best is None or priced.rank < best.rank:
            best = priced
        actual = tuple(m.compute_bytes for m in priced.memory.devices)
        wanted = (
            actual
            if not _cards_short(priced)
            else tuple(max(a, c) for a, c in zip(actual, compute, strict=True))
        )
        if wanted == compute:
            break
        compute = wanted
    assert best is not None
    return best


def _all_experts(problem: Problem) -> dict[str, int]:
    return {t.name: HOST for t in problem.model.expert_tensors if t.name not in problem.user_placed}


def _relieved(solution: Solution) -> dict[str, int]:
    return {
        name: HOST for relief in solution.reliefs for unit in relief.units for name in unit.names
    }


def make_placement(
    problem: Problem, solution: Solution, placed: Mapping[str, int], pins_one: bool = False
) -> Placement:
    """The solution as a placement; `pins_one` adds a rule that moves nothing.

    One override of any kind ends pipeline parallelism (`llama_context`, src/llama-context.cpp,
    b11434), and with it the copies of inputs in every card's compute buffer.
    """
    split = split_by_counts(problem.model.n_layer, solution.counts)
    moved = {
        name: device
        for name, device in placed.items()
        if split.owners[int(name.split(".", 2)[1])] != device
    }
    if pins_one and not moved:
        pinned = next(t for t in problem.model.tensors if t.il is not None and t.loaded)
        moved[pinned.name] = split.owners[pinned.il or 0]
    return Placement(
        split=split,
        placed={**moved, **problem.user_placed},
        has_rules=bool(moved) or problem.has_user_rules,
    )


def _solve_cards(
    problem: Problem,
    tables: Sequence[LayerBytes],
    compute: Sequence[int],
    n_host_layers: int,
) -> Solution:
    charged = user_bytes(problem)
    cards = [
        CardTable(layer_bytes=table, budget_bytes=room - used - user)
        for table, room, used, user in zip(
            tables, problem.room_bytes, compute, charged, strict=True
        )
    ]
    if problem.tensor_split is None:
        return solve_spread(cards, n_host_layers)
    n_active = problem.n_units - n_host_layers
    split = split_layers(problem.model.n_layer, n_active, problem.tensor_split)
    return relieve(cards, split.counts(len(cards)), n_host_layers)


def user_bytes(problem: Problem) -> list[int]:
    """Bytes that the user's own rules put on each card."""
    charged = [0] * len(problem.backends)
    if any(device != HOST for device in problem.user_placed.values()):
        for tensor in problem.model.tensors:
            device = problem.user_placed.get(tensor.name, HOST)
            if device != HOST and tensor.loaded:
                charged[device] += problem.backends[device].padded_bytes(tensor.type, tensor.shape)
    return charged


def card_tables(problem: Problem, *, movable: bool, drop_experts: bool) -> tuple[LayerBytes, ...]:
    """One table per device; equal backends share one."""
    skip = dict(problem.user_placed)
    if drop_experts:
        skip |= dict.fromkeys((t.name for t in problem.model.expert_tensors), HOST)
    by_backend: dict[Backend, LayerBytes] = {}
    for backend in problem.backends:
        if backend not in by_backend:
            table = layer_bytes(problem.model, problem.context, backend, skip)
            by_backend[backend] = table if movable else _pinned(table)
    return tuple(by_backend[backend] for backend in problem.backends)


def _pinned(table: LayerBytes) -> LayerBytes:
    """The same table with every expert counted as staying."""
    fixed = tuple(f + e for f, e in zip(table.fixed_bytes, table.expert_bytes, strict=True))
    nothing = ((),) * len(fixed)
    return table._replace(fixed_bytes=fixed, expert_units=nothing, expert_bytes=(0,) * len(fixed))


def _fewest_experts(problem: Problem, *, from_last: bool) -> Priced:
    """First-N or last-N over the whole model, N the smallest that fits every card.

    Layers are shared by free memory, as llama.cpp does without `-ts`. When no N
    fits, the answer for all layers is returned with its shortage.
    """
    shares = problem.tensor_split or tuple(float(max(free, 1)) for free in problem.free_bytes)
    n_gpu_layers = -1 if problem.n_gpu_layers is None else problem.n_gpu_layers
    split = split_layers(problem.model.n_layer, n_gpu_layers, shares)
    solution = Solution(counts=split.counts(len(problem.backends)), reliefs=())
    experts = _all_experts(problem)
    order = sorted({t.il for t in problem.model.expert_tensors if t.il is not None})
    if from_last:
        order.reverse()

    def tried(n: int) -> Priced:
        chosen = set(order[:n])
        placed = {
            name: device for name, device in experts.items() if int(name.split(".", 2)[1]) in chosen
        }
        return price_problem(problem, make_placement(problem, solution, placed))

    low, high, best = 0, len(order), None
    while low <= high:
        middle = (low + high) // 2
        priced = tried(middle)
        if _cards_short(priced):
            low = middle + 1
        else:
            best, high = priced, middle - 1
    return best or tried(len(order))
