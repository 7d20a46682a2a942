"""What does each unit of -ngl add to a turn, on each card and on the host?

The linear part of the clock as tables, for a solver: their sum over any placement is what the
clock says of it, less the slowing down of cards that wait (offload/cost/waiting.py). The
pieces are counted by the same functions as the whole (offload/cost/work.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from offload.clock import Clock, host_is_mapped, host_is_repacked
from offload.cost.lumps import Lump, lump_of, multiplied
from offload.cost.work import (
    CPU,
    REPACKED,
    Amounts,
    Batch,
    add_batch_hops,
    add_batch_layer,
    add_batch_lump,
    add_token_layer,
    add_token_lump,
    batches_of,
    context_bytes_read,
    device_names,
)
from offload.memory import expert_stem
from offload.model import Role
from offload.split import HOST


class UnitTime(NamedTuple):
    """Seconds of a turn that one unit takes on one card.

    `base_s` with every expert kept; `away_s` what each of its expert matrices adds (or saves)
    on the host, by stem (`ffn_down_exps`); `crossing_s` once more as soon as any is there.
    """

    base_s: float
    away_s: Mapping[str, float]
    crossing_s: float


class TurnTimes(NamedTuple):
    """Seconds of a turn by unit: `cards[d][unit]`, and `host[unit]` for whole units there.

    `once_s` is what a card adds that owns anything at all, `constant_s` what no choice changes.
    """

    constant_s: float
    once_s: float
    cards: tuple[tuple[UnitTime, ...], ...]
    host: tuple[float, ...]


def turn_times(clock: Clock, fixed: Mapping[str, int]) -> TurnTimes:
    """The tables; `fixed` are tensors that stay where the user put them: a device or HOST.

    Host weights are taken to be pinned where some rule can make them so.
    """
    pieces = _Pieces(clock)
    units, fixed_s = _units_of(clock, fixed, pieces)
    constant_s = pieces.constant_s + fixed_s
    users = [unit.users for unit in units]
    # layers that are alike take alike long: most models have two or three kinds
    kinds = [pieces.kind_of(unit) for unit in units]
    first = {kind: unit for unit, kind in zip(reversed(units), reversed(kinds), strict=True)}
    on_host = {kind: pieces.unit_on_host(unit) for kind, unit in first.items()}
    # cards that are alike share one row, the very same object
    rows: dict[object, tuple[UnitTime, ...]] = {}
    cards = []
    for card in range(len(clock.devices)):
        alike: object = card if any(users) else pieces.rates_of(card)
        if alike not in rows:
            on_card = {kind: pieces.unit_on(card, unit) for kind, unit in first.items()}
            rows[alike] = tuple(on_card[kind] for kind in kinds)
        cards.append(rows[alike])
    return TurnTimes(
        constant_s=constant_s,
        once_s=pieces.hops_s(1.0, [1.0] * len(pieces.batches)),
        cards=tuple(cards),
        host=tuple(on_host[kind] for kind in kinds),
    )


class PlaceTime(NamedTuple):
    """Seconds of a turn that units of one kind take, wherever their experts lie.

    `base_s` by card that owns it, without routed experts; `host_s` with everything on the
    host; `expert_s` by stem and place, cards first and the host last; `cross_s[owner][place]`
    once, as soon as any expert lies there.
    """

    base_s: tuple[float, ...]
    host_s: float
    expert_s: Mapping[str, tuple[float, ...]]
    cross_s: tuple[tuple[float, ...], ...]


def place_times(clock: Clock) -> tuple[tuple[PlaceTime, ...], tuple[int, ...]]:
    """Times by kind of unit, and each unit's kind; for models whose tensors no rule has moved."""
    pieces = _Pieces(clock)
    numbers: dict[tuple[object, ...], int] = {}
    kinds: list[PlaceTime] = []
    kind_of = []
    for unit in _units_of(clock, {}, pieces)[0]:
        number = numbers.setdefault(pieces.kind_of(unit), len(kinds))
        if number == len(kinds):
            kinds.append(pieces.unit_anywhere(unit))
        kind_of.append(number)
    return tuple(kinds), tuple(kind_of)


