"""How do `LoadOptions` become a model and a context inside a child?

Fills `llama_model_params` and `llama_context_params` as
`common_model_params_to_llama` and `common_context_params_to_llama`
(common/common.cpp, b11434) do for llama-server. Imported by children only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

from offload.engine.library import Library
from offload.engine.load_options import LOAD_MODES, SPLIT_MODES, LoadOptions
from offload.errors import LlamaCppError, UsageError
from offload.ggml import TYPES_BY_NAME


class _Override(ctypes.Structure):
    """`llama_model_tensor_buft_override`."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class Loaded:
    """A model and its context; everything C code points to lives as long as this does."""

    def __init__(
        self,
        library: Library,
        options: LoadOptions,
        devices: Sequence[int],
        *,
        no_alloc: bool,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self._kept_alive: list[Any] = []
        api = library.api
        path = os.fsencode(options.path)
        params = self._model_params(library, options, devices, no_alloc=no_alloc)
        if on_progress is not None:
            params.progress_callback = self._progress_callback(api, on_progress)
        model = api.llama_model_load_from_file(path, params)
        if not model:
            raise LlamaCppError("llama.cpp could not load the model")
        self.model: int = int(model)
        context = api.llama_init_from_model(model, _context_params(library, options))
        if not context:
            raise LlamaCppError("llama.cpp could not create a context")
        self.context: int = int(context)

    def _model_params(
        self, library: Library, options: LoadOptions, devices: Sequence[int], *, no_alloc: bool
    ) -> Any:
        api = library.api
        params = api.llama_model_default_params()
        params.devices = self._keep((ctypes.c_void_p * (len(devices) + 1))(*devices, None))
        params.n_gpu_layers = options.n_gpu_layers
        params.split_mode = SPLIT_MODES.index(options.split_mode)
        params.main_gpu = options.main_gpu
        params.use_extra_bufts = options.use_extra_bufts
        params.no_host = options.no_host
        params.no_alloc = no_alloc
        # a dry run maps nothing, see common_get_device_memory_data_impl (common/fit.cpp)
        params.load_mode = LOAD_MODES["none" if no_alloc else options.load_mode]
        if options.tensor_split:
            n = api.llama_max_devices()
            if len(options.tensor_split) > n:
                raise UsageError(f"{len(options.tensor_split)} shares, llama.cpp takes {n}")
            shares = self._keep((ctypes.c_float * n)(*options.tensor_split), keep_type=True)
            params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
        if options.overrides:
            known = _buffer_types(library, devices)
            rows = [
                _Override(pattern.encode(), _find(known, name))
                for pattern, name in options.overrides
            ]
            params.tensor_buft_overrides = self._keep((_Override * (len(rows) + 1))(*rows))
        return params

    def _progress_callback(self, api: Any, on_progress: Callable[[float], None]) -> Any:
        def told(fraction: float, _user_data: int) -> bool:
            on_progress(fraction)
            return True

        return self._keep(api.llama_progress_callback(told), keep_type=True)

    def _keep(self, array: Any, *, keep_type: bool = False) -> Any:
        self._kept_alive.append(array)
        return array if keep_type else ctypes.cast(array, ctypes.c_void_p)


def _context_params(library: Library, options: LoadOptions) -> Any:
    params = library.api.llama_context_default_params()
    params.n_ctx = options.n_ctx
    params.n_batch = options.n_batch
    params.n_ubatch = options.n_ubatch
    params.n_seq_max = options.n_seq_max
    params.n_outputs_max = options.n_outputs
    params.n_threads = params.n_threads_batch = options.n_threads
    params.flash_attn_type = -1 if options.flash_attn is None else int(options.flash_attn)
    params.type_k = TYPES_BY_NAME[options.type_k.upper()].id
    params.type_v = TYPES_BY_NAME[options.type_v.upper()].id
    params.offload_kqv = options.offload_kqv
    params.op_offload = options.op_offload
    params.swa_full = options.swa_full
    params.kv_unified = options.kv_unified
    params.no_perf = False
    return params


def _buffer_types(library: Library, devices: Sequence[int]) -> dict[str, int]:
    """Buffer types an override may name: the host's, the devices' own, and device names."""
    known = {"CPU": library.ggml.ggml_backend_cpu_buffer_type()}
    for device in devices:
        buffer_type = library.ggml.ggml_backend_dev_buffer_type(device)
        known[library.device_name(device)] = buffer_type
        known[library.buffer_type_name(buffer_type)] = buffer_type
    return known


def _find(known: dict[str, int], name: str) -> int:
    if name not in known:
        raise UsageError(f"override to unknown buffer type {name!r}; known: {', '.join(known)}")
    return known[name]
