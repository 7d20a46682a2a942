"""What do data sheets imply of each device, beside what was measured there?

Data-sheet figures are what the vendor promises, priors what llama.cpp made of such figures on
other machines (offload/priors), measured costs what this profile says. A cost that is not larger
than its own standard error is known in sums with others only, and said to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from offload.cost import Coefficient, unit_of
from offload.cost.work import CPU, REPACKED
from offload.device import Device, device_by_name
from offload.errors import OffloadError
from offload.machine import Host
from offload.priors import make_priors
from offload.priors.cards import CardSheet, find_card
from tuner.profile import Card, Hardware, Profile
from tuner.report.timings import Timing

VIRTUAL: Final = "virtual card"
_WHAT: Final = {
    "read": "weights read",
    "context": "context read",
    "flops": "arithmetic",
    "attention": "attention",
    "stream": "experts copied over the link",
    "stream_mmap": "mapped experts copied over the link",
    "carry": "activations carried between devices",
    "hop": "one crossing between devices",
    "layer": "one layer, beside its weights",
    "const": "once, whatever is done",
    "ubatch": "one physical batch",
    "wait": "slower where it mostly waits",
}
AT_LEAST: Final = "weights read, over whole tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """One cost: `place` (a device, or "" for the whole run), `work`, tensor type where it matters.

    Figures are in `unit`: GB/s, GFLOP/s, us or %. Doubts are relative standard errors. `measured`
    is None where the runs told it in sums only.
    """

    phase: str
    place: str
    work: str
    type_name: str
    unit: str
    sheet: float | None
    prior: float | None
    prior_doubt: float | None
    measured: float | None
    measured_doubt: float | None
    n_samples: int

    @property
    def is_bound(self) -> bool:
        """Whether `measured` is what was reached at the least."""
        return self.work == AT_LEAST


def make_card(profile: Profile, timings: Sequence[Timing]) -> tuple[CardRow, ...]:
    """A row for each cost in the profile, and one for each device that no fit has a part in."""
    known = profile.coefficients
    devices = tuple(d for card in profile.hardware.cards if (d := _device(card)) is not None)
    host = Host(memory_total_bytes=profile.hardware.memory_total_bytes)
    priors = make_priors(known.table, devices, host)
    rows = [
        _row(coefficient, profile.hardware, priors.table.get(name))
        for name, coefficient in known.table.items()
    ]
    reads = [row for row in rows if row.phase == "decode" and row.unit == "GB/s"]
    rows += _at_least(reads, timings)
    return tuple(sorted(rows, key=_order))


def is_virtual(hardware: Hardware) -> bool:
    """Whether its cards were played by the processor."""
    return any(card.description.startswith(VIRTUAL) for card in hardware.cards)


def _device(card: Card) -> Device | None:
    """The card as priors know it; None where nobody could say anything of it."""
    if card.description.startswith(VIRTUAL):
        return None
    try:
        found = device_by_name(card.name, card.memory_total_bytes or 1)
    except OffloadError:
        return None
    return replace(found, description=card.description)


def _parts(name: str) -> tuple[str, str, str, str]:
    """Phase, kind, place and tensor type of a feature; missing parts are empty."""
    phase, kind, place, type_name = (*name.split("."), "", "", "")[:4]
    return phase, kind, place, type_name


def _row(c: Coefficient, hardware: Hardware, prior: Coefficient | None) -> CardRow:
    phase, kind, place, type_name = _parts(c.name)
    is_known = c.value > c.standard_error
    return CardRow(
        phase=phase,
        place=place,
        work=_WHAT.get(kind, kind),
        type_name=type_name,
        unit=_unit(c.name),
        sheet=_sheet_figure(kind, place, hardware),
        prior=None if prior is None else _readable(prior.name, prior.value),
        prior_doubt=None if prior is None else prior.standard_error / prior.value,
        measured=_readable(c.name, c.value) if is_known else None,
        measured_doubt=c.standard_error / c.value if is_known else None,
        n_samples=c.n_samples,
    )


def _unit(name: str) -> str:
    return {"s/byte": "GB/s", "s/flop": "GFLOP/s", "s/s": "%"}.get(unit_of(name), "us")


def _readable(name: str, value: float) -> float:
    """Seconds per unit, in the unit of the row."""
    unit = _unit(name)
    if unit in ("GB/s", "GFLOP/s"):
        return 1e-9 / value
    return 1e2 * value if unit == "%" else 1e6 * value


def _sheet_figure(kind: str, place: str, hardware: Hardware) -> float | None:
    """What the data sheet of the card of that name promises, in the unit of the row."""
    card = next((card for card in hardware.cards if card.name == place), None)
    sheet = None if card is None else find_card(card.description)
    if sheet is None:
        return None
    return _figures(sheet).get(kind)


def _figures(sheet: CardSheet) -> dict[str, float]:
    gflops = 1e3 * sheet.fp16_tflop_per_s
    figures = {"read": sheet.bandwidth_gb_per_s, "context": sheet.bandwidth_gb_per_s}
    figures |= {"flops": gflops, "attention": gflops}
    if sheet.link_gb_per_s:
        figures["stream"] = sheet.link_gb_per_s
    return figures


def _at_least(rows: Sequence[CardRow], timings: Sequence[Timing]) -> Iterator[CardRow]:
    """What each device read at the least: its bytes over the whole time of a token.

    No fit has a part in it: the fastest run is a bound, however poorly costs are told apart.
    """
    best: dict[str, float] = {}
    count: dict[str, int] = {}
    for timing in timings:
        if timing.phase != "decode" or timing.is_aside:
            continue
        read: dict[str, float] = {}
        for name, amount in timing.work.amounts.items():
            _, kind, place, _ = _parts(name)
            if kind == "read":
                read[place] = read.get(place, 0.0) + amount
        for place, n_bytes in read.items():
            count[place] = count.get(place, 0) + 1
            best[place] = max(best.get(place, 0.0), n_bytes / timing.seconds / 1e9)
    for place, rate in best.items():
        like = next((row for row in rows if row.place == place and row.type_name), None)
        yield CardRow(
            phase="decode",
            place=place,
            work=AT_LEAST,
            type_name="all",
            unit="GB/s",
            sheet=None if like is None else like.sheet,
            prior=None if like is None else like.prior,
            prior_doubt=None if like is None else like.prior_doubt,
            measured=rate,
            measured_doubt=None,
            n_samples=count[place],
        )


def _order(row: CardRow) -> tuple[object, ...]:
    """Devices first, the host after the cards, what has no place last; bounds before costs."""
    rank = {"": 3, REPACKED: 2, CPU: 1}.get(row.place, 0)
    return (row.phase, rank, row.place, not row.is_bound, row.unit, row.work, row.type_name)
