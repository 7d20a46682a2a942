"""The emitted files, read by the real llama.cpp: presets, environment, hostile paths."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offload.emit import Launch, emit_server_args
from offload.emit.env import emit_env
from offload.emit.formats import emit_as
from offload.emit.ini import emit_ini
from offload.emit.target import Target
from offload.engine.binaries import read_build
from offload.engine.ports import reserved_ports
from offload.engine.process import started
from offload.engine.virtual_cards import VirtualCard
from offload.rules import Rule
from tests.emit_readers import flags_of
from tests.llama.server import await_health

NASTY = 'it\'s "a" $HOME `id` %n {x}, \\back é 日本.gguf'


@pytest.fixture(scope="module")
def launch(small_moe: Path, cards: tuple[VirtualCard, ...], tmp_path_factory: Any) -> Launch:
    """Experts of two layers on the host, shares and rules, on three cards, at a nasty path."""
    path = tmp_path_factory.mktemp("nasty") / NASTY
    path.symlink_to(small_moe)
    return Launch(
        model_path=str(path),
        n_gpu_layers=7,
        tensor_split=(2.0, 3.0, 2.0),
        devices=tuple(card.name for card in cards),
        rpc=",".join(card.endpoint for card in cards),
        rules=(Rule(pattern=r"blk\.([02])\.ffn_.*exps", buffer_type="CPU"),),
        n_cpu_moe=1,
        n_ctx=512,
        n_batch=1024,
        n_ubatch=64,
        n_parallel=2,
        kv_unified=False,
        type_k="q8_0",
        flash_attn=True,
        offload_kqv=True,
        load_mode="none",
        layer_bytes=(1,) * 7,
    )


def _memory(
    program: Path, args: Sequence[str], environment: Mapping[str, str] | None = None
) -> str:
    """llama-fit-params' memory table."""
    done = subprocess.run(
        [str(program), *args],
        capture_output=True,
        env={**os.environ, **(environment or {})},
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    table = [line for line in done.stdout.decode().splitlines() if line.strip()]
    assert len(table) > 3, table
    return "\n".join(table)


def _fit_args(argv: Sequence[str]) -> list[str]:
    """The same without slots: llama-fit-params has none of the server's own flags."""
    args = list(argv[1:])
    for flag, n in (("-no-kvu", 1), ("-fit", 2)):
        if flag in args:
            i = args.index(flag)
            del args[i : i + n]
    return [*args, "-fitp", "on"]


def test_the_environment_says_what_the_flags_say(launch: Launch, fit_params: Path) -> None:
    """llama-fit-params with the sourced file alone prints the memory it prints with flags."""
    launch = replace(launch, kv_unified=None)
    with_flags = _memory(fit_params, _fit_args(emit_server_args(launch)))
    text = emit_env(launch, Target(build=read_build(fit_params)))
    script = 'set -a; eval "$TEXT"; unset TEXT LLAMA_ARG_FIT; exec "$0" -fitp on'
    done = subprocess.run(
        ["/bin/sh", "-c", script, str(fit_params)],
        env={**os.environ, "TEXT": text},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    assert "\n".join(x for x in done.stdout.decode().splitlines() if x.strip()) == with_flags
    # it must be able to differ
    other = _memory(fit_params, _fit_args(emit_server_args(replace(launch, n_cpu_moe=4))))
    assert other != with_flags


def test_a_config_file_says_what_the_flags_say(
    launch: Launch, fit_params: Path, tmp_path: Path
) -> None:
    """The section as llama.cpp's own config.ini gives the memory that the flags give."""
    launch = replace(launch, kv_unified=None)
    with_flags = _memory(fit_params, _fit_args(emit_server_args(launch)))
    text = emit_ini(launch, Target(alias="here")).replace("[here]", "[default]")
    folder = tmp_path / "llama.cpp"
    folder.mkdir()
    (folder / "config.ini").write_text(text.replace("fit = off\n", ""))
    assert _memory(fit_params, ["-fitp", "on"], {"XDG_CONFIG_HOME": str(tmp_path)}) == with_flags


def test_the_router_turns_the_preset_into_our_flags(
    launch: Launch, llama_server: Path, tmp_path: Path
) -> None:
    """llama-server --models-preset lists the model with exactly the settings we meant."""
    target = Target(alias="the-model", build=read_build(llama_server))
    preset = tmp_path / "preset.ini"
    preset.write_text(emit_ini(launch, target))
    seen = flags_of(_router_args(llama_server, preset, "the-model", tmp_path)[1:])
    long = {"-m": "--model", "-dev": "--device", "-ts": "--tensor-split", "-c": "--ctx-size"}
    for short, name in long.items():
        assert seen[name] == flags_of(emit_server_args(launch)[1:])[short]
    assert seen["--override-tensor"] == (
        r"blk\.([02])\.ffn_.*exps=CPU,blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    )
    assert seen["--n-gpu-layers"] == "7" and seen["--fit"] == "off"
    assert "--no-kv-unified" in seen and seen["--load-mode"] == "none"
    assert seen["--rpc"] == launch.rpc and seen["--parallel"] == "2"


def test_the_router_loads_the_preset_and_answers(
    launch: Launch, llama_server: Path, tmp_path: Path
) -> None:
    """The model loads over the three cards as the preset says, and completes a prompt."""
    preset = tmp_path / "preset.ini"
    preset.write_text(emit_ini(launch, Target(alias="the-model")))
    body = json.dumps({"model": "the-model", "prompt": [5, 6, 7], "n_predict": 2}).encode()
    with _router(llama_server, preset, tmp_path) as address:
        request = urllib.request.Request(
            f"{address}/completion", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert json.load(answer)["tokens_predicted"] == 2


def _router_args(program: Path, preset: Path, name: str, folder: Path) -> list[str]:
    """The command line the router would start the model with."""
    with (
        _router(program, preset, folder) as address,
        urllib.request.urlopen(f"{address}/models", timeout=60) as answer,
    ):
        models = json.load(answer)["data"]
    args = next(model["status"]["args"] for model in models if model["id"] == name)
    assert isinstance(args, list)
    return args


@contextmanager
def _router(program: Path, preset: Path, folder: Path) -> Iterator[str]:
    """A llama-server in router mode, by its address."""
    with reserved_ports(1) as (port,), (folder / "router.log").open("wb") as log:
        argv = [str(program), "--models-preset", str(preset)]
        argv += ["--host", "127.0.0.1", "--port", str(port.number)]
        with started(argv, python=False, stdin=False, stderr=log, stdout=log) as process:
            assert await_health(f"http://{port.endpoint}/health", process) is None, (
                folder / "router.log"
            ).read_text(errors="replace")[-2000:]
            yield f"http://{port.endpoint}"


def test_a_shell_runs_the_command_at_a_nasty_path(launch: Launch, fit_params: Path) -> None:
    """The quoted line, given to a shell, loads the very file."""
    launch = replace(launch, kv_unified=None)
    line = emit_as(launch, "args", Target(program=str(fit_params)))
    line = line.replace(" -fit off", "")
    done = subprocess.run(
        ["/bin/sh", "-c", f"{line.strip()} -fitp on"], capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    assert b"RPC" in done.stdout
