"""How fast will this plan decode and prefill, and who says so?

Measured coefficients count where there are any for the plan's devices and tensor types, the
most similar measured type where not, priors for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from offload.cost import (
    PRIOR,
    ROUTING_SKEW,
    Coefficient,
    Coefficients,
    Prediction,
    Work,
    decode_work,
    nearest,
    predict,
    prefill_work,
)
from offload.cost.work import CPU, REPACKED
from offload.machine import Host
from offload.plan import Plan
from offload.priors import make_priors
from offload.split import HOST

N_PROMPT: Final = 2048
PROFILE: Final = "profile"
MIXED: Final = "profile+prior"


class Measured(NamedTuple):
    """Coefficients of a profile, and which of its devices speaks for each of the plan's."""

    coefficients: Coefficients
    device_of: Mapping[str, str]


class Forecast(NamedTuple):
    """Seconds for one token after `n_depth` others, and for a prompt of `n_prompt` at that depth.

    `source` is `prior`, `profile`, or `profile+prior` where parts had to be guessed.
    `borrowed` maps features that were never measured to those used instead.
    """

    n_depth: int
    n_prompt: int
    decode: Prediction
    prefill: Prediction
    source: str
    borrowed: Mapping[str, str]


def make_forecast(
    plan: Plan,
    host: Host,
    measured: Measured | None = None,
    *,
    n_depth: int = 0,
    routing_skew: float = ROUTING_SKEW,
) -> Forecast | None:
    """Predict `plan` on `host`; None where a phase has nothing to be predicted from."""
    decode, prefill = plan_work(plan, n_depth=n_depth, routing_skew=routing_skew)
    names = tuple(dict.fromkeys((*decode.amounts, *prefill.amounts)))
    known, source = _coefficients(names, plan, host, measured)
    decoded, prefilled = predict(decode, known), predict(prefill, known)
    if decoded is None or prefilled is None:
        return None
    return Forecast(
        n_depth=n_depth,
        n_prompt=N_PROMPT,
        decode=decoded,
        prefill=prefilled,
        source=source,
        borrowed={**decoded.borrowed, **prefilled.borrowed},
    )


def plan_work(
    plan: Plan,
    *,
    n_depth: int = 0,
    n_prompt: int = N_PROMPT,
    routing_skew: float = ROUTING_SKEW,
) -> tuple[Work, Work]:
    """The work of one token and of a prompt, with the plan's own placement and options.

    Host weights are pinned, mapped or repacked as `make_cpu_buft_list` (src/llama-model.cpp)
    and `create_tensor` (src/llama-model-loader.cpp, b11434) decide.
    """
    options = plan.options
    pinned = any(d.backend.has_pinned_host_buffer for d in plan.devices) and not options.no_host
    mapped = options.load_mode in ("mmap", "mmap+mlock", "auto") or (
        options.load_mode is None and HOST not in plan.placement.placed.values()
    )
    decode = decode_work(
        plan.model,
        plan.placement,
        plan.devices,
        context=plan.context,
        n_depth=n_depth,
        host_is_repacked=not pinned,
    )
    prefill = prefill_work(
        plan.model,
        plan.placement,
        plan.devices,
        context=plan.context,
        n_prompt=n_prompt,
        n_depth=n_depth,
        op_offload=options.op_offload,
        host_is_repacked=not pinned,
        host_is_mapped=mapped,
        routing_skew=routing_skew,
    )
    return decode, prefill


def _coefficients(
    names: tuple[str, ...], plan: Plan, host: Host, measured: Measured | None
) -> tuple[Coefficients, str]:
    """What is known of these features, and who says so."""
    if measured is None:
        return make_priors(names, plan.devices, host), PRIOR
    ours = _renamed(measured)
    guessed = [n for n in names if n not in ours.table and nearest(n, ours.table) is None]
    if not guessed:
        return ours, PROFILE
    priors = make_priors(guessed, plan.devices, host)
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
