"""[edge] Is the model's header the recorded one, whatever its file is called?"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from offload.gguf import GGUFHeader
from offload.model import Model
from tuner.check.outcome import Finding

_PART: Final = re.compile(r"(.+)-\d{5,}-of-(\d{5,}\.gguf)", re.ASCII | re.DOTALL)
_TOLD: Final = ("file", "arch", "n_layer", "size_bytes", "n_tensors")


def header_facts(header: GGUFHeader, model: Model) -> dict[str, Any]:
    """What is recorded of a header, its digest last.

    The digest is of the bytes before the (first) file's tensor data, vocabulary and all, and
    of every tensor's name, type and shape.
    """
    path = header.path
    match = _PART.fullmatch(path)
    if header.n_files > 1 and match:
        path = f"{match[1]}-00001-of-{match[2]}"
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        digest.update(file.read(header.data_offset_bytes))
    for tensor in header.tensors:
        digest.update(f"{tensor.name}\0{tensor.type.name}\0{tensor.shape}\n".encode())
    return {
        "file": os.path.basename(path),
        "arch": model.arch,
        "n_layer": model.n_layer,
        "size_bytes": model.size_bytes,
        "n_tensors": len(header.tensors),
        "header_sha256": digest.hexdigest(),
    }


def header_findings(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Finding, ...]:
    """One finding where the digests differ, with the figures that do."""
    if was.get("header_sha256") == now["header_sha256"]:
        return ()
    told = [
        f"{key} was {was.get(key)} and is {now[key]}" for key in _TOLD if was.get(key) != now[key]
    ]
    what = "; ".join(told) or "same size and layers, other metadata or tensors"
    text = f"the header of {now['file']} is another than was recorded: {what}"
    return (Finding(code="header-changed", text=text),)
