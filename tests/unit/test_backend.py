"""Backend traits and the padding of tensors."""

from __future__ import annotations

import pytest

from offload.backend import BACKENDS, CPU, Backend, backend_of, rpc_backend
from offload.errors import DeviceError
from offload.ggml import TYPES_BY_NAME, tensor_bytes


@pytest.mark.parametrize(
    ("name", "backend", "canonical"),
    [
        ("CUDA0", "CUDA", "CUDA0"),
        ("cuda12", "CUDA", "CUDA12"),
        ("ROCm1", "ROCm", "ROCm1"),
        ("MUSA0", "MUSA", "MUSA0"),
        ("Vulkan0", "Vulkan", "Vulkan0"),
        ("SYCL3", "SYCL", "SYCL3"),
        ("MTL0", "Metal", "MTL0"),
        ("Metal", "Metal", "Metal"),
        ("RPC0", "RPC", "RPC0"),
        ("GPUOpenCL", "OpenCL", "GPUOpenCL"),
        ("CANN0", "CANN", "CANN0"),
        ("WebGPU", "WebGPU", "WebGPU"),
    ],
)
def test_backend_of_device_names(name: str, backend: str, canonical: str) -> None:
    """Every name llama.cpp gives a layer-owning device leads to its backend, in any case."""
    found, spelled = backend_of(name)
    assert found is BACKENDS[backend]
    assert spelled == canonical


@pytest.mark.parametrize(
    "name", ["", "CPU", "CUDA", "CUDA-1", "CUDA0000", "cuda٣", "CUDA0 ", "HTP0", "BLAS", "RPC0[x]"]
)
def test_backend_of_refuses_what_is_no_card(name: str) -> None:
    """Names that own no layers or that llama.cpp never prints are refused with examples."""
    with pytest.raises(DeviceError, match="CUDA0"):
        backend_of(name)


@pytest.mark.parametrize(
    ("backend", "type_name", "shape", "expected"),
    [
        # 130 floats are 520 bytes: 17 x 32, 5 x 128
        ("CPU", "F32", (130,), 544),
        ("RPC", "F32", (130,), 544),
        ("Metal", "F32", (130,), 544),
        ("CUDA", "F32", (130,), 640),
        ("CUDA", "F32", (128,), 512),
        # 768 columns are 512 short of 1024 by 256: one block of Q4_K more, once for all rows
        ("CPU", "Q4_K", (768, 100), 43_200),
        ("CUDA", "Q4_K", (768, 100), 43_392),
        ("ROCm", "Q4_K", (768, 100), 43_392),
        ("SYCL", "Q4_K", (768, 100), 43_392),
        ("CANN", "Q4_K", (768, 100), 43_392),
        # 2880 columns of MXFP4 (gpt-oss): 192 to go, 6 blocks of 17 bytes
        ("CUDA", "MXFP4", (2880, 2880, 32), 2880 * 2880 * 32 // 32 * 17 + 128),
        # whole rows of 512: nothing to add
        ("CUDA", "Q4_K", (4096, 64), 4096 // 256 * 144 * 64),
        # one-element blocks are never padded to 512
        ("CUDA", "F16", (100, 3), 640),
        # OpenCL keeps four gaps for every quantised tensor
        ("OpenCL", "Q4_0", (256, 4), 576 + 512 + 64),
        ("OpenCL", "F32", (64,), 256),
    ],
)
def test_padded_bytes(backend: str, type_name: str, shape: tuple[int, ...], expected: int) -> None:
    """get_alloc_size and the alignment of each backend, worked out by hand."""
    assert BACKENDS[backend].padded_bytes(TYPES_BY_NAME[type_name], shape) == expected


def test_padded_bytes_of_nothing() -> None:
    """A tensor without elements takes no place where nothing is added."""
    assert CPU.padded_bytes(TYPES_BY_NAME["F32"], (4, 0)) == 0


def test_rpc_backend_pads_as_its_server() -> None:
    """A server with a CUDA card answers with CUDA's alignment and padding; it stays RPC."""
    rpc = rpc_backend(BACKENDS["CUDA"])
    q4_k = TYPES_BY_NAME["Q4_K"]
    assert rpc.padded_bytes(q4_k, (768, 100)) == BACKENDS["CUDA"].padded_bytes(q4_k, (768, 100))
    assert (rpc.name, rpc.serves, rpc.offloads_ops) == ("RPC", "CUDA", False)
    assert rpc_backend(CPU) == BACKENDS["RPC"]


def test_traits_that_change_plans() -> None:
    """Who stages host experts, who pins host memory, who may pipeline: as read in b11434."""

    def names(trait: str) -> set[str]:
        return {b.name for b in BACKENDS.values() if getattr(b, trait)}

    assert names("offloads_ops") == {"CUDA", "ROCm", "MUSA", "Vulkan", "SYCL", "Metal", "CANN"}
    assert names("has_pinned_host_buffer") == {"CUDA", "ROCm", "MUSA", "Vulkan", "SYCL", "CANN"}
    assert names("supports_pipeline") == {
        "CUDA", "ROCm", "MUSA", "Vulkan", "SYCL", "Metal", "RPC",
    }  # fmt: skip
    assert {b.name for b in BACKENDS.values() if not b.supports_mmap} == {"OpenCL"}


def test_alignments_are_powers_of_two() -> None:
    """Callers may round up with a mask."""
    for backend in BACKENDS.values():
        assert backend.alignment_bytes & (backend.alignment_bytes - 1) == 0


def test_padding_never_shrinks() -> None:
    """No backend takes less than the tensor itself, for any known type."""
    fixed = Backend(name="x", device_prefix="x", alignment_bytes=1)
    for type_ in TYPES_BY_NAME.values():
        if not type_.is_known:
            continue
        shape = (type_.block_size * 3, 5)
        assert fixed.padded_bytes(type_, shape) == tensor_bytes(type_, shape)
        for backend in BACKENDS.values():
            assert backend.padded_bytes(type_, shape) >= tensor_bytes(type_, shape)
