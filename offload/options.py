"""What the user asked for, in llama.cpp's own words and defaults.

Pure values: the CLI and lint parse text into these, plan and emit read them.
Defaults are llama-server's (common/common.h, common/arg.cpp, tools/server,
b11434), except `n_ctx`, where llama-server would take the whole training
context and we stop at 32768.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from offload.errors import UsageError
from offload.ggml import TYPES_BY_NAME, GGMLType
from offload.rules import Rule
from offload.units import GIB

DEFAULT_N_CTX_MAX: Final = 32768
DEFAULT_MARGIN_BYTES: Final = GIB
SERVER_SLOTS: Final = 4
"""Slots llama-server takes without `-np`, over one unified KV cache."""

KV_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""What `-ctk` and `-ctv` accept (common/arg.cpp, `kv_cache_types`)."""

SPLIT_MODES: Final = ("layer", "none")
LOAD_MODES: Final = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")


class Strategy(StrEnum):
    """Which layers' experts leave the cards.

    `own` takes the fastest spread where speeds are known, `even` the evenly filling one always.
    """

    OWN = "own"
    EVEN = "even"
    FIRST = "first"
    LAST = "last"
    ALL = "all"
    NONE = "none"


def parse_kv_type(text: str, flag: str) -> GGMLType:
    """`q8_0` to its type; refuses what llama-server's `-ctk`/`-ctv` refuses."""
    if text.lower() not in KV_TYPES:
        raise UsageError(f"{flag} {text!r} is not a KV cache type; one of {', '.join(KV_TYPES)}")
    return TYPES_BY_NAME[text.upper()]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Every knob of a plan; None means "not set by the user, choose"."""

    n_ctx: int | None = None
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
    override_rules: tuple[Rule, ...] = ()
    n_cpu_moe: int | None = None
    cpu_moe: bool = False
    load_mode: str | None = None
    device_names: tuple[str, ...] = ()
    rpc: str | None = None
    llama_build: int | None = None
    """Build of the llama.cpp that will run the plan (11434 for b11434); None: nobody said."""

    draft_path: str | None = None
    """A second model that drafts tokens (`-md`), on the cards of `draft_device` (`-devd`)."""

    draft_device: str | None = None
    draft_n_gpu_layers: int | None = None
    draft_type_k: GGMLType = TYPES_BY_NAME["F16"]
    draft_type_v: GGMLType = TYPES_BY_NAME["F16"]
    mmproj_path: str | None = None
    """A multimodal projector (`-mm`), on the card `mmproj_device`; `none` is the host."""

    mmproj_device: str | None = None
    margin_bytes: tuple[int, ...] = (DEFAULT_MARGIN_BYTES,)
    strategy: Strategy = Strategy.OWN

    def __post_init__(self) -> None:
        _check_range("-c", self.n_ctx, 0, 1 << 30)
        _check_range("-b", self.n_batch, 1, 1 << 24)
        _check_range("-ub", self.n_ubatch, 1, 1 << 24)
        _check_range("-np", self.n_parallel, 1, 256)
        _check_range("-ngl", self.n_gpu_layers, -2, 1 << 20)
        _check_range("-ngld", self.draft_n_gpu_layers, -2, 1 << 20)
        _check_range("-ncmoe", self.n_cpu_moe, 0, 1 << 20)
        _check_range("build", self.llama_build, 0, 1 << 31)
        if self.split_mode not in SPLIT_MODES:
            raise UsageError(
                f"-sm {self.split_mode!r} cannot be planned; use one of {', '.join(SPLIT_MODES)}"
            )
        if self.load_mode is not None and self.load_mode not in LOAD_MODES:
            raise UsageError(
                f"--load-mode {self.load_mode!r} is unknown; one of {', '.join(LOAD_MODES)}"
            )
        if self.flash_attn is False and self.type_v.is_quantized:
            raise UsageError(
                f"-ctv {self.type_v.name.lower()} needs flash attention; drop -fa off or -ctv"
            )


def _check_range(flag: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise UsageError(f"{flag} {value}: must be between {low} and {high}")
