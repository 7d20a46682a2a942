"""The words for old builds, judged by one: an old llama-server that loads what we tell it.

OFFLOAD_OLD_BIN_DIR names a folder with llama-server and llama-bench of spring 2025 or so (the
source in PyPI's llama-cpp-python 0.3.9, built with -DLLAMA_BUILD_SERVER=ON, say).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from offload.emit import Launch, emit_bench_args, emit_server_args, make_launch
from offload.emit.env import emit_env
from offload.emit.target import Target
from offload.engine.binaries import read_build
from offload.engine.ports import reserved_ports
from offload.engine.process import started
from offload.errors import UsageError
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.source import read_header
from tests.emit_readers import read_environment_file
from tests.llama.server import await_health
from tuner.synth import write_random


@pytest.fixture(scope="module")
def old_server() -> Path:
    """An old llama-server."""
    folder = os.environ.get("OFFLOAD_OLD_BIN_DIR")
    if not folder:
        pytest.skip("OFFLOAD_OLD_BIN_DIR is not set")
    return Path(folder) / "llama-server"


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Everything on the host, with every switch whose words have changed."""
    path = tmp_path_factory.mktemp("old") / "moe.gguf"
    write_random(path, arch="qwen3moe", n_layer=4, quant="Q8_0", n_vocab=1024)
    model = make_model(read_header(path))
    plan = make_plan(model, (), PlanOptions(n_ctx=512, n_ubatch=64))
    return replace(
        make_launch(plan),
        n_cpu_moe=2,
        kv_unified=True,
        n_parallel=2,
        flash_attn=True,
        offload_kqv=False,
        load_mode="none",
    )


def loads(argv: Sequence[str], log_path: Path, variables: Mapping[str, str]) -> bool:
    """True when the server answers; its port is not reserved, which old servers do not share."""
    with reserved_ports(1) as (port,):
        number = str(port.number)
    with (
        log_path.open("wb") as log,
        started(
            [*argv, "-v", "-t", "1", "--host", "127.0.0.1", "--port", number],
            python=False,
            stdin=False,
            stderr=log,
            stdout=log,
            environment=variables,
        ) as process,
    ):
        return await_health(f"http://127.0.0.1:{number}/health", process) is None


def test_its_help_tells_what_it_is(old_server: Path) -> None:
    """No -fit and no --load-mode, -fa a switch, and a partial -ngl of the old kind."""
    build = read_build(old_server)
    assert build.flags is not None and not build.flags & {"-fit", "--load-mode", "-ncmoe"}
    assert build.hints["-fa"] == "" and build.counts_output_last and not build.is_ik


def test_it_loads_what_we_tell_it(launch: Launch, old_server: Path, tmp_path: Path) -> None:
    """The emitted flags are accepted, the model is loaded and the rules are obeyed."""
    build = read_build(old_server)
    argv = emit_server_args(launch, str(old_server), build=build)
    assert {"-fa", "--no-mmap", "-ot"} <= set(argv)
    assert loads(argv, tmp_path / "log", {}), (tmp_path / "log").read_text()[-2000:]
    said = (tmp_path / "log").read_text()
    assert re.search(r"flash_attn += 1", said) and "ffn_up_exps" in said
    assert not loads(emit_server_args(launch, str(old_server)), tmp_path / "log", {})


def test_it_loads_what_its_environment_says(
    launch: Launch, old_server: Path, tmp_path: Path
) -> None:
    """The variables its help names are the ones it reads."""
    plain = replace(launch, n_cpu_moe=None)
    text = emit_env(plain, Target(build=read_build(old_server)))
    variables = read_environment_file(text)
    assert loads([str(old_server)], tmp_path / "log", variables)
    assert re.search(r"flash_attn += 1", (tmp_path / "log").read_text())
    with pytest.raises(UsageError, match="-ot"):
        emit_env(launch, Target(build=read_build(old_server)))


def test_its_llama_bench_runs_the_plan(launch: Launch, old_server: Path) -> None:
    """Numbers for -fa, -mmp for the load mode, rules for -ncmoe."""
    bench = old_server.with_name("llama-bench")
    argv = emit_bench_args(launch, str(bench), read_build(bench))
    done = subprocess.run(
        [*argv, "-p", "8", "-n", "1", "-r", "1", "-t", "1", "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sample = json.loads(done.stdout)[0]
    assert sample["flash_attn"] is True and sample["use_mmap"] is False
