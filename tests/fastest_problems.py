"""Problems for the exact solver, and every answer they have."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from typing import NamedTuple

from offload.fastest import CardProblem, HostProblem, HostUnit, Item, Unit


class Problem(NamedTuple):
    """What `solve_fastest` is asked."""

    cards: tuple[CardProblem, ...]
    host: HostProblem


class Priced(NamedTuple):
    """One placement: seconds, runs of equal units, minus the smallest headroom, host bytes."""

    seconds: float
    n_rules: int
    shortest: float
    host_bytes: int


def small_problem(
    rng: random.Random, *, is_coarse: bool = False, limits_host: bool = False
) -> Problem:
    """Up to five units on up to three cards; coarse ones have whole seconds and many ties."""

    def seconds(low: float, high: float) -> float:
        return float(rng.randint(round(low), round(high))) if is_coarse else rng.uniform(low, high)

    n_units, n_cards = rng.randint(1, 5), rng.randint(1, 3)
    top = rng.choice((2, 6, 40))
    n_kinds = rng.randint(1, 3)
    sizes = [[rng.randint(0, top) for _ in range(rng.randint(0, 3))] for _ in range(n_kinds)]
    kinds = [rng.randrange(n_kinds) for _ in range(n_units)]
    fixed = [rng.randint(0, top) for _ in range(n_units)]
    scale = rng.choice((0.2, 1.0, 3.0))
    crossing = seconds(0, rng.choice((0, 1, 6)))
    least = rng.choice((0, 0, -3))
    total = sum(fixed) + sum(sum(sizes[k]) for k in kinds)
    cards = []
    for _ in range(n_cards):
        extras = [[seconds(least, 5 * scale) for _ in size] for size in sizes]
        if rng.random() < 0.5:
            rate = seconds(0, 3)
            extras = [[rate * n for n in size] for size in sizes]
        units = tuple(
            Unit(
                fixed_bytes=fixed[u],
                base_s=seconds(0, 3),
                items=tuple(
                    Item(n, n, extra) for n, extra in zip(sizes[k], extras[k], strict=True)
                ),
                first_item_s=crossing,
            )
            for u, k in enumerate(kinds)
        )
        budget = round(total * rng.uniform(0.1, 1.2) / n_cards)
        cards.append(
            CardProblem(
                budget_bytes=budget,
                units=units,
                once_bytes=rng.randint(0, 2),
                once_s=seconds(0, 4),
            )
        )
    host_units = tuple(
        HostUnit(fixed[u] + sum(sizes[k]), seconds(0, 8)) for u, k in enumerate(kinds)
    )
    limit = round(total * rng.uniform(0.1, 0.8)) if limits_host else None
    return Problem(tuple(cards), HostProblem(limit, host_units[: rng.randint(0, n_units)]))


def range_choices(card: CardProblem, first: int, end: int) -> list[Priced]:
    """Everything that a card may do with a range of units."""
    units = card.units[first:end]
    found = []
    for masks in product(*(range(1 << len(unit.items)) for unit in units)):
        used, seconds, host_bytes = card.once_bytes, card.once_s, 0
        n_rules, last = 0, 0
        for unit, mask in zip(units, masks, strict=True):
            used += unit.fixed_bytes
            seconds += unit.base_s + (unit.first_item_s if mask else 0)
            for i, item in enumerate(unit.items):
                if mask >> i & 1:
                    seconds += item.extra_s
                    host_bytes += item.host_bytes
                else:
                    used += item.n_bytes
            n_rules += mask not in (0, last)
            last = mask
        if used <= card.budget_bytes:
            found.append(Priced(seconds, n_rules, used - card.budget_bytes, host_bytes))
    return found


def all_answers(problem: Problem, n_host_units: Sequence[int] | None = None) -> Iterator[Priced]:
    """All placements that fit, those alike but slower or larger on the host left out."""
    n_units, n_cards = len(problem.cards[0].units), len(problem.cards)
    ranges: dict[tuple[int, int, int], list[Priced]] = {}
    limit = problem.host.budget_bytes
    starts = range(len(problem.host.units) + 1) if n_host_units is None else n_host_units
    for start in starts:
        host_units = problem.host.units[:start]
        for counts in product(range(n_units - start + 1), repeat=n_cards):
            if sum(counts) != n_units - start:
                continue
            answers = [
                Priced(
                    sum(unit.base_s for unit in host_units),
                    0,
                    float("-inf"),
                    sum(unit.n_bytes for unit in host_units),
                )
            ]
            ends = list(accumulate(counts, initial=start))
            for c, card in enumerate(problem.cards):
                key = (c, ends[c], ends[c + 1])
                if counts[c] and key not in ranges:
                    ranges[key] = _unbeaten(range_choices(card, *key[1:]), limit)
                if counts[c]:
                    answers = [
                        Priced(
                            a.seconds + b.seconds,
                            a.n_rules + b.n_rules,
                            max(a.shortest, b.shortest),
                            a.host_bytes + b.host_bytes,
                        )
                        for a in answers
                        for b in ranges[key]
                    ]
            yield from (a for a in answers if limit is None or a.host_bytes <= limit)


def _unbeaten(choices: list[Priced], limit: int | None) -> list[Priced]:
    """Those that could be part of a best answer."""
    choices.sort()
    if limit is None:
        return choices[:1]
    kept: list[Priced] = []
    for choice in choices:
        if not kept or choice.host_bytes < min(k.host_bytes for k in kept):
            kept.append(choice)
    return kept


MIXES = ("plain", "down", "wild", "distinct")
_BYTES_PER_WEIGHT = {"Q4_K": 144 / 256, "Q5_K": 176 / 256, "Q6_K": 210 / 256, "Q8_0": 34 / 32}
_N_GENERATE, _N_PROMPT, _N_BATCHES = 512, 2048, 4
_GIB = 1 << 30


def realistic_problem(
    rng: random.Random, n_layers: int, n_cards: int, *, mix: str = "down", is_equal: bool = False
) -> Problem:
    """Layers of three matrices and an output layer on cards as they are sold, 2048/512 tokens.

    `mix`: `plain` has one type, `down` gives some layers more bits for the down matrix as
    llama.cpp's quantiser does, `wild` draws types at random, `distinct` has no two layers alike.
    """
    n_embd = rng.choice((2048, 2880, 4096, 5120, 7168))
    n_ff = rng.choice((768, 1024, 1536, 2048))
    n_expert, n_used = rng.choice(((128, 8), (32, 4), (128, 4), (256, 8), (512, 10)))
    n_weights = n_embd * n_ff * n_expert
    names = rng.sample(sorted(_BYTES_PER_WEIGHT), 3)
    context = rng.choice((50, 200, 800)) * 10**6
    has_windows = rng.random() < 0.5
    fixed, items = [], []
    for il in range(n_layers):
        more = il < n_layers // 8 or il >= 7 * n_layers // 8 or il % 3 == 2
        types = [names[0]] * 3
        if mix == "down" and more:
            types[2] = names[1]
        elif mix in ("wild", "distinct"):
            types = [rng.choice(names) for _ in types]
        sizes = [round(n_weights * _BYTES_PER_WEIGHT[name]) for name in types]
        if mix == "distinct":
            sizes = [round(size * rng.uniform(0.8, 1.2)) for size in sizes]
        items.append(sizes)
        fixed.append(
            round(2.6 * n_embd**2) + (context // 10 if has_windows and il % 6 != 5 else context)
        )
    link = rng.choice((6e9, 12e9, 24e9, 50e9))
    host_rate = 0.52 * rng.choice((40e9, 60e9, 100e9, 300e9))
    hop_s = rng.choice((10e-6, 30e-6))
    crossing_s = _N_GENERATE * 2 * hop_s + _N_BATCHES * 2 * (hop_s + 512 * n_embd * 4 / link)
    total = sum(fixed) + sum(map(sum, items))
    specs = [
        (
            rng.choice((8, 12, 16, 24, 32, 48)) * _GIB,
            0.52 * rng.uniform(250e9, 1800e9),
            0.25 * rng.uniform(20e12, 200e12),
        )
        for _ in range(n_cards)
    ]
    specs = [specs[0]] * n_cards if is_equal else specs
    share = rng.uniform(0.2, 0.95) * total / sum(spec[0] for spec in specs)
    used = n_used / n_expert
    output_bytes = n_embd * 120_000
    prefill_flops = 2 * n_weights * used * _N_PROMPT
    cards, host_units = [], []
    for n_bytes, rate, flops in specs:
        units = []
        for own, sizes in zip(fixed, items, strict=True):
            kept = [
                _N_GENERATE * size * used / rate
                + _N_BATCHES * 0.9 * size / rate
                + prefill_flops / flops
                for size in sizes
            ]
            away = [
                _N_GENERATE * size * used / host_rate
                + _N_BATCHES * 0.9 * size * (1 / link + 1 / specs[0][1])
                + prefill_flops / specs[0][2]
                for size in sizes
            ]
            base = sum(kept) + _N_GENERATE * (90e-6 + own / rate) + _N_PROMPT * 2 * own / flops
            units.append(
                Unit(
                    fixed_bytes=own,
                    base_s=base,
                    items=tuple(
                        Item(size, size, b - a)
                        for size, a, b in zip(sizes, kept, away, strict=True)
                    ),
                    first_item_s=crossing_s,
                )
            )
        units.append(Unit(output_bytes, _N_GENERATE * output_bytes / rate))
        cards.append(
            CardProblem(
                budget_bytes=round(n_bytes * share),
                units=tuple(units),
                once_bytes=round(rng.uniform(0.3, 1.0) * 5e8),
                once_s=_N_GENERATE * hop_s,
            )
        )
    for own, sizes in zip(fixed, items, strict=True):
        n_bytes = own + sum(sizes)
        seconds = _N_GENERATE * (90e-6 + (own + sum(sizes) * used) / host_rate)
        seconds += _N_BATCHES * n_bytes / link
        host_units.append(HostUnit(n_bytes, seconds))
    host_units.append(HostUnit(output_bytes, _N_GENERATE * output_bytes / host_rate))
    return Problem(tuple(cards), HostProblem(None, tuple(host_units)))
