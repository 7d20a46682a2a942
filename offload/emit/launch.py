"""What must any llama.cpp program be told so that it loads as planned?

`Launch` is the plan reduced to settings: it comes from a `Plan` in memory or
from a saved one (`Launch.from_json`), and every emitter reads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from offload.device import rpc_servers
from offload.errors import UsageError
from offload.memory import HOST_BACKEND, context_bytes_by_layer
from offload.options import KV_TYPES, LOAD_MODES, SPLIT_MODES
from offload.plan import Plan
from offload.rules import Rule, with_user_rules
from offload.split import HOST

_TEXT_MAX: Final = 1 << 20
_SHARE_MAX: Final = 3e38
"""Shares are float32 in llama.cpp."""
_LAYER_BYTES_MAX: Final = 1 << 60
_LATER: Final = (
    "layer_bytes",
    "latent_kv_bytes",
    "draft_path",
    "draft_device",
    "draft_n_gpu_layers",
    "draft_type_k",
    "draft_type_v",
    "mmproj_path",
    "mmproj_device",
)
"""What plans saved by earlier versions may lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Settings of one run; None means "not set by anyone, leave llama.cpp's default"."""

    model_path: str
    n_gpu_layers: int
    tensor_split: tuple[float, ...] = ()
    devices: tuple[str, ...] = ()
    rpc: str | None = None
    split_mode: str = "layer"
    main_gpu: int = 0
    rules: tuple[Rule, ...] = ()
    cpu_moe: bool = False
    n_cpu_moe: int | None = None
    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_parallel: int | None = None
    kv_unified: bool | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool | None = None
    swa_full: bool = False
    offload_kqv: bool = True
    op_offload: bool = True
    no_host: bool = False
    load_mode: str = "auto"
    layer_bytes: tuple[int, ...] = ()
    """Weights and context of each layer wherever they lie, the output layer last.

    For programs that share layers out by bytes; empty in plans that do not say.
    """
    latent_kv_bytes: int = 0
    """What the latent cache of one layer (MLA) takes as keys and values in F32; else 0."""

    draft_path: str | None = None
    draft_device: str | None = None
    draft_n_gpu_layers: int | None = None
    draft_type_k: str = "f16"
    draft_type_v: str = "f16"
    mmproj_path: str | None = None
    mmproj_device: str | None = None
    """One card, or `none` for the host."""

    @property
    def n_units(self) -> int:
        """Layers and the output layer; 0 where unknown."""
        return len(self.layer_bytes)

    @property
    def is_partial(self) -> bool:
        """True when some layers are on cards and the first ones stay on the host."""
        return 0 < self.n_gpu_layers < self.n_units

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes an equal value."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Launch:
        """Read what `to_json` wrote; UsageError names the key that is missing or wrong."""
        if not isinstance(data, Mapping):
            raise UsageError(
                "the plan has no 'launch' object; was it written by offload plan -o json?"
            )
        values: dict[str, Any] = {}
        for item in fields(cls):
            if item.name not in data and item.name in _LATER:
                continue
            if item.name not in data:
                raise UsageError(f"the plan's 'launch' has no {item.name!r}; write it again")
            values[item.name] = data[item.name]
        for key in ("rules", "tensor_split", "devices", "layer_bytes"):
            if not isinstance(values.get(key, ()), list | tuple):
                raise UsageError(f"the plan's 'launch' has {key} that is not a list")
        try:
            values["rules"] = tuple(Rule(**rule) for rule in values["rules"])
            values["tensor_split"] = tuple(float(share) for share in values["tensor_split"])
            values["devices"] = tuple(values["devices"])
            values["layer_bytes"] = tuple(values.get("layer_bytes", ()))
        except (TypeError, ValueError, OverflowError):
            raise UsageError(
                "the plan's 'launch' has rules, tensor_split or devices of another form; plan again"
            ) from None
        launch = cls(**values)
        launch._check_types()
        return launch

    def _check_types(self) -> None:
        """Refuse values of another type than declared: plans are edited by hand."""
        allowed: dict[str, type | tuple[type, ...]] = {
            "str": str, "int": int, "bool": bool, "int | None": (int, type(None)),
            "str | None": (str, type(None)), "bool | None": (bool, type(None)),
        }  # fmt: skip
        for item in fields(self):
            kind = allowed.get(str(item.type))
            value = getattr(self, item.name)
            is_bool = isinstance(value, bool) and "bool" not in str(item.type)
            if kind is None:
                continue
            if is_bool or not isinstance(value, kind):
                raise UsageError(
                    f"the plan's 'launch' has {item.name} = {value!r}, not {item.type}"
                )
        self._check_values()
        texts: list[object] = [*self.devices]
        for rule in self.rules:
            texts += (rule.pattern, rule.buffer_type)
        if not all(isinstance(text, str) and len(text) < _TEXT_MAX for text in texts):
            raise UsageError("the plan's 'launch' has devices or rules that are not text")

    def _check_values(self) -> None:
        """Refuse numbers and words llama.cpp would refuse or read otherwise."""
        for name, low in (("n_gpu_layers", -2), ("n_ctx", 1), ("n_batch", 1), ("n_ubatch", 1)):
            if getattr(self, name) < low:
                raise UsageError(f"the plan's 'launch' has {name} = {getattr(self, name)}")
        for name, known in (
            ("type_k", KV_TYPES),
            ("type_v", KV_TYPES),
            ("draft_type_k", KV_TYPES),
            ("draft_type_v", KV_TYPES),
            ("split_mode", SPLIT_MODES),
            ("load_mode", LOAD_MODES),
        ):
            if getattr(self, name) not in known:
                raise UsageError(
                    f"the plan's 'launch' has {name} = {getattr(self, name)!r};"
                    f" one of {', '.join(known)}"
                )
        if not all(type(n) is int and 0 <= n < _LAYER_BYTES_MAX for n in self.layer_bytes):
            raise UsageError("the plan's 'launch' has layer_bytes that are no sizes")
        if not all(0 <= share < _SHARE_MAX for share in self.tensor_split):
            raise UsageError("the plan's 'launch' has a share in tensor_split that is none")
        for path in (self.model_path, self.draft_path, self.mmproj_path):
            if path is not None and "\0" in path:
                raise UsageError("the plan's 'launch' has a path that no file can have")
        for rule in self.rules:
            if any(c in str(rule.pattern) for c in ",=") or "," in str(rule.buffer_type):
                raise UsageError("the plan's 'launch' has a rule with ',' or '=' in its pattern")


def _layer_bytes(plan: Plan) -> tuple[int, ...]:
    """Weights and context by unit of `-ngl`, as a card would hold them."""
    model = plan.model
    backend = plan.devices[0].backend if plan.devices else HOST_BACKEND
    sizes = [*context_bytes_by_layer(model, plan.context, backend), 0]
    for tensor in model.tensors:
        if tensor.loaded and tensor.il is not None and tensor.home != "output":
            sizes[tensor.il] += tensor.n_bytes
        elif tensor.loaded and tensor.home == "output":
            sizes[-1] += tensor.n_bytes
    if model.output_is_tied:
        sizes[-1] += model.token_embedding.n_bytes
    return tuple(sizes)


def _latent_kv_bytes(plan: Plan) -> int:
    """All heads' keys and values of one layer at full context, 4 bytes each."""
    for tensor in plan.model.tensors:
        if tensor.name.endswith(".attn_v_b.weight") and len(tensor.shape) > 2:
            return 2 * tensor.shape[1] * tensor.shape[2] * plan.context.n_ctx * 4
    return 0


