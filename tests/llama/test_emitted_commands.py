"""The emitted command lines, accepted by the real programs."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from offload.device import parse_device
from offload.emit import emit_bench_args, emit_server_args, make_launch
from offload.emit.build import NEWEST
from offload.emit.settings import server_settings
from offload.engine.binaries import read_build, supported_flags
from offload.engine.virtual_cards import VirtualCard
from offload.errors import UsageError
from offload.model import make_model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.source import read_header
from offload.units import GIB, MIB


@pytest.fixture(scope="module")
def plan(small_moe: Path, cards: tuple[VirtualCard, ...]) -> Plan:
    """A small model that three small cards do not hold."""
    model = make_model(read_header(small_moe))
    options = PlanOptions(
        n_ctx=512,
        n_ubatch=64,
        margin_bytes=(MIB,),
        rpc=",".join(card.endpoint for card in cards),
        device_names=tuple(card.name for card in cards),
    )

    def planned(room_bytes: int, strategy: Strategy) -> Plan:
        devices = [parse_device(f"{c.name}[{c.endpoint}]:{room_bytes}") for c in cards]
        return make_plan(model, devices, replace(options, strategy=strategy))

    bare = planned(GIB, Strategy.ALL).memory.devices
    least = max(memory.total_bytes for memory in bare)
    made = planned(least + model.expert_bytes // 6 + 2 * MIB, Strategy.OWN)
    assert made.rules
    return made


def test_llama_bench_runs_the_plan(plan: Plan, llama_server: Path) -> None:
    """llama-bench takes the emitted shares, devices and rules, and measures."""
    bench = llama_server.with_name("llama-bench")
    if not bench.exists():
        pytest.skip("no llama-bench beside llama-server")
    argv = emit_bench_args(make_launch(plan), str(bench))
    done = subprocess.run(
        [*argv, "-p", "32", "-n", "2", "-r", "1", "-t", "1", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    samples = json.loads(done.stdout)
    assert len(samples) == 2
    assert samples[0]["tensor_buft_overrides"] != "none"


def test_llama_server_knows_every_flag(plan: Plan, llama_server: Path) -> None:
    """Only flags of the build's own --help are emitted, and none is missing."""
    known = supported_flags(llama_server)
    argv = emit_server_args(make_launch(plan), str(llama_server), known)
    assert argv == emit_server_args(make_launch(plan), str(llama_server))
    flags = [text for text in argv[1:] if text.startswith("-")]
    assert set(flags) <= known


def test_llama_bench_really_splits_paths_at_commas(
    plan: Plan, small_moe: Path, llama_server: Path, tmp_path: Path
) -> None:
    """What we refuse does fail: the model exists, and llama-bench looks for half of its name."""
    bench = llama_server.with_name("llama-bench")
    if not bench.exists():
        pytest.skip("no llama-bench beside llama-server")
    path = tmp_path / "a,b.gguf"
    path.symlink_to(small_moe)
    launch = make_launch(plan)
    with pytest.raises(UsageError, match="comma"):
        emit_bench_args(replace(launch, model_path=str(path)))
    argv = list(emit_bench_args(launch, str(bench)))
    argv[argv.index("-m") + 1] = str(path)
    done = subprocess.run(
        [*argv, "-p", "1", "-n", "0", "-r", "1", "-t", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0 and "failed to load" in done.stderr


def test_all_settings_are_known_to_the_programs(plan: Plan, llama_server: Path) -> None:
    """Every flag an emitter can write stands in the help of llama-server or llama-bench."""
    everything = replace(
        make_launch(plan),
        split_mode="none",
        cpu_moe=True,
        n_cpu_moe=2,
        n_batch=256,
        n_parallel=2,
        kv_unified=False,
        type_k="q8_0",
        type_v="q8_0",
        flash_attn=True,
        swa_full=True,
        offload_kqv=False,
        op_offload=False,
        no_host=True,
    )
    build = read_build(llama_server)
    assert emit_server_args(everything, build=build) == emit_server_args(everything)
    for setting in server_settings(everything, NEWEST):
        assert set(setting.spellings) <= (build.flags or set()), setting
        assert build.environment.get(setting.spellings[0]) == setting.env, setting
    bench = llama_server.with_name("llama-bench")
    if bench.exists():
        assert emit_bench_args(everything, build=read_build(bench)) == emit_bench_args(everything)
