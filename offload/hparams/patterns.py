"""Which layers have a window, a recurrent state, an indexer of their own?

Mirrors `load_swa_pattern`, `set_swa_pattern` and the loops over
`is_swa_impl`, `is_recr_impl` and `is_indexer_full_impl` in src/models/*.cpp
(b11434).
"""

from __future__ import annotations

from typing import Any, Final

from offload.arch import Arch, Indexed, Memory, Pattern, Recurrence, Window, WindowWhen
from offload.metadata import Metadata

INDEXED: Final = frozenset(
    (Memory.HYBRID_INDEXED, Memory.MSA, Memory.DSA, Memory.DSA_WINDOWED, Memory.DSV4)
)
"""Memory classes with an indexer."""

_GLM_5_2_N_CTX: Final = 1 << 20
_GLM_5_2_LAYERS: Final = 78


def window_layers(
    keys: Metadata,
    window: Window | None,
    n_layer: int,
    trunk: int,
    is_recr: tuple[bool, ...],
) -> dict[str, Any]:
    """`swa_type`, `n_swa` and `is_swa` of an architecture with this kind of window."""
    none = {"swa_type": "none", "n_swa": 0, "is_swa": (False,) * n_layer}
    if window is None or window.only_n_layer not in (0, trunk):
        return none
    is_hyper = window.all_if_hyper and keys.uint("hyper_connection.count", 0) > 0
    n_swa = _window_size(keys, window)
    if is_hyper and not n_swa:
        raise keys.error("attention.sliding_window", "the key is missing or 0")
    if n_swa is None:
        return none
    if is_hyper or window.pattern is Pattern.ALL:
        is_swa = (True,) * n_layer
    elif window.pattern is Pattern.ATTENTION:
        is_swa = tuple(il < trunk and not is_recr[il] for il in range(n_layer))
    else:
        is_swa = _window_pattern(keys, window, n_layer, trunk)
    return {"swa_type": window.kind, "n_swa": n_swa, "is_swa": is_swa}


def _window_size(keys: Metadata, window: Window) -> int | None:
    """Tokens of the window; None where this model does without."""
    name = "attention.sliding_window"
    if window.when is WindowWhen.ALWAYS:
        return keys.uint(name, window.n_swa_default or None)
    given = keys.uint(name, -1)
    if window.when is WindowWhen.UNLESS_ZERO:
        return None if given == 0 else window.n_swa_fixed
    return (window.n_swa_fixed or given) if given > 0 else None


def _window_pattern(keys: Metadata, window: Window, n_layer: int, trunk: int) -> tuple[bool, ...]:
    """Layers with a window: listed one by one, or all but every n-th."""
    name = "attention.sliding_window_pattern"
    listed = keys.array(name, n_layer)
    if listed is not None:
        return tuple(value != 0 for value in listed)
    if window.pattern is Pattern.ARRAY:
        raise keys.error(name, "the key is missing or no array")
    n = keys.uint(name, window.period)
    dense = 0 if window.dense_first else n - 1
    return tuple(il < trunk and (n == 0 or il % n != dense) for il in range(n_layer))


def recurrent_layers(
    keys: Metadata,
    arch: Arch,
    n_head_kv: tuple[int, ...],
    n_ff: tuple[int, ...],
    trunk: int,
) -> tuple[bool, ...]:
    """`is_recr` of every layer; MTP blocks never carry a state."""
    n_layer = len(n_head_kv)
    rule = arch.recurrence
    if rule is Recurrence.NEVER:
        return (False,) * n_layer
    if rule is Recurrence.ALWAYS:
        return (True,) * n_layer
    if rule is Recurrence.INTERVAL:
        return _interval_layers(keys, arch, n_layer, trunk)
    return tuple(
        il < trunk and n_head_kv[il] == 0 and (rule is Recurrence.NO_KV_HEADS or n_ff[il] == 0)
        for il in range(n_layer)
    )


def _interval_layers(keys: Metadata, arch: Arch, n_layer: int, trunk: int) -> tuple[bool, ...]:
    listed = keys.uints("attention.recurrent_layers", n_layer, ())
    if listed:
        return tuple(value != 0 for value in listed)
    n = keys.uint("full_attention_interval", arch.full_attention_interval)
    if n == 0:
        raise keys.error("full_attention_interval", "an interval of 0 layers")
    return tuple(il < trunk and (il + 1) % n != 0 for il in range(n_layer))


def indexer_layers(keys: Metadata, arch: Arch, n_layer: int, trunk: int) -> tuple[bool, ...]:
    """Trunk layers that own an indexer; the others use an earlier layer's choice."""
    name = "attention.indexer.types"
    if arch.memory not in INDEXED:
        return (False,) * n_layer
    if arch.indexed is Indexed.AFTER_DENSE_LEAD:
        lead = keys.uint("leading_dense_block_count", 0)
        return tuple(il >= lead for il in range(n_layer))
    if arch.indexed is Indexed.ALL:
        return (True,) * n_layer
    default = (1,) * trunk
    if arch.indexed is Indexed.LISTED_GLM and keys.uint("context_length", 0) >= _GLM_5_2_N_CTX:
        default = tuple(
            int(il < 2 or (il < _GLM_5_2_LAYERS and (il - 2) % 4 == 0)) for il in range(trunk)
        )
    if arch.indexed is Indexed.LISTED_SHORT:
        listed = keys.array(name, trunk)
        if listed is None:
            raise keys.error(name, "the key is missing or no array")
    else:
        listed = keys.uints(name, trunk, default)
    return (*(value != 0 for value in listed), *(False,) * (n_layer - trunk))
