"""What does a profile say of another model, placement, batch or depth than it was made with?

Work is counted for the plan at hand and multiplied by the profile's coefficients; so only
what the coefficients are about has to stay: the machine, and the kinds of work.
"""

from __future__ import annotations

from collections.abc import Sequence

from offload.cost import ROUTING_SKEW
from offload.device import Device
from offload.forecast import Forecast, Measured, make_forecast
from offload.machine import Host
from offload.plan import Plan
from tuner.profile import Profile, match_cards

_NO_HOST = Host()


def measured_for(profile: Profile, devices: Sequence[Device]) -> Measured:
    """The profile's coefficients, and which of its cards speaks for each device."""
    return Measured(
        coefficients=profile.coefficients, device_of=match_cards(profile.hardware, devices)
    )


def extrapolate(
    profile: Profile,
    plan: Plan,
    *,
    host: Host = _NO_HOST,
    n_depth: int = 0,
    routing_skew: float = ROUTING_SKEW,
) -> Forecast | None:
    """Decode and prefill of `plan` as the profile has them, types never measured widened.

    `host` describes what priors fall back to where the profile is silent. `routing_skew` is 0
    for a model of random weights, whose routers have no favourites.
    """
    measured = measured_for(profile, plan.devices)
    return make_forecast(plan, host, measured, n_depth=n_depth, routing_skew=routing_skew)
