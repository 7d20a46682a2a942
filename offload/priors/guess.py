"""What does a unit of work probably cost here, and how wrong may that be?

Data-sheet figures times efficiencies learned from recorded runs on many machines
(benchmarks/recorded_speed.py fits and judges them; docs/cost.md lists them). Every doubt is
a factor: one that all coefficients of a group share, such as how much of a card's bandwidth
llama.cpp reaches, and one of each coefficient's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from offload.cost import PRIOR, Coefficient, Coefficients, unit_of
from offload.cost.work import CPU, REPACKED, RESEND_S, RESEND_SD
from offload.device import Device
from offload.machine import Host
from offload.priors.cards import CardSheet, find_card

_GB: Final = 1e9
_TERA: Final = 1e12

_UNKNOWN_CARD: Final = CardSheet(600.0, 60.0, 25.0)
_UNKNOWN_HOST_GB_PER_S: Final = 60.0
_SERVER_BYTES: Final = 160 << 30
_SERVER_GB_PER_S: Final = 150.0
"""More memory than a desktop holds means more than two channels."""

_LINK_EFFICIENCY: Final = 0.75
_MAPPED_GB_PER_S: Final = 16.0
"""Copies from pageable memory go through a pinned buffer at about this rate, whatever the link."""

_TFLOP_PER_GB: Final = 0.1
"""TFLOP/s for each GB/s of a card whose bandwidth alone is known."""


class _Guess(NamedTuple):
    """Seconds per unit, the group that shares its doubt, and both relative deviations."""

    value: float
    group: str
    group_sd: float
    own_sd: float


class _Rates(NamedTuple):
    """What one place does per second, and whether that is a data sheet's or a guess."""

    bytes_per_s: float
    flops_per_s: float
    link_bytes_per_s: float
    is_known: bool


def make_priors(features: Iterable[str], devices: Sequence[Device], host: Host) -> Coefficients:
    """Coefficients for these features of work on these cards and this host, all marked `prior`."""
    rates = {device.name: _card_rates(device) for device in devices}
    rates[CPU] = rates[REPACKED] = _host_rates(host)
    guesses: dict[str, _Guess] = {}
    for name in features:
        guess = _guess(name, rates)
        if guess is not None:
            guesses[name] = guess
    table = {
        name: Coefficient(
            name=name,
            value=guess.value,
            unit=unit_of(name),
            standard_error=guess.value * (guess.group_sd**2 + guess.own_sd**2) ** 0.5,
            source=PRIOR,
        )
        for name, guess in guesses.items()
    }
    return Coefficients(
        table=table,
        covariance=_shared_doubt(guesses),
        residual_sds=_SCATTER,
        source=PRIOR,
    )


def _shared_doubt(guesses: Mapping[str, _Guess]) -> dict[tuple[str, str], float]:
    groups: dict[str, list[str]] = {}
    for name, guess in guesses.items():
        groups.setdefault(guess.group, []).append(name)
    return {
        (a, b): guesses[a].value * guesses[b].value * guesses[a].group_sd * guesses[b].group_sd
        for names in groups.values()
        for i, a in enumerate(names)
        for b in names[:i]
    }


def _card_rates(device: Device) -> _Rates:
    sheet = find_card(device.description)
    known = sheet or _UNKNOWN_CARD
    bandwidth, link = device.bandwidth_bytes_per_s, device.link_bytes_per_s
    flops = known.fp16_tflop_per_s
    if sheet is None and bandwidth is not None:
        flops = _TFLOP_PER_GB * bandwidth / _GB
    return _Rates(
        bytes_per_s=float(bandwidth or known.bandwidth_gb_per_s * _GB),
        flops_per_s=flops * _TERA,
        link_bytes_per_s=float(link or (known.link_gb_per_s or known.bandwidth_gb_per_s) * _GB),
        is_known=sheet is not None or bandwidth is not None,
    )


def link_bytes_per_s(device: Device) -> float:
    """What its link is taken to carry, before the share of it that copies reach."""
    return _card_rates(device).link_bytes_per_s


def _host_rates(host: Host) -> _Rates:
    total = host.memory_total_bytes or 0
    guessed = _SERVER_GB_PER_S if total > _SERVER_BYTES else _UNKNOWN_HOST_GB_PER_S
    bandwidth = host.bandwidth_bytes_per_s
    rate = float(bandwidth or guessed * _GB)
    return _Rates(
        bytes_per_s=rate,
        flops_per_s=_HOST_FLOPS_PER_BYTE * rate,
        link_bytes_per_s=rate,
        is_known=bandwidth is not None,
    )


