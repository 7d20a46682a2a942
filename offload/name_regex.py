r"""Which readable regular expression finds exactly these tensor names among all of a model's?

One is always enough: alternatives for what has nothing in common. Names are taken
apart as llama.cpp builds them (src/llama-arch.cpp, b11434): `blk.<il>.<base>.<suffix>`.
Layers that give up the same parts become one product of numbers and parts,
`blk\.([0-3]|1\d)\.ffn_.*exps`. Only the model's own names count, so that numbers
without such parts may be matched where that is shorter.

Shortest within what people write and recognise: base names stay whole words, though
`ffn_d` would be as exact as `ffn_down_exps` on many models.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import product
from typing import Final, Generic, NamedTuple, TypeVar

from offload.ecmascript import byte_text, compile_pattern
from offload.layer_regex import layer_regex

_LAYER_NAME: Final = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(.+)", re.ASCII | re.DOTALL)
_EXPERT: Final = re.compile(r"ffn_(\w+)_(ch)?exps", re.ASCII)
_ANY_EXPERT: Final = ("ffn_.*exps", "ffn_.*_exps", "ffn_.*_chexps")
_ORDER: Final = {w: i for i, w in enumerate(("up", "down", "gate", "gate_up", "weight", "bias"))}
"""llama.cpp's order of experts, weights before biases; other words follow by name."""
_SPECIAL: Final = frozenset(r"^$\.*+?()[]{}|")

_Key = TypeVar("_Key", int, str)
_Rows = Mapping[_Key, tuple[AbstractSet[str], AbstractSet[str]]]
"""For each layer (or base name) the parts (or suffixes) wanted, and those kept back."""


class _Product(NamedTuple, Generic[_Key]):
    """Rows that one text serves: it must match `wanted` and must not match `kept`."""

    keys: frozenset[_Key]
    wanted: frozenset[str]
    kept: frozenset[str]


def name_regex(wanted: AbstractSet[str], names: Collection[str]) -> str:
    """A regex found, by `std::regex_search`, in every name of `wanted` and no other of `names`."""
    layers: dict[int, tuple[set[str], set[str]]] = {}
    outside = []
    for name in names:
        match = _LAYER_NAME.fullmatch(name)
        if match is not None:
            layers.setdefault(int(match[1]), (set(), set()))[name not in wanted].add(match[2])
        elif name in wanted:
            outside.append(name)
    for text in _texts(layers, outside, wanted, names):
        search = compile_pattern(text).search
        if {name for name in names if search(byte_text(name))} == wanted:
            return text
    # names that no model has, such as `enc.blk.1.…` beside `blk.1.…`
    return f"^{_group([escape(name) for name in sorted(wanted)])}$"


def escape(text: str) -> str:
    r"""`text` as a pattern; what `-ot`, llama-bench or a shell would eat becomes `\x…`."""
    return "".join(map(_escaped, text))


def _escaped(c: str) -> str:
    if c in _SPECIAL:
        return f"\\{c}"
    if c.isalnum() or c in "_-:/" or not c.isascii():
        return c
    return f"\\x{ord(c):02x}"


def _texts(
    layers: _Rows[int],
    outside: Collection[str],
    wanted: AbstractSet[str],
    names: Collection[str],
) -> Iterator[str]:
    """Patterns to try, the one to prefer first."""
    products = _products(layers)
    variants = [
        [(layer_regex(p.keys, others), part, others) for p, part, others in _parts(variant, layers)]
        for variant in dict.fromkeys((tuple(products), tuple(_shared(products))))
        if variant
    ]
    terms = min(variants, key=lambda terms: len(_blocks(terms)), default=[])
    if not outside and len(terms) == 1 and not terms[0][2]:
        # nothing of the kind in any other layer: `exps` is what everybody writes
        part = terms[0][1]
        yield from (part.removeprefix("ffn_.*"), part, rf"\.{part}")
    alternatives = [_outside_text(name, wanted, names) for name in outside]
    yield "|".join([*dict.fromkeys(alternatives), *([_blocks(terms)] if terms else [])])


def _blocks(terms: Collection[tuple[str, str, object]]) -> str:
    return r"blk\." + _group([rf"{numbers}\.{part}" for numbers, part, _ in terms])


def _group(texts: Collection[str]) -> str:
    """The texts as alternatives, in parentheses where there are several."""
    joined = "|".join(texts)
    return f"({joined})" if len(texts) > 1 else joined


def _products(rows: _Rows[_Key]) -> list[_Product[_Key]]:
    """Rows with the same parts together, then those that do not contradict each other."""
    alike: dict[tuple[frozenset[str], frozenset[str]], list[_Key]] = {}
    for key, (wanted, kept) in rows.items():
        if wanted:
            alike.setdefault((frozenset(wanted), frozenset(kept)), []).append(key)
    products: list[_Product[_Key]] = []
    for (wanted, kept), keys in sorted(alike.items(), key=lambda item: -len(item[1])):
        for i, other in enumerate(products):
            if not (other.wanted & kept or other.kept & wanted):
                products[i] = _Product(
                    other.keys.union(keys), other.wanted | wanted, other.kept | kept
                )
                break
        else:
            products.append(_Product(frozenset(keys), wanted, kept))
    return products


