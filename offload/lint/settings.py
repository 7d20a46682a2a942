"""What does a command ask for? Every setting that decides placement and memory.

The values of flags are read in reading.py; None means "not set", and llama.cpp's own
default (b11434) stands in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from offload.ggml import TYPES_BY_NAME, GGMLType
from offload.lint.command import Program
from offload.lint.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One group of rules as written: `-ot` with its text, `-cmoe`, `-ncmoe N` or `-ncffn N`."""

    flag: str
    text: str = ""
    n_layers: int = 0


@dataclass(slots=True, kw_only=True)
class Settings:
    """Every setting that decides placement and memory; None means "not set"."""

    kind: Program = Program.SERVER
    is_ik: bool = False
    model_path: str | None = None
    n_ctx: int | None = None
    n_ctx_per_slot: int | None = None
    n_batch: int = 2048
    n_ubatch: int = 512
    n_parallel: int | None = None
    kv_unified: bool | None = None
    type_k: GGMLType = TYPES_BY_NAME["F16"]
    type_v: GGMLType = TYPES_BY_NAME["F16"]
    flash_attn: bool | None = None
    swa_full: bool = False
    offload_kqv: bool = True
    op_offload: bool = True
    no_host: bool = False
    n_gpu_layers: int | None = None
    tensor_split: tuple[float, ...] | None = None
    split_mode: str = "layer"
    main_gpu: int = 0
    overrides: tuple[Override, ...] = ()
    device_names: tuple[str, ...] | None = None
    rpc: tuple[str, ...] = ()
    load_mode: str = "auto"
    sets_load_mode: bool = False
    fit: bool = True
    fit_wanted: bool = False
    fit_ctx: int = 4096
    has_draft_model: bool = False
    draft_has_overrides: bool = False
    drafts_with_mtp: bool = False
    has_projector: bool = False
    n_prompt: int | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def blocks_fit(self) -> tuple[str, ...]:
        """The flags that make `--fit` give up (`common_params_fit_impl`, common/fit.cpp)."""
        flags = []
        if self.n_gpu_layers is not None:
            flags.append("-ngl")
        if self.tensor_split is not None:
            flags.append("-ts")
        if self.split_mode not in ("layer", "none"):
            flags.append(f"-sm {self.split_mode}")
        flags += dict.fromkeys(override.flag for override in self.overrides)
        return tuple(flags)
