"""How long does a placement take? The work it does, and seconds for each unit of work."""

from offload.cost.coefficients import Coefficient, Coefficients, Prediction, predict
from offload.cost.waiting import add_waiting
from offload.cost.work import Places, Work, decode_work, prefill_work

__all__ = [
    "Coefficient",
    "Coefficients",
    "Places",
    "Prediction",
    "Work",
    "add_waiting",
    "decode_work",
    "predict",
    "prefill_work",
]
