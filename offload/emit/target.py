"""Where shall the launched server run and listen, and under which name?

Everything a configuration file says beside the launch itself. What is None is left
to llama.cpp (127.0.0.1:8080), or to the format's own default where a file needs one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from posixpath import basename, isabs
from typing import Final

from offload.emit.build import NEWEST, Build
from offload.emit.launch import Launch
from offload.emit.server import emit_server_args
from offload.errors import UsageError

LOOPBACK: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080
SLOWEST_LOAD_BYTES_PER_S: Final = 50_000_000
"""A model on a hard disk or over gigabit Ethernet; time-outs grow with the bytes to load."""
_LEAST_WAIT_S: Final = 120
_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One place to run: `program` None is the format's usual one."""

    program: str | None = None
    build: Build = NEWEST
    host: str | None = None
    port: int | None = None
    alias: str | None = None
    image: str | None = None

    def __post_init__(self) -> None:
        if self.port is not None and not 0 < self.port < 65536:
            raise UsageError(f"--port {self.port}: a port is a number from 1 to 65535")
        if self.host is not None and not re.fullmatch(r"[0-9A-Za-z.:_%\[\]-]+", self.host):
            raise UsageError(f"--host {self.host!r}: an address or a host name")
        if self.host is not None and self.host.startswith("-"):
            raise UsageError(f"--host {self.host!r}: an address or a host name")
        if self.alias is not None and not re.fullmatch(r"[^\x00-\x1f\x7f,]+", self.alias):
            raise UsageError(
                f"--alias {self.alias!r}: a name without commas and control characters"
            )
        if self.image is not None and not re.fullmatch(r"[0-9A-Za-z][\w./:@-]*", self.image, re.A):
            raise UsageError(f"--image {self.image!r}: a container image such as {_AN_IMAGE}")


_AN_IMAGE: Final = "ghcr.io/ggml-org/llama.cpp:server-cuda"


def server_argv(launch: Launch, target: Target) -> tuple[str, ...]:
    """llama-server's argv with where to listen and which name to answer to, where given."""
    argv = list(emit_server_args(launch, target.program or "llama-server", build=target.build))
    if target.host is not None:
        argv += ["--host", target.host]
    if target.port is not None:
        argv += ["--port", str(target.port)]
    if target.alias is not None:
        argv += ["--alias", target.alias]
    return tuple(argv)


def listening(target: Target) -> Target:
    """The target with llama.cpp's own address and port written out."""
    return replace(target, host=target.host or LOOPBACK, port=target.port or DEFAULT_PORT)


def model_name(launch: Launch, target: Target) -> str:
    """The alias, or the file's name without what every file of a model has."""
    if target.alias is not None:
        return target.alias
    stem = basename(launch.model_path).removesuffix(".gguf")
    name = re.sub(r"[^\w.+-]+", "-", _PART.sub("", stem), flags=re.A).strip("-.")
    return name or "model"


def load_wait_s(launch: Launch) -> int:
    """How long loading may take: by the bytes to read, never a fixed number."""
    return _LEAST_WAIT_S + sum(launch.layer_bytes) // SLOWEST_LOAD_BYTES_PER_S


def check_absolute(launch: Launch) -> None:
    """Refuse a relative path in a file that is read from some other folder."""
    if not isabs(launch.model_path):
        raise UsageError(
            f"{launch.model_path}: this file is read from another folder; give the whole path"
            " with --model"
        )
    for path in (launch.draft_path, launch.mmproj_path):
        if path is not None and not isabs(path):
            raise UsageError(
                f"{path}: this file is read from another folder; plan again with the whole path"
            )


def check_text(text: str, what: str, forbidden: str = "\0\n\r") -> str:
    """`text` where the format can hold it; UsageError names the first character it cannot."""
    for char in text:
        if char in forbidden or 0xD800 <= ord(char) <= 0xDFFF:
            shown = "a byte that is not UTF-8" if ord(char) > 0x7F else repr(char)
            raise UsageError(f"{what} cannot hold {shown}, which stands in {text!r}")
    return text
