"""What does one llama.cpp backend do with memory: pad, split, pin, offload, overlap?

One row per backend that can own layers, read from ggml/src/ggml-<backend>/ of
llama.cpp b11434; docs/devices.md names the function behind every cell. Device
names map to backends by their prefix, as each backend builds them from its
own `GGML_*_NAME`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from offload.errors import DeviceError
from offload.ggml import GGMLType, row_bytes, tensor_bytes
from offload.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """How one backend allocates tensors and which scheduler features its devices answer for.

    `device_prefix` starts the names of its devices; `is_numbered` says whether a
    number follows. `buffer_type_name` is set where the buffer type is not called
    like the device. `quantized_row_padding` is 1 where rows are not padded. `serves`
    names the backend behind an RPC server where it is known not to be the CPU.
    """

    name: str
    device_prefix: str
    is_numbered: bool = True
    buffer_type_name: str | None = None
    alignment_bytes: int
    quantized_row_padding: int = 1
    quantized_extra_bytes: int = 0
    max_buffer_bytes: int | None = None
    offloads_ops: bool = False
    has_pinned_host_buffer: bool = False
    supports_pipeline: bool = False
    flash_attn_copies_cache: bool = False
    """Flash attention keeps F16 copies of a layer's other-typed cache in the compute buffer
    (`ggml_cuda_flash_attn_ext_get_alloc_size`, ggml/src/ggml-cuda/fattn.cu)."""

    supports_mmap: bool = True
    serves: str = ""

    def padded_bytes(self, type_: GGMLType, shape: Sequence[int]) -> int:
        """Bytes one weight or cache tensor takes in this backend's buffer.

        Mirrors `GGML_PAD(ggml_backend_buft_get_alloc_size(buft, t), alignment)` in
        `ggml_backend_buft_alloc_buffer_n_plan` (ggml/src/ggml-backend.cpp, b11434),
        which `ggml_backend_alloc_ctx_tensors_from_buft` sums. The padding of
        quantised rows is that of `ggml_backend_cuda_buffer_type_get_alloc_size`:
        it is added once per tensor, behind the last row, not once per row.
        """
        n_bytes = tensor_bytes(type_, shape)
        if type_.is_quantized and shape:
            rest = shape[0] % self.quantized_row_padding
            if rest:
                n_bytes += row_bytes(type_, self.quantized_row_padding - rest)
            n_bytes += self.quantized_extra_bytes
        return -(-n_bytes // self.alignment_bytes) * self.alignment_bytes


# fmt: off
CPU: Final = Backend(name="CPU", device_prefix="CPU", is_numbered=False, alignment_bytes=32)
_CUDA: Final = Backend(
    name="CUDA", device_prefix="CUDA", alignment_bytes=128, quantized_row_padding=512,
    offloads_ops=True, has_pinned_host_buffer=True, supports_pipeline=True,
    flash_attn_copies_cache=True,
)
_ROWS: Final = (
    _CUDA,
    replace(_CUDA, name="ROCm", device_prefix="ROCm"),
    replace(_CUDA, name="MUSA", device_prefix="MUSA"),
    # minStorageBufferOffsetAlignment is the driver's; Vulkan requires it to be at most 256
    Backend(
        name="Vulkan", device_prefix="Vulkan", alignment_bytes=256, max_buffer_bytes=GIB,
        offloads_ops=True, has_pinned_host_buffer=True, supports_pipeline=True,
    ),
    replace(_CUDA, name="SYCL", device_prefix="SYCL", flash_attn_copies_cache=False),
    Backend(
        name="Metal", device_prefix="MTL", alignment_bytes=32,
        offloads_ops=True, supports_pipeline=True,
    ),
    # what ggml-rpc-server answers when it serves a CPU; see rpc_backend for others
    Backend(name="RPC", device_prefix="RPC", alignment_bytes=32, supports_pipeline=True),
    # CL_DEVICE_MEM_BASE_ADDR_ALIGN is the driver's; 128 bytes on Adreno
    Backend(
        name="OpenCL", device_prefix="GPUOpenCL", is_numbered=False, buffer_type_name="OpenCL",
        alignment_bytes=128, quantized_extra_bytes=4 * 128, supports_mmap=False,
    ),
    Backend(
        name="CANN", device_prefix="CANN", alignment_bytes=128, quantized_row_padding=512,
        offloads_ops=True, has_pinned_host_buffer=True,
    ),
    # minStorageBufferOffsetAlignment again; WebGPU's own default limit is 256
    Backend(name="WebGPU", device_prefix="WebGPU", is_numbered=False, alignment_bytes=256),
)
# fmt: on

BACKENDS: Final = {backend.name: backend for backend in (CPU, *_ROWS)}


def rpc_backend(served: Backend) -> Backend:
    """The RPC backend in front of a server whose device is of the `served` kind.

    Mirrors `ggml_backend_rpc_buffer_type_get_alloc_size` (ggml/src/ggml-rpc/ggml-rpc.cpp,
    b11434): alignment and buffer limit are the server's; the size of a weight is asked
    of the server only for quantised tensors with `ne[0] % 512 != 0`, everything else
    counts `ggml_nbytes`. What a server adds to every quantised tensor (OpenCL) is
    therefore not seen by the client.
    """
    return replace(
        BACKENDS["RPC"],
        alignment_bytes=served.alignment_bytes,
        quantized_row_padding=served.quantized_row_padding,
        max_buffer_bytes=served.max_buffer_bytes,
        serves="" if served is CPU else served.name,
    )


def backend_of(device_name: str) -> tuple[Backend, str]:
    """The backend of a device and the device's name as llama.cpp spells it.

    Case is ignored, as in `ggml_backend_dev_by_name`. Raises DeviceError for a
    name no layer-owning backend gives its devices.
    """
    folded = device_name.lower()
    for backend in _ROWS:
        prefix = backend.device_prefix
        number = folded.removeprefix(prefix.lower())
        if number == folded:
            continue
        if backend.is_numbered and number.isascii() and number.isdigit() and len(number) <= 3:
            return backend, f"{prefix}{int(number)}"
        if not backend.is_numbered and not number:
            return backend, prefix
    if folded == "metal":  # the name of the only Metal device before several were supported
        return BACKENDS["Metal"], "Metal"
    known = ", ".join(b.device_prefix + ("0" if b.is_numbered else "") for b in _ROWS)
    raise DeviceError(
        f"{device_name!r} is not a llama.cpp device; names look like {known}"
        " (llama-server --list-devices prints yours)"
    )
