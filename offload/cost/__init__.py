"""How long does a placement take? The work it does, and seconds for each unit of work."""

from offload.cost.coefficients import (
    MEASURED,
    PRIOR,
    Coefficient,
    Coefficients,
    Prediction,
    nearest,
    predict,
    seconds_of,
    unit_of,
)
from offload.cost.lumps import Places
from offload.cost.routing import ROUTING_SKEW, touched_share
from offload.cost.waiting import add_waiting
from offload.cost.work import Work, decode_work, prefill_work

__all__ = [
    "MEASURED",
    "PRIOR",
    "ROUTING_SKEW",
    "Coefficient",
    "Coefficients",
    "Places",
    "Prediction",
    "Work",
    "add_waiting",
    "decode_work",
    "nearest",
    "predict",
    "prefill_work",
    "seconds_of",
    "touched_share",
    "unit_of",
]