_Weight = tuple[str, Lump]
"""The stem of a routed-expert matrix (else nothing), and its size and type."""


class _Unit(NamedTuple):
    """One unit's weights, and where the user put other experts of it."""

    il: int
    weights: tuple[_Weight, ...]
    users: frozenset[int]


def _units_of(clock: Clock, fixed: Mapping[str, int], pieces: _Pieces) -> tuple[list[_Unit], float]:
    """Every unit with the weights that go where it goes, and seconds of those that are fixed."""
    n_units = clock.model.n_layer + 1
    fixed_s = 0.0
    by_unit: list[list[_Weight]] = [[] for _ in range(n_units)]
    users: list[set[int]] = [set() for _ in range(n_units)]
    for tensor in multiplied(clock.model):
        # which layer they are of makes no difference to weights
        lump = lump_of(clock.model, tensor, HOST)._replace(il=None)
        unit = n_units - 1 if tensor.home == "output" or tensor.il is None else tensor.il
        place = fixed.get(tensor.name)
        if place is None or tensor.role is Role.OUTPUT:
            stem = expert_stem(tensor.name) if tensor.role is Role.EXPERT else ""
            by_unit[unit].append((stem, lump))
            continue
        fixed_s += pieces.weight_s(lump, place)
        if tensor.role is Role.EXPERT:
            users[unit].add(place)
    units = [
        _Unit(il=il, weights=tuple(weights), users=frozenset(places))
        for il, (weights, places) in enumerate(zip(by_unit, users, strict=True))
    ]
    return units, fixed_s


