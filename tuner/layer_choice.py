"""Which layers of a big model stand for all of them in a small one?

llama.cpp decides much by a layer's number alone (leading dense layers, every n-th
layer with full attention: src/models/*.cpp, b11434), so a layer of the small model
must stand where llama.cpp expects one of its kind. What only differs in tensor types
(a mix like Q4_K_M) may stand anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

_LITE_LAYERS: Final = (26, 27)
_LITE_LAYERS_AND_VOCAB: Final = (48, 128256)


def is_known_by_count(arch: str, n_layer: int, n_vocab: int) -> bool:
    """Whether llama.cpp takes a model for a "lite" one by its number of layers.

    It then reads other tensors (`is_lite`, src/models/deepseek2.cpp, b11434).
    """
    is_lite = n_layer in _LITE_LAYERS or (n_layer, n_vocab) == _LITE_LAYERS_AND_VOCAB
    return arch == "deepseek2" and is_lite


def candidates(kinds: Sequence[Hashable], n: int, *, n_lead: int) -> Iterator[tuple[int, ...]]:
    """Choices of `n` of the layers, best first: which layer stands at each place.

    `kinds` is what llama.cpp expects of each layer; the first `n_lead` are counted by a
    key of their own, so that fewer can stand there.
    """
    tail = kinds[n_lead:]
    period = _period(tail)
    lead = _lead(n, n_lead, len(kinds))
    if period is not None:
        start = n_lead + (lead - n_lead) % period
        ils = range(start, start + n - lead)
        yield (*range(lead), *(il - period if il >= len(kinds) else il for il in ils))
    # with fewer layers than kinds the first ones lean on nothing that is not there
    others = (_spread(kinds, n), tuple(range(n)))
    yield from others if n >= len(set(kinds)) else reversed(others)


def good_counts(kinds: Sequence[Hashable], *, n_lead: int) -> tuple[int, ...]:
    """Layer counts worth taking, largest first: whole periods, every kind in them."""
    period = _period(kinds[n_lead:])
    if period is None:
        return tuple(range(len(kinds), len(set(kinds)) - 1, -1))
    found = []
    for n in range(len(kinds), 0, -1):
        lead = _lead(n, n_lead, len(kinds))
        n_rest = n - lead
        is_whole = n_rest >= period and n_rest % period == 0 and (lead > 0 or not n_lead)
        if is_whole:
            found.append(n)
    return tuple(found)


def donors(
    kinds: Sequence[Hashable], types: Sequence[Hashable], chosen: Sequence[int]
) -> tuple[int, ...]:
    """For each chosen layer one of its kind to take the tensor types from.

    Within each kind the types come in the proportions of the whole model, and in the
    order of the whole model.
    """
    picked: dict[Hashable, list[int]] = {}
    for kind, n in Counter(kinds[il] for il in chosen).items():
        of_kind = [il for il, other in enumerate(kinds) if other == kind]
        by_type = sorted(of_kind, key=lambda il: (repr(types[il]), il))
        picked[kind] = sorted(by_type[(2 * i + 1) * len(by_type) // (2 * n)] for i in range(n))
    return tuple(picked[kinds[il]].pop(0) for il in chosen)


def _lead(n: int, n_lead: int, n_layer: int) -> int:
    """How many of `n` layers are leading ones: at least one if there are any and room for both."""
    if n_lead in (0, n_layer):
        return min(n, n_lead)
    return min(n_lead, max(round(n * n_lead / n_layer), 1), n - 1)


def _period(kinds: Sequence[Hashable]) -> int | None:
    """The smallest period of the sequence that it shows at least twice."""
    for period in range(1, len(kinds) // 2 + 1):
        if all(a == b for a, b in zip(kinds, kinds[period:], strict=False)):
            return period
    return 1 if len(kinds) == 1 else None


def _spread(kinds: Sequence[Hashable], n: int) -> tuple[int, ...]:
    """`n` layers in their order, each kind in proportion and, if there is room, at least once."""
    share = {kind: n * count / len(kinds) for kind, count in Counter(kinds).items()}
    wanted = {kind: max(1, int(amount)) for kind, amount in share.items()}
    while sum(wanted.values()) < n:
        short = max(wanted, key=lambda kind: share[kind] - wanted[kind])
        wanted[short] += 1
    while sum(wanted.values()) > n:
        over = max(wanted, key=lambda kind: (wanted[kind] - share[kind], wanted[kind]))
        wanted[over] -= 1
    taken = []
    for kind, count in wanted.items():
        of_kind = [il for il, other in enumerate(kinds) if other == kind]
        taken += [of_kind[(2 * i + 1) * len(of_kind) // (2 * count)] for i in range(count)]
    return tuple(sorted(taken))
