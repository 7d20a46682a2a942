"""Metadata keys that several families share, in the form the converters write them."""

from __future__ import annotations

from typing import Final

from tuner.shapes.shape import Value

SOFTMAX: Final = 1  # values of expert_gating_func
SIGMOID: Final = 2


def yarn(factor: float, n_ctx_orig: int, log_multiplier: float | None = None) -> dict[str, Value]:
    """Rope scaling by YaRN from a context of `n_ctx_orig`."""
    keys: dict[str, Value] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": n_ctx_orig,
    }
    if log_multiplier is not None:
        keys["rope.scaling.yarn_log_multiplier"] = log_multiplier
    return keys


def router(scale: float, *, norm: bool = True, func: int = SIGMOID) -> dict[str, Value]:
    """How the chosen experts' weights are computed; a sigmoid router has a selection bias."""
    return {
        "expert_gating_func": func,
        "expert_weights_norm": norm,
        "expert_weights_scale": scale,
    }
