"""Which build of llama.cpp is a libllama: llama-cpp-python's own, or one in a folder?

So that a plan can be made, or priced, by the rules of the very library that is asked about it:
`replace(options, llama_build=library_build(folder))`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from offload.engine.binaries import build_number, find_binary
from offload.errors import LlamaCppError

_BUILD_OF_VERSION: Final = {"0.3.36": 11312}
"""What releases of llama-cpp-python embed: the build of the commit their changelog names."""

_PROGRAMS: Final = ("llama-server", "llama-cli", "llama-bench", "llama-fit-params")


def library_build(folder: Path | None = None) -> int | None:
    """The build of the libllama in `folder`, by a program beside it; None where nobody says.

    Without a folder that of llama-cpp-python's own, or of the one that its
    `LLAMA_CPP_LIB_PATH` names.
    """
    if folder is None and (named := os.environ.get("LLAMA_CPP_LIB_PATH")):
        folder = Path(named)
    if folder is None:
        return _packaged_build()
    for name in _PROGRAMS:
        program = find_binary(name, folder)
        if program is not None:
            try:
                return build_number(program)
            except LlamaCppError:
                continue
    return None


def _packaged_build() -> int | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return _BUILD_OF_VERSION.get(version("llama-cpp-python"))
    except PackageNotFoundError:
        return None
