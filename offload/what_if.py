"""Which machines, none of which need to be here, does a user want to see side by side?

A machine is a list of cards: `3x24GiB:936GB/s,RTX 3060,Vulkan0:16GiB`. A card is written as for
`--gpu` (`NAME:SIZE[:BANDWIDTH[:LINK]]`), without a name (`SIZE[:BANDWIDTH[:LINK]]`), or by a name
of which there is a data sheet (`RTX 3090[:SIZE[:BANDWIDTH[:LINK]]]`); `Nx` before it means N of
them. Or it is the machine here with changes: `+CARD` more, `-NAME` less, `NAME=CARD` in its place,
`here` as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from offload.cost.difference import Difference
from offload.device import DEVICES_MAX, Device, backend_of, check_devices, parse_device
from offload.errors import DeviceError, UsageError
from offload.model import Model
from offload.options import DEFAULT_MARGIN_BYTES, PlanOptions
from offload.priors import find_card
from offload.priors.card_memory import memory_bytes
from offload.question import Answered, Question, between, planned
from offload.speeds import Measured, Speeds

HERE: Final = "here"
_FORM: Final = "3x24GiB:936GB/s, RTX 3090, CUDA0:24GiB, +CARD, -NAME or NAME=CARD"
_COUNT: Final = re.compile(r"(\d{1,3})\s*x\s*(.+)", re.ASCII | re.DOTALL)
_SIZE: Final = re.compile(r"\d+(\.\d+)?\s*[A-Za-z]*", re.ASCII)
_FAMILIES: Final = (
    (re.compile(r"\b(RX|R9700|Pro [VW]\d+|MI\d+X?|8060S)\b", re.I), "ROCm"),
    (re.compile(r"\bArc\b", re.I), "SYCL"),
    (re.compile(r"\bM\d\b", re.I), "MTL"),
)


class Described(NamedTuple):
    """A machine as it was written, and its cards."""

    text: str
    devices: tuple[Device, ...]


class Row(NamedTuple):
    """A machine, its plan, and its turn beside that of the first machine that fits."""

    machine: Described
    answer: Answered
    difference: Difference | None


def describe_machines(texts: Sequence[str], here: Sequence[Device]) -> tuple[Described, ...]:
    """Each text as a machine; where one changes the machine here, that one comes first.

    Raises UsageError that names the part which cannot be meant.
    """
    described = [_describe(text, here) for text in texts]
    if any(is_relative(text) for text in texts) and not any(_is_here(text) for text in texts):
        described.insert(0, Described(HERE, tuple(here)))
    return tuple(described)


def is_relative(text: str) -> bool:
    """Whether a text says what is different from the machine here."""
    return any(_is_change(part) for part in _parts(text))


def needs_machine(texts: Sequence[str]) -> bool:
    """Whether anything is asked about the machine here."""
    return any(is_relative(text) or _is_here(text) for text in texts)


def _is_here(text: str) -> bool:
    return text.strip().lower() == HERE


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _is_change(part: str) -> bool:
    return part[:1] in ("+", "-") or "=" in part


def _describe(text: str, here: Sequence[Device]) -> Described:
    if _is_here(text):
        return Described(text.strip(), tuple(here))
    parts = _parts(text)
    changes = [part for part in parts if _is_change(part)]
    if changes and len(changes) < len(parts):
        raise UsageError(
            f"--cards {text!r} mixes cards with changes of the machine here;"
            " write + before a card that is added"
        )
    devices: list[Device] = list(here) if changes else []
    taken = {device.name for device in devices}
    try:
        for part in parts:
            _apply(part, devices, here, taken)
        return Described(text.strip(), check_devices(devices))
    except (DeviceError, UsageError) as error:
        raise UsageError(f"--cards {text!r}: {error}") from None


def _apply(part: str, devices: list[Device], here: Sequence[Device], taken: set[str]) -> None:
    """One part of a machine's text, carried out on its cards.

    A name that was `taken` by a card which left is not given to another one.
    """
    if part.startswith("-"):
        del devices[_index(part[1:], devices)]
        return
    name, equals, card = part.partition("=")
    if equals:
        d = _index(name, devices)
        devices[d] = _in_place_of(devices[d], card.strip())
        return
    counted = _COUNT.fullmatch(part.removeprefix("+").strip())
    n, card = (int(counted[1]), counted[2]) if counted else (1, part.removeprefix("+").strip())
    if not 1 <= n <= DEVICES_MAX:
        raise UsageError(f"{n} cards, but llama.cpp takes 1 to {DEVICES_MAX}")
    for _ in range(n):
        devices.append(_new_card(card, devices, here, taken))
        taken.add(devices[-1].name)


def _index(name: str, devices: Sequence[Device]) -> int:
    names = [device.name.lower() for device in devices]
    if name.strip().lower() not in names:
        known = ", ".join(device.name for device in devices) or "none"
        raise UsageError(f"no card {name.strip()!r} here; there is {known}")
    return names.index(name.strip().lower())


def _in_place_of(old: Device, card: str) -> Device:
    """Another card under the old one's name and in its slot, whose link it keeps."""
    new = _new_card(card, (), (), set())
    backend = new.backend.name if _is_named(card) or _sheet_name(card) else old.backend.name
    if backend != old.backend.name:
        raise UsageError(
            f"{old.name} is a {old.backend.name} device and {card!r} a {backend} one;"
            f" write -{old.name},+{card}"
        )
    return replace(
        new,
        name=old.name,
        backend=old.backend,
        buffer_type=old.buffer_type,
        endpoint=old.endpoint,
        link_bytes_per_s=new.link_bytes_per_s or old.link_bytes_per_s,
    )


