"""The arguments for ik_llama.cpp, judged by it: its llama-server says which layer goes where.

OFFLOAD_IK_BIN_DIR names a folder with its llama-server and rpc-server, built with
-DGGML_RPC=ON (from PyPI's ik-llama-cpp-python, say). RPC cards stand for the cards of a plan
without RPC: they go on the command line beside ours.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from offload.device import devices_from_flags
from offload.emit import make_launch
from offload.emit.ik import emit_ik_args
from offload.engine.binaries import read_build
from offload.engine.ports import reserved_ports
from offload.engine.process import started
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.units import GIB
from tuner.synth import write_shape

N_CARDS = 3


@pytest.fixture(scope="module")
def ik_server() -> Path:
    """ik_llama.cpp's llama-server."""
    folder = os.environ.get("OFFLOAD_IK_BIN_DIR")
    if not folder:
        pytest.skip("OFFLOAD_IK_BIN_DIR is not set")
    return Path(folder) / "llama-server"


@pytest.fixture
def endpoints(ik_server: Path) -> Iterator[str]:
    """Three of its own RPC servers; llama.cpp's speak another protocol.

    For one test each: they do not always outlive a client that is killed.
    """
    with ExitStack() as stack, reserved_ports(N_CARDS) as ports:
        for port in ports:
            argv = [str(ik_server.with_name("rpc-server")), "-cpu", "-t", "1"]
            argv += ["-H", "127.0.0.1", "-p", str(port.number)]
            stack.enter_context(
                started(
                    argv,
                    python=False,
                    stdin=False,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        for port in ports:
            _await_listening(port.number)
        yield ",".join(port.endpoint for port in ports)


def _await_listening(port: int) -> None:
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)


def make(path: Path, shares: tuple[float, ...], n_ctx: int = 4096) -> Plan:
    """A plan for three large cards, shared out as told."""
    options = PlanOptions(n_ctx=n_ctx, tensor_split=shares)
    model = make_model(read_header(path))
    return make_plan(model, devices_from_flags(N_CARDS, (512 * GIB,)), options)


def log_until(words: str, argv: list[str], path: Path) -> str:
    """What its llama-server says until `words`; what comes then takes memory that nobody has."""
    with reserved_ports(1) as (port,):
        number = str(port.number)  # its HTTP server does not share a port with who reserves it
    said = ""
    with (
        path.open("wb") as log,
        started(
            [*argv, "--port", number], python=False, stdin=False, stdout=log, stderr=log
        ) as process,
    ):
        deadline_s = time.monotonic() + 30
        while words not in said and time.monotonic() < deadline_s:
            if process.poll() is not None:
                break
            time.sleep(0.05)
            said = path.read_text(errors="replace")
    return path.read_text(errors="replace")


@pytest.mark.parametrize("n_ctx", [4096, 65536])
@pytest.mark.parametrize("shares", [(1, 1, 1), (1, 4, 2), (5, 1, 3), (1, 1, 9)])
@pytest.mark.parametrize(
    "name", ["mistral-small-4-119b", "gpt-oss-120b", "glm-4.5-air", "qwen3-next-80b-a3b"]
)
def test_layers_go_where_the_plan_has_them(
    name: str,
    shares: tuple[float, ...],
    n_ctx: int,
    ik_server: Path,
    endpoints: str,
    tmp_path: Path,
) -> None:
    """In a dry run of ik_llama.cpp every layer's default device is the plan's owner."""
    plan = make(write_shape(name, tmp_path / "m.gguf"), shares, n_ctx)
    argv = emit_ik_args(make_launch(plan), str(ik_server))
    # without -dev a build for the CPU counts that as one card more
    cards = ",".join(f"RPC0[{endpoint}]" for endpoint in endpoints.split(","))
    argv = (*argv, "--rpc", endpoints, "-dev", cards, "--no-mmap", "--dry-run", "-t", "1")
    said = log_until("ggml ctx size", list(argv), tmp_path / "log")
    needed = re.search(r"Memory required for model tensors \+ cache: (\d+)", said)
    there = re.search(r"Memory available on all devices - compute: (\d+)", said)
    if needed and there and int(needed[1]) > int(there[1]):
        pytest.skip("the cards are as large as this machine's memory, and it does not say then")
    seen = dict(re.findall(r"Setting default device in layer +(\d+) to (\d+)", said))
    owners = {str(il): str(owner) for il, owner in enumerate(plan.split.owners)}
    assert seen == owners, said[-2000:]


def test_its_help_is_told_from_llama_cpps(ik_server: Path, llama_server: Path) -> None:
    """Given either program, the right words are chosen; and it knows all that we write."""
    build = read_build(ik_server)
    assert build.is_ik and not read_build(llama_server).is_ik


def test_it_takes_every_flag_that_we_write(ik_server: Path, small_moe: Path) -> None:
    """Its parser accepts the whole command line: with --version last it says so and ends."""
    launch = replace(
        make_launch(make(small_moe, (1, 1, 1))),
        n_batch=256,
        n_parallel=2,
        n_cpu_moe=2,
        type_k="q8_0",
        type_v="q8_0",
        flash_attn=True,
        offload_kqv=False,
        op_offload=False,
        load_mode="mlock",
    )
    argv = emit_ik_args(launch, str(ik_server))
    done = subprocess.run(
        [*argv, "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0 and "version:" in done.stderr, done.stderr[-2000:]
    wrong = subprocess.run(
        [*argv, "--load-mode", "none"], capture_output=True, text=True, check=False, timeout=60
    )
    assert wrong.returncode != 0
