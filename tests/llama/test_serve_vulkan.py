"""`offload serve` on cards that take host operations over and have pinned host memory.

Software Vulkan, where test_vulkan.py finds a llama-server that knows it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from offload.engine.process import run_program
from offload.errors import LlamaCppError
from offload.saved import read_plan
from offload.units import MIB
from tests.llama.serving import serving
from tests.llama.test_vulkan import N_CARDS, candidates, environment
from tuner.synth import write_random

ILLEGAL = "SIGILL"


@pytest.fixture(scope="module")
def server() -> Path:
    """A `llama-server` that sees the software cards."""
    for program in candidates():
        try:
            ended = run_program(
                [str(program), "--list-devices"], timeout_s=30, environment=environment()
            )
        except LlamaCppError:
            continue
        if b"Vulkan2:" in ended.stdout:
            return program
    pytest.skip("no llama-server here knows Vulkan; see test_vulkan.py")


@pytest.mark.parametrize("n_cards", [2, N_CARDS])
def test_served_on_vulkan_cards_as_planned(server: Path, tmp_path: Path, n_cards: int) -> None:
    """It answers; weights and context equal the plan's in MiB, compute within 25 % or 4 MiB."""
    model = write_random(
        tmp_path / "moe.gguf", arch="qwen3moe", quant="Q8_0",
        n_layer=6, n_embd=512, n_ff_exp=256, n_expert=32, n_vocab=1024,
    )  # fmt: skip
    argv = [sys.executable, "-m", "offload", "plan", str(model), "-o", "json", "-c", "1024"]
    argv += ["-ub", "64", "--margin", "1MiB", "--host-ram", "8GiB"]
    for i in range(n_cards):
        argv += ["--gpu", f"Vulkan{i}:{72 // n_cards}MiB"]
    done = subprocess.run(argv, capture_output=True, timeout=120, check=True)
    assert json.loads(done.stdout)["rules"]
    (tmp_path / "plan.json").write_bytes(done.stdout)
    plan = read_plan(str(tmp_path / "plan.json"))
    args = [str(tmp_path / "plan.json"), "--llama-server", str(server)]
    with serving(tmp_path / "run", *args, env=environment()) as run:
        run.wait(lambda: "http" in run.out or ILLEGAL in run.err, "an address")
        if ILLEGAL in run.err:
            pytest.skip(f"{server} is built for another processor; see software_vulkan.py")
        assert run.complete()["tokens_predicted"] == 4
        assert run.end() == 0
        log = run.log()
    rows = {row.name: row for row in log.table}
    for device, memory in zip(plan.devices, plan.memory.devices, strict=True):
        row = rows[device.name]
        assert row.model_mib == memory.model_bytes // MIB
        assert row.context_mib == memory.context_bytes // MIB
        compute = log.bytes_of("compute")[device.buffer_type]
        assert compute == pytest.approx(memory.compute_bytes, rel=0.25, abs=4 * MIB)
