"""ggml itself judges how its CPU buffers pad tensors of every type."""

from __future__ import annotations

import ctypes
import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from offload.backend import CPU
from offload.ggml import TYPES, GGMLType


class _InitParams(ctypes.Structure):
    """struct ggml_init_params (ggml/include/ggml.h)."""

    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


@pytest.fixture(scope="module")
def ggml() -> ctypes.CDLL:
    """The ggml libraries inside llama-cpp-python, loaded without importing it."""
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        pytest.skip("llama-cpp-python is not installed")
    libraries = sorted((Path(spec.origin).parent / "lib").glob("libggml-base.so"))
    if not libraries:
        pytest.skip("llama-cpp-python has no separate ggml library here")
    library = ctypes.CDLL(str(libraries[0]))
    for name in ("ggml_init", "ggml_new_tensor", "ggml_backend_cpu_buffer_type"):
        getattr(library, name).restype = ctypes.c_void_p
    sizes = ("ggml_backend_buft_get_alignment", "ggml_backend_buft_get_alloc_size")
    for name in (*sizes, "ggml_backend_alloc_ctx_tensors_from_buft_size"):
        getattr(library, name).restype = ctypes.c_size_t
    library.ggml_init.argtypes = [_InitParams]
    library.ggml_free.argtypes = [ctypes.c_void_p]
    return library


def _tensor(ggml: ctypes.CDLL, context: int, type_: GGMLType, shape: tuple[int, ...]) -> int:
    ne = (ctypes.c_int64 * len(shape))(*shape)
    tensor: int = ggml.ggml_new_tensor(ctypes.c_void_p(context), type_.id, len(shape), ne)
    return tensor


def test_cpu_buffers(ggml: ctypes.CDLL) -> None:
    """One tensor or many: ggml's buffer size is the sum of our padded bytes, for every type."""
    random.seed(2)
    buft = ctypes.c_void_p(ggml.ggml_backend_cpu_buffer_type())
    assert ggml.ggml_backend_buft_get_alignment(buft) == CPU.alignment_bytes
    context = ggml.ggml_init(_InitParams(1 << 20, None, True))
    expected = 0
    for type_ in TYPES.values():
        if not type_.is_known:
            continue
        for n_dims in (1, 2, 3):
            rest = tuple(random.randint(1, 9) for _ in range(n_dims - 1))
            shape = (type_.block_size * random.randint(1, 7), *rest)
            tensor = ctypes.c_void_p(_tensor(ggml, context, type_, shape))
            padded = CPU.padded_bytes(type_, shape)
            assert 0 <= padded - ggml.ggml_backend_buft_get_alloc_size(buft, tensor) < 32
            expected += padded
    total = ggml.ggml_backend_alloc_ctx_tensors_from_buft_size(ctypes.c_void_p(context), buft)
    ggml.ggml_free(context)
    assert total == expected
