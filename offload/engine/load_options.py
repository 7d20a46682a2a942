"""How shall llama.cpp load this model? One value for dry runs, real runs and binaries.

The fields are those of `llama_model_params` and `llama_context_params`
(include/llama.h, b11434) with llama-server's defaults where the two differ
(tools/server/server.cpp: four slots over one unified cache; its
`server_output_limits`: as many outputs as slots). Only what JSON can carry, since
the value travels into a child process.
"""

from __future__ import annotations

from dataclasses import dataclass

from offload.errors import UsageError
from offload.ggml import TYPES_BY_NAME

SPLIT_MODES = ("none", "layer", "row", "tensor")
LOAD_MODES = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """`overrides` are (pattern, buffer type) pairs in order; a device's name means its own buffer.

    `n_outputs_max` None is llama-server's limit, 0 llama.cpp's own (a whole batch).
    `flash_attn` None is llama.cpp's `auto`. `use_extra_bufts` False is `--no-repack`.
    An empty `tensor_split` lets llama.cpp split by the memory that is free.
    """

    path: str
    n_gpu_layers: int = -1
    tensor_split: tuple[float, ...] = ()
    split_mode: str = "layer"
    main_gpu: int = 0
    overrides: tuple[tuple[str, str], ...] = ()
    n_ctx: int = 4096
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 4
    kv_unified: bool = True
    n_outputs_max: int | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool | None = None
    swa_full: bool = False
    offload_kqv: bool = True
    op_offload: bool = True
    no_host: bool = False
    use_extra_bufts: bool = True
    load_mode: str = "none"
    n_threads: int = 1

    def __post_init__(self) -> None:
        if self.split_mode not in SPLIT_MODES:
            raise UsageError(f"split mode {self.split_mode!r}; one of {', '.join(SPLIT_MODES)}")
        if self.load_mode not in LOAD_MODES:
            raise UsageError(f"load mode {self.load_mode!r}; one of {', '.join(LOAD_MODES)}")
        for name in (self.type_k, self.type_v):
            if name.upper() not in TYPES_BY_NAME:
                raise UsageError(f"{name!r} is not a tensor type, e.g. f16 or q8_0")

    @property
    def n_outputs(self) -> int:
        """What `llama_context_params.n_outputs_max` becomes."""
        if self.n_outputs_max is not None:
            return self.n_outputs_max
        return max(1, min(self.n_batch, self.n_seq_max))
