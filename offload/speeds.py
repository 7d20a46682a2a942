"""What is known of how fast this machine is, and who says so?

Measured coefficients count where there are any for the devices and tensor types asked
about, the most similar measured type where not, priors for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from offload.cost import PRIOR, ROUTING_SKEW, Coefficient, Coefficients, nearest
from offload.cost.work import CPU, REPACKED
from offload.device import Device
from offload.machine import Host
from offload.priors import make_priors
from offload.turn import Turn

PROFILE: Final = "profile"
MIXED: Final = "profile+prior"


class Measured(NamedTuple):
    """Coefficients of a profile, and which of its devices speaks for each of the plan's."""

    coefficients: Coefficients
    device_of: Mapping[str, str]


class Speeds(NamedTuple):
    """What placements are priced with: the turn that counts, and what is known of the machine."""

    turn: Turn = Turn()
    host: Host = Host()
    measured: Measured | None = None
    routing_skew: float = ROUTING_SKEW
    may_drop_cards: bool = True
    """Whether a plan may be for one card alone (`-dev`), if that is fastest."""


def known_speeds(
    names: Sequence[str], devices: Sequence[Device], host: Host, measured: Measured | None
) -> tuple[Coefficients, str]:
    """What is known of these features, and who says so."""
    if measured is None:
        return make_priors(names, devices, host), PRIOR
    ours = _renamed(measured)
    guessed = [n for n in names if n not in ours.table and nearest(n, ours.table) is None]
    if not guessed:
        return ours, PROFILE
    priors = make_priors(guessed, devices, host)
    sds = {
        phase: (ours if any(n.startswith(f"{phase}.") for n in ours.table) else priors)
        .residual_sds.get(phase, 0.0)
        for phase in ("decode", "prefill")
    }  # fmt: skip
    return (
        Coefficients(
            table={**ours.table, **priors.table},
            covariance={**ours.covariance, **priors.covariance},
            residual_sds=sds,
            source=MIXED,
        ),
        MIXED if ours.table else PRIOR,
    )


def _renamed(measured: Measured) -> Coefficients:
    """The profile's coefficients under the plan's device names.

    Two devices that one card of the profile speaks for are wrong together.
    """
    known = measured.coefficients
    table: dict[str, Coefficient] = {}
    origin: dict[str, str] = {}
    by_card: dict[str, list[str]] = {}
    for device, card in measured.device_of.items():
        by_card.setdefault(card, []).append(device)
    for name, coefficient in known.table.items():
        place = _place(name)
        devices = [place] if place in ("", CPU, REPACKED) else by_card.get(place, [])
        for device in devices:
            new = name if device == place else _with_place(name, device)
            table[new] = coefficient._replace(name=new)
            origin[new] = name
    names = tuple(table)
    covariance = {}
    for i, a in enumerate(names):
        for b in names[:i]:
            shared = known.covariance_of(origin[a], origin[b])
            if shared:
                covariance[a, b] = shared
    return Coefficients(
        table=table,
        covariance=covariance,
        residual_sds=known.residual_sds,
        source=known.source,
    )


def _place(name: str) -> str:
    """The device in a feature's name, or nothing."""
    return (*name.split("."), "", "")[2]


def _with_place(name: str, device: str) -> str:
    parts = name.split(".")
    return ".".join((*parts[:2], device, *parts[3:]))