def _new_card(
    text: str, devices: Sequence[Device], here: Sequence[Device], taken: Collection[str]
) -> Device:
    """The card that `text` describes, under a name that is not `taken` if it has none."""
    if _is_named(text):
        return parse_device(text, here)
    head, _, rest = text.partition(":")
    if _sheet_name(text):
        prefix = next((to for family, to in _FAMILIES if family.search(head)), "CUDA")
        size, _, rates = rest.partition(":")
        n_bytes = memory_bytes(head)
        if not size.strip() and n_bytes is None:
            raise UsageError(
                f"{head.strip()!r} comes with more than one size of memory, or shares it;"
                f" write {head.strip()}:SIZE, e.g. {head.strip()}:16GiB"
            )
        figures = f"{size.strip() or n_bytes}:{rates}"
        card = parse_device(f"{_free_name(prefix, taken)}:{figures}".rstrip(":"))
        return replace(card, description=head.strip())
    if not _SIZE.fullmatch(head.strip()):
        raise UsageError(
            f"{text!r} is no size, no llama.cpp device and no card whose data sheet is known;"
            f" write it like {_FORM}"
        )
    if head.strip().isdigit():
        raise UsageError(f"{head.strip()!r} would be bytes; write it like {head.strip()}GiB")
    prefix = devices[-1].backend.device_prefix if devices else "CUDA"
    if prefix == "RPC" or (devices and not devices[-1].backend.is_numbered):
        prefix = "CUDA"
    return parse_device(f"{_free_name(prefix, taken)}:{text}")


def _is_named(text: str) -> bool:
    """Whether it begins with a device of llama.cpp, as `--gpu` has it."""
    try:
        backend_of(re.split(r"[:\[]", text, maxsplit=1)[0].strip())
    except DeviceError:
        return False
    return True


def _sheet_name(text: str) -> bool:
    head = text.partition(":")[0].strip()
    return not _SIZE.fullmatch(head) and find_card(head) is not None


def _free_name(prefix: str, taken: Collection[str]) -> str:
    return next(f"{prefix}{i}" for i in range(1000) if f"{prefix}{i}" not in taken)


def plan_machines(
    machines: Sequence[Described],
    here: Sequence[Device],
    model: Model,
    options: PlanOptions,
    *,
    host_free_bytes: int | None,
    speeds: Speeds,
) -> tuple[Row, ...]:
    """Plan the model for every machine; what was measured counts for the cards that are here."""
    rows: list[Row] = []
    first: Answered | None = None
    for machine in machines:
        question = Question(
            model=model,
            devices=machine.devices,
            options=_options_of(machine, here, options),
            host_free_bytes=host_free_bytes,
            speeds=speeds._replace(measured=_measured_of(machine, here, speeds.measured)),
        )
        answer = planned(question)
        first = answer if first is None and answer.plan.feasible else first
        compared = None
        if first is not None and answer.plan.feasible:
            compared = between(first, answer)
        rows.append(Row(machine, answer, compared))
    return tuple(rows)


def _options_of(machine: Described, here: Sequence[Device], options: PlanOptions) -> PlanOptions:
    """The same options; of margins said card by card those of the cards that stay."""
    margins = options.margin_bytes
    if len(margins) > 1 and len(margins) == len(here):
        of_card = dict(zip(here, margins, strict=True))
        margins = tuple(of_card.get(d, DEFAULT_MARGIN_BYTES) for d in machine.devices)
    names = tuple(device.name for device in machine.devices)
    return replace(
        options, margin_bytes=margins or (DEFAULT_MARGIN_BYTES,), device_names=names or ("none",)
    )


def _measured_of(
    machine: Described, here: Sequence[Device], measured: Measured | None
) -> Measured | None:
    """What was measured, less what it says of cards that this machine does not have."""
    if measured is None:
        return None
    known = set(here)
    kept = {device.name for device in machine.devices if device in known}
    return Measured(
        measured.coefficients,
        {name: card for name, card in measured.device_of.items() if name in kept},
    )
