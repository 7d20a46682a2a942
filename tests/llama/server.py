"""A llama-server that loads a model for real, for what its log says about it."""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from offload.engine.log import LoadLog, parse_log, telling_line
from offload.engine.ports import reserved_ports
from offload.engine.process import started

START_TIMEOUT_S = 300.0  # software Vulkan compiles its shaders first


def load_for_real(
    program: Path, args: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> LoadLog:
    """What llama-server logs while it loads, until it answers."""
    log_path = folder / "server.log"
    with reserved_ports(1) as (port,), log_path.open("wb") as log:
        argv = [str(program), "--host", "127.0.0.1", "--port", str(port.number), "-v", *args]
        with started(
            argv, python=False, stdin=False, stderr=log, stdout=log, environment=environment
        ) as process:
            exit_code = await_health(f"http://{port.endpoint}/health", process)
    lines = log_path.read_text(errors="replace").splitlines()
    if exit_code == 128 + signal.SIGILL:
        pytest.skip(f"{program} is built for another processor; see software_vulkan.py")
    assert exit_code is None, telling_line(lines)
    return parse_log(lines)


def await_health(url: str, process: subprocess.Popen[bytes]) -> int | None:
    """Wait until the server has loaded its model; its exit code if it ends before."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return None
        except OSError:
            time.sleep(0.1)
    return -1 if process.poll() is None else process.returncode
