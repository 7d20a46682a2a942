"""The launch as a Docker Compose file around llama.cpp's own container image.

Images and their entry point: .devops/*.Dockerfile (b11434), which listen on all of the
container's addresses; the port is published on 127.0.0.1 unless the target says
otherwise. The model's folder is mounted read-only, because the parts of a split model lie
together. Compose replaces variables in every string, so `$` is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from posixpath import basename, dirname
from typing import Final

from offload.emit.launch import Launch
from offload.emit.settings import server_settings
from offload.emit.target import (
    DEFAULT_PORT,
    LOOPBACK,
    Target,
    check_absolute,
    check_text,
    load_wait_s,
    model_name,
)
from offload.emit.yaml_text import quote_yaml
from offload.errors import UsageError

IMAGE: Final = "ghcr.io/ggml-org/llama.cpp"
_FOLDER: Final = "/models"
_LOOPBACKS: Final = ("127.", "localhost", "[::1]", "::1")
_NVIDIA: Final = """\
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: all
              capabilities: [gpu]
"""
_DRI: Final = '    devices: ["/dev/dri:/dev/dri"]\n'
_KFD: Final = '    devices: ["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"]\n'
_KINDS: Final = {
    "CUDA": ("server-cuda", _NVIDIA),
    "ROCm": ("server-rocm", _KFD),
    "Vulkan": ("server-vulkan", _DRI),
    "SYCL": ("server-intel", _DRI),
}


def emit_compose(launch: Launch, target: Target) -> str:
    """A Compose file with one service; UsageError for what a container cannot have."""
    if target.build.is_ik:
        raise UsageError("there is no container image of ik_llama.cpp here; emit args or systemd")
    check_absolute(launch)
    _check_rpc(launch)
    folder, file = dirname(launch.model_path), basename(launch.model_path)
    inside = replace(
        launch,
        model_path=f"{_FOLDER}/{file}",
        draft_path=_inside(launch.draft_path, folder),
        mmproj_path=_inside(launch.mmproj_path, folder),
    )
    tag, cards = _kind(launch)
    arguments = "".join(f"      - {_text(word)}\n" for word in _words(inside, target))
    return (
        "services:\n"
        "  llama-server:\n"
        f"    image: {_text(target.image or f'{IMAGE}:{tag}')}\n"
        "    restart: unless-stopped\n"
        "    ports:\n"
        f"      - {_text(_published(target))}\n"
        "    volumes:\n"
        "      - type: bind\n"
        f"        source: {_text(check_text(folder, 'a Compose file'))}\n"
        f"        target: {_FOLDER}\n"
        "        read_only: true\n"
        f"{cards}{_memlock(launch)}"
        "    healthcheck:\n"
        "      # seconds until the model must answer: by its size, on a slow disk\n"
        f"      start_period: {load_wait_s(launch)}s\n"
        "    command:\n"
        f"{arguments}"
    )


def _inside(path: str | None, folder: str) -> str | None:
    """Where a file beside the model lies in the container, whose only folder is the model's."""
    if path is not None and dirname(path) != folder:
        raise UsageError(f"{path}: a container sees the model's folder alone; put it there")
    return None if path is None else f"{_FOLDER}/{basename(path)}"


def _words(launch: Launch, target: Target) -> Iterator[str]:
    for setting in server_settings(launch, target.build):
        yield from setting.argv
    yield "--host"
    yield "0.0.0.0"
    yield "--port"
    yield str(DEFAULT_PORT)
    yield "--alias"
    yield model_name(launch, target)


def _text(text: str) -> str:
    return quote_yaml(text.replace("$", "$$"))


def _published(target: Target) -> str:
    host = target.host or LOOPBACK
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{host}:{target.port or DEFAULT_PORT}:{DEFAULT_PORT}"


def _memlock(launch: Launch) -> str:
    return "    ulimits: {memlock: -1}\n" if "mlock" in launch.load_mode else ""


def _kind(launch: Launch) -> tuple[str, str]:
    """Image tag and what gives the container the cards; NVIDIA where the plan names none."""
    if launch.n_gpu_layers == 0 or launch.devices == ("none",):
        return "server", ""
    names = {re.sub(r"\d+$", "", name) for name in launch.devices} - {"RPC"}
    if not launch.devices or names - set(_KINDS):
        return _KINDS["CUDA"]
    if len(names) > 1:
        raise UsageError(f"no container image of llama.cpp has {' and '.join(sorted(names))}")
    return _KINDS[names.pop()] if names else ("server", "")


def _check_rpc(launch: Launch) -> None:
    for endpoint in (launch.rpc or "").split(","):
        if endpoint.startswith(_LOOPBACKS):
            raise UsageError(
                f"--rpc {endpoint}: inside a container that is the container itself; plan with the"
                " server's address on the network"
            )
