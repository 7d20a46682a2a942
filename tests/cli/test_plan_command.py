"""`offload plan` and its neighbours as scripts use them: stdout, stderr, exit codes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tuner.synth import find_shape, write_shape
from tuner.synth.container import write_gguf
from tuner.synth.model import make_file


def offload(*args: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "offload", *map(str, args)],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 119B shape."""
    return write_shape("mistral-small-4-119b", tmp_path_factory.mktemp("m") / "119b.gguf")


@pytest.fixture(scope="module")
def planned(shape: Path) -> dict[str, Any]:
    """Its plan for two cards as JSON."""
    done = offload(
        "plan", shape, "--gpus", "2", "--vram", "22GiB", "--host-ram", "64GiB", "-c", "8192",
        "-o", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def test_json_keeps_the_contract(planned: dict[str, Any]) -> None:
    """Every key scripts rely on is there with its type."""
    assert planned["schema_version"] == 1
    assert planned["model"]["arch"] == "mistral4"
    assert planned["model"]["n_layer"] == 36
    assert planned["options"]["n_ctx"] == 8192
    assert planned["feasible"] is True
    assert planned["compute_source"] == "estimate"
    assert planned["n_gpu_layers"] == 37
    assert sum(planned["tensor_split"]) == 37
    speed = planned["prediction"]
    assert speed["source"] == "prior" and speed["n_depth"] == 0
    for phase in ("decode", "prefill"):
        low, middle, high = (speed[f"{phase}_{end}t_s"] for end in ("low_", "", "high_"))
        assert 0 < low < middle < high
    assert planned["argv"][0] == "llama-server"
    for device in planned["devices"]:
        total = device["model_bytes"] + device["context_bytes"] + device["compute_bytes"]
        assert device["total_bytes"] == total
        assert device["headroom_bytes"] == (
            device["memory_free_bytes"] - device["margin_bytes"] - total
        )
        assert device["headroom_bytes"] >= 0
        assert set(device["experts_on_host"]) <= set(device["layers"])
    assert [device["output"] for device in planned["devices"]] == [False, True]
    assert planned["host"]["model_bytes"] > 0


def test_table_ends_with_the_command_to_paste(shape: Path, planned: dict[str, Any]) -> None:
    """The last line of the table parses as the same argv the JSON holds."""
    done = offload(
        "plan", shape, "--gpus", "2", "--vram", "22GiB", "--host-ram", "64GiB", "-c", "8192"
    )
    assert done.returncode == 0
    assert shlex.split(done.stdout.splitlines()[-1]) == planned["argv"]
    args = offload(
        "plan", shape, "--gpus", "2", "--vram", "22GiB", "--host-ram", "64GiB", "-c", "8192",
        "-o", "args",
    )  # fmt: skip
    assert shlex.split(args.stdout) == planned["argv"]


def test_a_saved_plan_emits_the_same_command(planned: dict[str, Any], tmp_path: Path) -> None:
    """`offload emit` gives the planned argv back, from a file and from stdin, and bench's form."""
    saved = tmp_path / "plan.json"
    saved.write_text(json.dumps(planned))
    assert shlex.split(offload("emit", saved).stdout) == planned["argv"]
    piped = offload("emit", "-", stdin=saved.read_text())
    assert shlex.split(piped.stdout) == planned["argv"]
    bench = shlex.split(offload("emit", saved, "--format", "bench").stdout)
    assert bench[0] == "llama-bench"
    assert "/" in bench[bench.index("-ts") + 1]


def test_what_does_not_fit_is_exit_1_with_the_shortage(shape: Path) -> None:
    """Too little of everything: the JSON is still printed, says how short, and what would help."""
    done = offload(
        "plan", shape, "--gpus", "1", "--vram", "4GiB", "--host-ram", "8GiB", "-o", "json"
    )
    assert done.returncode == 1
    plan = json.loads(done.stdout)
    assert plan["feasible"] is False
    codes = {warning["code"] for warning in plan["warnings"]}
    assert codes & {"short-card", "short-host"}
    assert any(code.startswith("try-") for code in codes)


def test_all_on_the_cards_needs_no_rules(shape: Path) -> None:
    """Where everything fits there is no -ot, and the table says so."""
    done = offload("plan", shape, "--gpus", "3", "--vram", "24GiB", "--host-ram", "16GiB")
    assert done.returncode == 0
    assert "fits-without-rules" in done.stdout
    assert "-ot" not in done.stdout


def test_what_the_user_sets_is_kept(shape: Path) -> None:
    """-ts, -ngl, -ot and -ncmoe stand in the command as given, ours are planned around them."""
    done = offload(
        "plan", shape, "--gpus", "2", "--vram", "22GiB", "--host-ram", "64GiB", "-c", "8192",
        "-ts", "20,17", "-ot", r"blk\.5\.ffn_.*exps=CPU", "-o", "json",
    )  # fmt: skip
    plan = json.loads(done.stdout)
    argv = plan["argv"]
    assert argv[argv.index("-ts") + 1] == "20,17"
    assert argv[argv.index("-ot") + 1].startswith(r"blk\.5\.ffn_.*exps=CPU,")
    assert 5 in plan["devices"][0]["experts_on_host"]
    assert done.returncode == 0


@pytest.mark.parametrize("strategy", ["own", "first", "last", "all", "none"])
def test_strategies(shape: Path, strategy: str) -> None:
    """Each strategy answers; only `none` cannot fit two cards."""
    done = offload(
        "plan", shape, "--gpus", "2", "--vram", "22GiB", "--host-ram", "64GiB", "-c", "8192",
        "--strategy", strategy, "-o", "json",
    )  # fmt: skip
    assert json.loads(done.stdout)["options"]["strategy"] == strategy
    assert done.returncode == (1 if strategy == "none" else 0)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("plan", "{shape}", "--gpus", "2", "--vram", "x"), "--vram"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "1GiB,2GiB,3GiB"), "--vram"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "22GiB", "-ts", "a"), "-ts"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "22GiB", "-ts", "0,0"), "-ts"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "22GiB", "-ot", "exps"), "-ot"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "22GiB", "-ot", "(a+)+=CPU"), "-ot"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "22GiB", "-ot", "exps=CUDA7"), "CUDA7"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "22GiB", "-ctk", "q9"), "-ctk"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "22GiB", "-sm", "row"), "-sm"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "22GiB", "-fa", "perhaps"), "-fa"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "22GiB", "--margin", "1,2,3"), "--margin"),
        (("plan", "{shape}", "--gpus", "2", "--vram", "22GiB", "-dev", "CUDA9"), "-dev"),
        (("plan", "/nowhere/model.gguf", "--gpus", "1", "--vram", "1GiB"), "/nowhere/model.gguf"),
        (("inspect", "/dev/null"), "/dev/null"),
        (("emit", "/nowhere/plan.json"), "/nowhere/plan.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(shape: Path, args: tuple[str, ...], said: str) -> None:
    """Wrong usage and unreadable input: nothing on stdout, one line that names the culprit."""
    done = offload(*(text.replace("{shape}", str(shape)) for text in args))
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_rpc_cards_bring_their_servers(shape: Path) -> None:
    """A card behind an RPC server does not exist for llama-server without --rpc."""
    done = offload(
        "plan", shape, "--gpu", "RPC0[10.0.0.2:50052]:64GiB", "--host-ram", "9GiB", "-o", "args"
    )
    argv = shlex.split(done.stdout)
    assert argv[argv.index("--rpc") + 1] == "10.0.0.2:50052"
    assert argv[argv.index("-dev") + 1] == "RPC0"
    same = offload(
        "plan", shape, "--rpc", "10.0.0.2:50052,10.0.0.3:50052", "--vram", "32GiB",
        "--host-ram", "9GiB", "-o", "json",
    )  # fmt: skip
    assert len(json.loads(same.stdout)["devices"]) == 2


def test_a_card_without_room_is_told_in_a_short_table(shape: Path) -> None:
    """One byte of memory: an answer of a few lines, exit 1."""
    done = offload("plan", shape, "--gpus", "1", "--vram", "1", "--host-ram", "9GiB")
    assert done.returncode == 1
    assert len(done.stdout) < 4000


def test_a_file_that_contradicts_itself_is_exit_2(tmp_path: Path) -> None:
    """A header that lacks what its architecture needs: one line, never "does not fit"."""
    found = make_file(find_shape("qwen3-30b-a3b"))
    kept = tuple(t for t in found[1] if "ffn_gate_inp" not in t.name)
    path = write_gguf(tmp_path / "no-router.gguf", found[0], kept)
    done = offload("plan", path, "--gpus", "2", "--vram", "8GiB", "--host-ram", "64GiB")
    assert done.returncode == 2
    assert "no-router.gguf" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_closed_stdout_is_exit_2(shape: Path) -> None:
    """Nowhere to write the answer: said once, no traceback."""
    command = shlex.join([sys.executable, "-m", "offload", "inspect", str(shape)])
    done = subprocess.run(
        ["bash", "-c", f"{command} >&-"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_inspect_json(shape: Path) -> None:
    """Layers, roles and sums agree with one another."""
    done = offload("inspect", shape, "-o", "json")
    assert done.returncode == 0
    seen = json.loads(done.stdout)
    assert len(seen["layers"]) == 36
    experts = sum(layer["expert_bytes"] for layer in seen["layers"])
    assert experts == seen["model"]["expert_bytes"]
    assert experts == sum(t["n_bytes"] for t in seen["tensors"] if t["role"] == "expert")
    assert all(layer["context_bytes_per_token"] > 0 for layer in seen["layers"])


def test_devices_without_a_gpu_says_how_to_describe_one(tmp_path: Path) -> None:
    """On a machine without cards the command succeeds and shows the form of --gpu."""
    done = offload("devices", "-o", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["host"]["memory_total_bytes"] > 0
    if not json.loads(done.stdout)["devices"]:
        assert "--gpu" in offload("devices").stderr


@pytest.mark.parametrize("command", ["plan", "inspect", "devices", "emit"])
def test_help(command: str) -> None:
    """Every command has --help."""
    done = offload(command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
