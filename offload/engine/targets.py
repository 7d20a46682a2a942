"""On which devices does a plan run here, and what are its cards called there?

The real ones under their own names; or, where they are elsewhere or not here at all,
RPC servers in the order of the plan's cards, which llama.cpp calls RPC0, RPC1 and on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

from offload.emit import Launch, make_launch
from offload.engine.load_options import LoadOptions
from offload.errors import UsageError
from offload.options import SERVER_SLOTS
from offload.plan import LAYERS_MAX, Plan
from offload.rules import HOST as CPU
from offload.rules import cpu_moe_rule, n_cpu_moe_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a child must know: RPC servers to ask, and which devices to use in which order.

    `devices` None means all behind the servers, or without servers every GPU there is.
    `n_devices` is how many they must be, None where any number does.
    """

    options: LoadOptions
    endpoints: tuple[str, ...] = ()
    devices: tuple[str, ...] | None = None
    n_devices: int | None = None


def real_target(what: Plan | Launch | LoadOptions, n_threads: int | None = None) -> Target:
    """The devices the plan names, its own RPC servers included."""
    n_threads = n_threads or n_cores()
    if isinstance(what, LoadOptions):
        return Target(options=what)
    launch = make_launch(what) if isinstance(what, Plan) else what
    names: tuple[str, ...] | None = launch.devices or None
    if isinstance(what, Plan):
        names = tuple(device.name for device in what.devices)
    elif launch.n_gpu_layers == 0 or names == ("none",):
        names = ()
    endpoints = tuple(e for e in (launch.rpc or "").split(",") if e)
    if names is None and endpoints:
        raise UsageError(
            "this launch names RPC servers but not the devices to use; give the plan itself"
        )
    options = options_of(launch, {}, n_threads)
    if isinstance(what, Launch) and what.split_mode == "none":
        # all cards there are, of which llama.cpp takes one; a plan has that one only
        return Target(
            options=replace(options, main_gpu=what.main_gpu), endpoints=endpoints, devices=names
        )
    return Target(options=options, endpoints=endpoints, devices=names, n_devices=n_cards_of(what))


def played_target(
    what: Plan | Launch | LoadOptions, endpoints: Sequence[str], n_threads: int | None = None
) -> Target:
    """RPC servers in the place of the plan's cards, in their order."""
    if isinstance(what, LoadOptions):
        return Target(options=what, endpoints=tuple(endpoints), devices=None if endpoints else ())
    launch = make_launch(what) if isinstance(what, Plan) else what
    if isinstance(what, Plan):
        names = played_names(what)
    else:
        names = {name: f"RPC{d}" for d, name in enumerate(launch.devices)}
        unknown = {rule.buffer_type for rule in launch.rules} - {*names, CPU}
        if unknown:
            raise UsageError(
                f"cannot tell which card {', '.join(sorted(unknown))} is; give the plan itself"
            )
    # cards with pinned host buffers keep llama.cpp from repacking what goes there
    is_pinned = isinstance(what, Plan) and any(d.backend.offloads_ops for d in what.devices)
    options = options_of(launch, names, n_threads or 1)
    return Target(
        options=replace(options, use_extra_bufts=launch.no_host or not is_pinned),
        endpoints=tuple(endpoints),
        devices=None if endpoints else (),
        n_devices=n_cards_of(what),
    )


def played_names(plan: Plan) -> dict[str, str]:
    """What the plan's cards and their buffer types are called where RPC servers play them."""
    names = {device.buffer_type: f"RPC{d}" for d, device in enumerate(plan.devices)}
    return names | {device.name: f"RPC{d}" for d, device in enumerate(plan.devices)}


def n_cards_of(what: Plan | Launch | LoadOptions) -> int:
    """How many cards must be there for this."""
    if isinstance(what, Plan):
        return len(what.devices)
    if what.n_gpu_layers == 0 or (isinstance(what, Launch) and what.devices == ("none",)):
        return 0
    if what.split_mode == "none":
        return 1
    n_named = len(what.devices) if isinstance(what, Launch) else 0
    return n_named or len(what.tensor_split) or 1


def options_of(launch: Launch, names: Mapping[str, str], n_threads: int) -> LoadOptions:
    """A launch as settings of a run in process; `names` renames buffer types."""
    rules = launch.rules
    if launch.cpu_moe:
        rules += (cpu_moe_rule(),)
    if launch.n_cpu_moe:
        rules += n_cpu_moe_rules(min(launch.n_cpu_moe, LAYERS_MAX))
    is_auto = launch.n_parallel is None
    return LoadOptions(
        path=launch.model_path,
        n_gpu_layers=launch.n_gpu_layers,
        tensor_split=launch.tensor_split,
        split_mode=launch.split_mode,
        overrides=tuple((r.pattern, names.get(r.buffer_type, r.buffer_type)) for r in rules),
        n_ctx=launch.n_ctx,
        n_batch=launch.n_batch,
        n_ubatch=launch.n_ubatch,
        n_seq_max=launch.n_parallel or SERVER_SLOTS,
        kv_unified=is_auto if launch.kv_unified is None else launch.kv_unified,
        type_k=launch.type_k,
        type_v=launch.type_v,
        flash_attn=launch.flash_attn,
        swa_full=launch.swa_full,
        offload_kqv=launch.offload_kqv,
        op_offload=launch.op_offload,
        no_host=launch.no_host,
        load_mode=launch.load_mode,
        n_threads=n_threads,
    )


def n_cores() -> int:
    """Cores this process may use: half of the processors where each core shows as two."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    physical = psutil.cpu_count(logical=False)
    return max(1, min(allowed or 1, physical or allowed or 1))


def model_file_bytes(path: str) -> int:
    """Size of the file, or of all parts of a split one; UsageError where it cannot be read."""
    file = Path(path)
    try:
        n_bytes = file.stat().st_size
        stem, _, n_parts = file.stem.rpartition("-of-")
        if stem.endswith("-00001") and n_parts.isdigit():
            parts = file.parent.glob(f"{escape(stem[:-5])}*-of-{n_parts}.gguf")
            return sum(part.stat().st_size for part in parts) or n_bytes
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return n_bytes