class _Pieces:
    """Seconds of single weights, layers and crossings."""

    def __init__(self, clock: Clock) -> None:
        self._model, self._context = clock.model, clock.context
        self._clock = clock
        self._values: dict[str, float] = {}
        self._weights: dict[Lump, float] = {}
        self._place = device_names(clock.devices)
        turn = clock.speeds.turn
        self._n_generate = turn.n_generate
        repacked = host_is_repacked(clock.devices, no_host=clock.context.no_host)
        self._host = REPACKED if repacked else CPU
        self._seen_bytes = context_bytes_read(clock.model, clock.context, clock.token_depth)
        self._n_trunk = clock.model.n_layer - clock.model.n_layer_nextn
        self.batches: tuple[Batch, ...] = batches_of(
            clock.devices,
            clock.context,
            n_prompt=turn.n_prompt,
            n_depth=clock.prompt_depth,
            op_offload=clock.op_offload,
            host_is_repacked=repacked,
            host_is_mapped=host_is_mapped(clock.load_mode, has_host_rules=True),
            routing_skew=clock.speeds.routing_skew,
        )
        once = Amounts({"prefill.const": 1.0})
        once["prefill.ubatch"] += sum(batch.times for batch in self.batches)
        self.constant_s = self._seconds(Amounts({"decode.const": 1.0}), once)

    def _seconds(self, token: Amounts, prompt: Amounts) -> float:
        """Each token that is written, and the prompt."""
        return self._n_generate * self._sum(token) + self._sum(prompt)

    def _sum(self, amounts: Amounts) -> float:
        values = self._values
        total = 0.0
        for name, amount in amounts.items():
            if name not in values:
                values[name] = self._clock.value(name)
            total += values[name] * amount
        return total

    def weight_s(self, lump: Lump, place: int) -> float:
        """What these weights take on this device."""
        key = lump._replace(place=place)
        found = self._weights.get(key)
        if found is None:
            token, prompt = Amounts(), Amounts()
            add_token_lump(token, key, self._host if place == HOST else self._place[place])
            for batch in self.batches:
                add_batch_lump(prompt, key, self._place, batch)
            found = self._weights[key] = self._seconds(token, prompt)
        return found

    def rates_of(self, card: int) -> tuple[object, ...]:
        """Everything that decides how long units take on a card, where no rule names one."""
        name = f".{self._place[card]}"
        offloads = tuple(batch.offloader == card for batch in self.batches)
        known = self._clock.coefficients.table.items()
        mine = (
            (feature.replace(name, ""), coefficient.value)
            for feature, coefficient in known
            if feature.split(".")[2:3] == [name[1:]]
        )
        return offloads, tuple(sorted(mine))

    def kind_of(self, unit: _Unit) -> tuple[object, ...]:
        """Everything that decides a unit's seconds."""
        il, hp = unit.il, self._model.hparams
        layer: tuple[object, ...] = ()
        if il < self._n_trunk:
            layer = (
                self._model.layers[il].kind, self._seen_bytes[il], hp.is_swa[il], hp.n_head[il],
                hp.n_embd_head_k(il), hp.n_embd_head_v(il),
            )  # fmt: skip
        return layer, unit.weights, unit.users

    def _layer_s(self, il: int, owner: int) -> float:
        """What a layer takes beside its weights; the output and MTP blocks have nothing."""
        if il >= self._n_trunk:
            return 0.0
        token, prompt = Amounts(), Amounts()
        where = self._place[owner]
        keeper = self._place[owner if self._context.offload_kqv else HOST]
        add_token_layer(token, where, keeper, self._seen_bytes[il])
        for batch in self.batches:
            add_batch_layer(prompt, self._model, il, where, keeper, batch)
        return self._seconds(token, prompt)

    def hops_s(self, n_token: float, n_batch: Sequence[float]) -> float:
        """So many crossings of each token written, and of each kind of batch."""
        prompt = Amounts()
        for batch, n in zip(self.batches, n_batch, strict=True):
            add_batch_hops(prompt, self._model, n, batch)
        return self._seconds(Amounts({"decode.hop": n_token}), prompt)

    def _crossings_s(self, places: frozenset[int], owner: int) -> float:
        """There and back for each place that holds experts of a layer and is not its owner."""
        token = 2.0 * len(places - {owner})
        batches = []
        for batch in self.batches:
            taken = HOST if batch.offloader is None else batch.offloader
            runs_on = {taken if place == HOST else place for place in places}
            batches.append(2.0 * len(runs_on - {owner}))
        return self.hops_s(token, batches)

    def unit_on(self, card: int, unit: _Unit) -> UnitTime:
        """One unit on its card."""
        base_s = self._layer_s(unit.il, card)
        away_s: dict[str, float] = {}
        for stem, lump in unit.weights:
            kept_s = self.weight_s(lump, card)
            base_s += kept_s
            if stem:
                away_s[stem] = away_s.get(stem, 0.0) + self.weight_s(lump, HOST) - kept_s
        kept = self._crossings_s(unit.users, card)
        away = self._crossings_s(unit.users | {HOST}, card) if away_s else kept
        return UnitTime(base_s=base_s + kept, away_s=away_s, crossing_s=away - kept)

    def unit_on_host(self, unit: _Unit) -> float:
        """One unit with everything of it on the host."""
        places = unit.users
        if any(stem for stem, _ in unit.weights):
            places |= {HOST}
        total_s = self._layer_s(unit.il, HOST)
        total_s += sum(self.weight_s(lump, HOST) for _, lump in unit.weights)
        return total_s + self._crossings_s(places, HOST)

    def unit_anywhere(self, unit: _Unit) -> PlaceTime:
        """One unit on each card, each of its experts' matrices in each place."""
        cards = range(len(self._place) - 1)
        places = (*cards, HOST)
        expert_s: dict[str, list[float]] = {}
        for stem, lump in unit.weights:
            if stem:
                sums = expert_s.setdefault(stem, [0.0] * len(places))
                for e, place in enumerate(places):
                    sums[e] += self.weight_s(lump, place)
        return PlaceTime(
            base_s=tuple(
                self._layer_s(unit.il, d)
                + sum(self.weight_s(lump, d) for stem, lump in unit.weights if not stem)
                for d in cards
            ),
            host_s=self.unit_on_host(unit),
            expert_s={stem: tuple(sums) for stem, sums in expert_s.items()},
            cross_s=tuple(
                tuple(self._crossings_s(frozenset((place,)), d) for place in places) for d in cards
            ),
        )