_SCATTER: Final = {"decode": 0.2, "prefill": 0.45}
"""Between machines whose data sheets are alike: builds, clocks, kernels, memory timings."""

_HOST_FLOPS_PER_BYTE: Final = 8.0

_UNKNOWN_SD: Final = 0.6
"""Doubt about a rate that no data sheet gives."""


def _guess(name: str, rates: Mapping[str, _Rates]) -> _Guess | None:
    """A feature's coefficient from the rates of its place; None for what nobody can guess."""
    phase, kind, place = (*name.split("."), "", "")[:3]
    if not place:
        return _placeless(phase, kind)
    rate = rates.get(place)
    if rate is None:
        return None
    side = "host" if place in (CPU, REPACKED) else "card"
    row = _TABLE.get((phase, kind, side))
    if row is None:
        return None
    group_sd = (row.group_sd**2 + (0.0 if rate.is_known else _UNKNOWN_SD) ** 2) ** 0.5
    per = {
        "": 1.0,
        "bytes": rate.bytes_per_s,
        "flops": rate.flops_per_s,
        "link": rate.link_bytes_per_s,
        "mapped": min(rate.link_bytes_per_s, _MAPPED_GB_PER_S * _GB / _LINK_EFFICIENCY),
    }[row.per]
    group = f"{phase}.{kind}.{place if side == 'card' else 'host'}"
    return _Guess(value=row.factor / per, group=group, group_sd=group_sd, own_sd=row.own_sd)


def _placeless(phase: str, kind: str) -> _Guess | None:
    row = _TABLE.get((phase, kind, ""))
    if row is None:
        return None
    return _Guess(
        value=row.factor, group=f"{phase}.{kind}", group_sd=row.group_sd, own_sd=row.own_sd
    )


class _Row(NamedTuple):
    """Seconds per unit, or per unit over the rate that `per` names, and doubts about it.

    Over a rate, `factor` is one over the share of the data sheet's figure that is reached.
    Features whose group is alike on one place are wrong together by `group_sd`.
    """

    factor: float
    per: str
    group_sd: float
    own_sd: float = 0.1


# fmt: off
_TABLE: Final = {
    ("decode", "const", ""): _Row(5e-4, "", 1.0),
    ("decode", "hop", ""): _Row(2e-5, "", 1.0),
    ("decode", "layer", "card"): _Row(9e-5, "", 0.7),
    ("decode", "layer", "host"): _Row(2e-5, "", 1.0),
    ("decode", "read", "card"): _Row(1 / 0.52, "bytes", 0.3),
    ("decode", "read", "host"): _Row(1 / 0.52, "bytes", 0.35),
    ("decode", "context", "card"): _Row(1 / 0.25, "bytes", 1.0),
    ("decode", "context", "host"): _Row(1 / 0.05, "bytes", 1.0),
    ("decode", "resend", "card"): _Row(RESEND_S, "", RESEND_SD),
    ("prefill", "const", ""): _Row(2e-3, "", 1.0),
    ("prefill", "ubatch", ""): _Row(2e-3, "", 1.0),
    ("prefill", "hop", ""): _Row(3e-5, "", 1.0),
    ("prefill", "carry", ""): _Row(1e-10, "", 0.7),
    ("prefill", "layer", "card"): _Row(1e-3, "", 1.0),
    ("prefill", "layer", "host"): _Row(1e-4, "", 1.0),
    ("prefill", "read", "card"): _Row(1 / 0.6, "bytes", 0.4),
    ("prefill", "read", "host"): _Row(1 / 0.6, "bytes", 0.5),
    ("prefill", "flops", "card"): _Row(1 / 0.25, "flops", 0.6),
    ("prefill", "flops", "host"): _Row(1 / 0.5, "flops", 0.8),
    ("prefill", "attention", "card"): _Row(1 / 0.2, "flops", 0.8),
    ("prefill", "attention", "host"): _Row(1 / 0.2, "flops", 1.0),
    ("prefill", "stream", "card"): _Row(1 / _LINK_EFFICIENCY, "link", 0.4),
    ("prefill", "stream_mmap", "card"): _Row(1 / _LINK_EFFICIENCY, "mapped", 0.4),
}
# fmt: on