def make_launch(plan: Plan) -> Launch:
    """The settings that make llama.cpp place everything as `plan` says."""
    options, n_devices = plan.options, len(plan.devices)
    counts = tuple(float(n) for n in plan.split.counts(n_devices))
    shares = counts if options.tensor_split is None else options.tensor_split
    host_experts = any(device == HOST for device in plan.placement.placed.values())
    return Launch(
        model_path=plan.model.path,
        n_gpu_layers=plan.split.n_gpu_layers if n_devices else 0,
        tensor_split=shares if n_devices > 1 else (),
        devices=options.device_names,
        rpc=options.rpc or (",".join(rpc_servers(plan.devices)) or None),
        split_mode=options.split_mode,
        main_gpu=options.main_gpu,
        rules=with_user_rules(options.override_rules, plan.rules),
        cpu_moe=options.cpu_moe,
        n_cpu_moe=options.n_cpu_moe,
        n_ctx=plan.context.n_ctx,
        n_batch=options.n_batch,
        n_ubatch=options.n_ubatch,
        n_parallel=options.n_parallel,
        kv_unified=options.kv_unified,
        type_k=options.type_k.name.lower(),
        type_v=options.type_v.name.lower(),
        flash_attn=options.flash_attn,
        swa_full=options.swa_full,
        offload_kqv=options.offload_kqv,
        op_offload=options.op_offload,
        no_host=options.no_host,
        load_mode=options.load_mode or ("none" if host_experts else "auto"),
        layer_bytes=_layer_bytes(plan),
        latent_kv_bytes=_latent_kv_bytes(plan),
        draft_path=options.draft_path,
        draft_device=options.draft_device,
        draft_n_gpu_layers=options.draft_n_gpu_layers,
        draft_type_k=options.draft_type_k.name.lower(),
        draft_type_v=options.draft_type_v.name.lower(),
        mmproj_path=options.mmproj_path,
        mmproj_device=options.mmproj_device,
    )