def _shared(products: Collection[_Product[_Key]]) -> list[_Product[_Key]]:
    """The same products, each without the parts that others may match in its rows as well.

    Layers with `down` and layers with `up` and `down` then are `down` in all, `up` in some.
    """
    shared = sorted(products, key=lambda p: (-len(p.wanted), min(p.keys)))
    for i, mine in enumerate(shared):
        for j, other in enumerate(shared):
            if i != j and other.wanted & mine.wanted and not other.wanted & mine.kept:
                shared[j] = other._replace(keys=other.keys | mine.keys, kept=other.kept | mine.kept)
                mine = mine._replace(wanted=mine.wanted - other.wanted)
        shared[i] = mine
    return [p for p in shared if p.wanted]


def _parts(
    products: Collection[_Product[int]], layers: _Rows[int]
) -> Iterator[tuple[_Product[int], str, set[int]]]:
    """Each product with the regex of its parts and the layers where that would match too much."""
    present = {part for wanted, kept in layers.values() for part in (*wanted, *kept)}
    for p in sorted(products, key=lambda p: (-len(p.keys), min(p.keys))):
        text = part_regex(p.wanted, p.kept)
        match = re.compile(text).match
        hits = {part for part in present if match(part)}
        yield p, text, {il for il, (_, kept) in layers.items() if hits & kept}


def part_regex(wanted: AbstractSet[str], kept: AbstractSet[str]) -> str:
    """A regex that matches, from their start, all parts `wanted` and none `kept`."""
    bases: dict[str, tuple[set[str], set[str]]] = {}
    for is_kept, parts in enumerate((wanted, kept)):
        for part in sorted(parts):
            base, dot, suffix = part.rpartition(".")
            bases.setdefault(base or suffix, (set(), set()))[is_kept].add(dot and dot + suffix)
    texts = []
    for p in _products(bases):
        parts = {base + suffix for base in p.keys for suffix in bases[base][0]}
        for text in sorted(_forms(p), key=len):
            match = re.compile(text, re.DOTALL).match
            if all(match(part) for part in parts) and not any(match(part) for part in kept):
                break
        else:
            text = _group([escape(part) for part in sorted(parts)]) + "$"
        texts.append(text)
    return _group(sorted(texts))


def _forms(p: _Product[str]) -> Iterator[str]:
    """Ways to write base names with these suffixes."""
    experts = [_EXPERT.fullmatch(base) for base in p.keys]
    stems = [_words(p.keys)]
    pairs = {(match[1], match[2] or "") for match in experts if match is not None}
    if all(experts):
        middles, kinds = ({pair[i] for pair in pairs} for i in (0, 1))
        stems += _ANY_EXPERT
        if len(pairs) == len(middles) * len(kinds):
            stems.append(f"ffn_{_words(middles)}_{_words(kinds)}exps")
    ends = [_words(p.wanted)]
    ends = ["", *ends, f"{ends[0]}$"] if "" not in p.wanted else ["", f"{ends[0]}$"]
    if "" not in p.wanted:
        ends.append(r"\.")
    return (stem + end for stem, end in product(stems, ends))


def _words(words: Collection[str]) -> str:
    """Alternatives with their common ends, of whole words, written once: `ffn_(up|gate)_exps`."""
    texts = list(words)
    if len(texts) == 1:
        return escape(texts[0])
    head = _common_words(texts)
    rests = [text[len(head) :] for text in texts]
    tail = _common_words([rest[::-1] for rest in rests])[::-1]
    middles = [rest[: len(rest) - len(tail)] for rest in rests]
    middles.sort(key=lambda word: (_ORDER.get(word.lstrip("."), len(_ORDER)), word))
    return f"{escape(head)}{_group([escape(word) for word in middles])}{escape(tail)}"


def _common_words(texts: Collection[str]) -> str:
    """What all texts begin with, up to the last end of a word in it."""
    first, last = min(texts), max(texts)
    n = next((i for i, c in enumerate(first) if last[i : i + 1] != c), len(first))
    return re.sub(r"[^_.]*$", "", first[:n])


def _outside_text(name: str, wanted: AbstractSet[str], names: Collection[str]) -> str:
    """A name outside the layers, no longer than it takes to find nothing unwanted."""
    base = name.rpartition(".")[0] or name
    for text in (base, name):
        if all(other in wanted for other in names if text in other):
            return escape(text)
    for text in (base, name):
        if all(other in wanted for other in names if other.startswith(text)):
            return f"^{escape(text)}"
    return f"^{escape(name)}$"
