"""How does a child get at libllama through llama-cpp-python, quickly and safely?

Importing `llama_cpp` pulls in numpy, jinja2 and a server's worth of modules.
We need only its ctypes mirror of llama.h, `llama_cpp.llama_cpp`, which always
fits the library shipped beside it; so the package's `__init__` is skipped. The
mirror is still checked against the library, since `LLAMA_CPP_LIB_PATH` may
point at another build. Imported by children only.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import platform
import sys
import types
from typing import Any, Final

from offload.errors import LlamaCppError

_PACKAGE: Final = "llama_cpp"
_INSTALL_HINT: Final = (
    "install it with RPC on: CMAKE_ARGS=-DGGML_RPC=ON pip install llama-cpp-python"
)
_P: Final = ctypes.c_void_p
_S: Final = ctypes.c_char_p
_SIZE: Final = ctypes.c_size_t
_PROTOTYPES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "ggml_backend_buffer_free": (None, (_P,)),
    "ggml_backend_buffer_get_type": (_P, (_P,)),
    "ggml_backend_buft_get_device": (_P, (_P,)),
    "ggml_backend_buft_is_host": (ctypes.c_bool, (_P,)),
    "ggml_backend_buft_name": (_S, (_P,)),
    "ggml_backend_cpu_buffer_from_ptr": (_P, (_P, _SIZE)),
    "ggml_backend_cpu_buffer_type": (_P, ()),
    "ggml_backend_dev_backend_reg": (_P, (_P,)),
    "ggml_backend_dev_buffer_type": (_P, (_P,)),
    "ggml_backend_dev_by_type": (_P, (ctypes.c_int,)),
    "ggml_backend_dev_count": (_SIZE, ()),
    "ggml_backend_dev_get": (_P, (_SIZE,)),
    "ggml_backend_dev_host_buffer_type": (_P, (_P,)),
    "ggml_backend_dev_memory": (None, (_P, ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE))),
    "ggml_backend_dev_name": (_S, (_P,)),
    "ggml_backend_dev_offload_op": (ctypes.c_bool, (_P, _P)),
    "ggml_backend_dev_type": (ctypes.c_int, (_P,)),
    "ggml_backend_load_all": (None, ()),
    "ggml_backend_reg_by_name": (_P, (_S,)),
    "ggml_backend_reg_dev_count": (_SIZE, (_P,)),
    "ggml_backend_reg_dev_get": (_P, (_P, _SIZE)),
    "ggml_backend_reg_get_proc_address": (_P, (_P, _S)),
    "ggml_get_name": (_S, (_P,)),
    "ggml_nbytes": (_SIZE, (_P,)),
    "ggml_nrows": (ctypes.c_int64, (_P,)),
    "ggml_op_desc": (_S, (_P,)),
    "ggml_op_name": (_S, (ctypes.c_int,)),
}
CPU_DEVICE: Final = 0
"""`GGML_BACKEND_DEVICE_TYPE_CPU`."""


class Library:
    """libllama with its ggml: `api` is the ctypes mirror of llama.h, the rest plain calls."""

    def __init__(self) -> None:
        self.api: Any = _import_api()
        self.handle: ctypes.CDLL = self.api._lib
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self.handle, name)
            function.restype, function.argtypes = result, arguments
        # dlsym through libllama's handle also finds what its dependencies export; loading
        # libggml by file name could map a second copy, since wheels hold copies, not links
        self.ggml: Any = self.handle
        self._check_structs()
        self.api.llama_backend_init()
        if not self.ggml.ggml_backend_dev_count():
            self.ggml.ggml_backend_load_all()

    @property
    def cpu(self) -> int:
        """The CPU device."""
        return int(self.ggml.ggml_backend_dev_by_type(CPU_DEVICE))

    def device_name(self, device: int) -> str:
        """`CUDA0`, `RPC1`, `CPU`."""
        return str(self.ggml.ggml_backend_dev_name(device).decode())

    def buffer_type_name(self, buffer_type: int) -> str:
        """What `-ot` calls it."""
        return str(self.ggml.ggml_backend_buft_name(buffer_type).decode())

    def symbol(self, name: str) -> Any | None:
        """An exported function by its (mangled) name, or None where this build has none."""
        return getattr(self.handle, name, None)

    def rpc_function(self, name: str, result: Any, *arguments: Any) -> Any:
        """A function of the RPC backend; raises LlamaCppError in builds without RPC."""
        reg = self.ggml.ggml_backend_reg_by_name(b"RPC")
        address = reg and self.ggml.ggml_backend_reg_get_proc_address(reg, name.encode())
        if not address:
            raise LlamaCppError(f"this llama-cpp-python has no RPC backend; {_INSTALL_HINT}")
        return ctypes.CFUNCTYPE(result, *arguments)(address)

    def _check_structs(self) -> None:
        """Refuse a library whose parameter structs are not those of the ctypes mirror."""
        pairs = (
            (self.api.llama_model_params, "llama_model_default_params"),
            (self.api.llama_context_params, "llama_context_default_params"),
        )
        for struct, function in pairs:
            written = _bytes_returned(self.handle, function)
            # the library does not write the padding behind the last field
            if written is not None and not 0 <= ctypes.sizeof(struct) - written < 8:
                raise LlamaCppError(
                    f"{function} returns {written} bytes, but llama-cpp-python expects"
                    f" {ctypes.sizeof(struct)}; is LLAMA_CPP_LIB_PATH set to another build?"
                )


def is_x86_64_linux() -> bool:
    """Where a hidden result pointer is the first argument and libstdc++ the C++ library."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


def _import_api() -> Any:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise LlamaCppError(f"llama-cpp-python is not installed; {_INSTALL_HINT}")
    package = types.ModuleType(_PACKAGE)
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules[_PACKAGE] = package
    try:
        return importlib.import_module(f"{_PACKAGE}.llama_cpp")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise LlamaCppError(f"llama-cpp-python cannot be loaded: {error}") from None


def _bytes_returned(handle: ctypes.CDLL, name: str) -> int | None:
    """How many bytes a function returns by value; None where the ABI hides it from ctypes.

    The System V ABI passes a large result's address as first argument: two runs
    over different fillings agree exactly on the bytes that were written.
    """
    if not is_x86_64_linux():
        return None
    function = ctypes.CFUNCTYPE(_P, _P)((name, handle))
    seen = []
    for fill in (b"\x00", b"\xff"):
        buffer = ctypes.create_string_buffer(fill * 4096, 4096)
        function(ctypes.addressof(buffer))
        seen.append(buffer.raw)
    return 1 + max(i for i in range(4096) if seen[0][i] == seen[1][i])
