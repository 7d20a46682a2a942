"""Launch settings to command lines: right separators, only known flags, nothing lost."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from offload.device import devices_from_flags
from offload.emit import (
    Launch,
    emit_bench_args,
    emit_server_args,
    make_launch,
    quote_argv,
    quote_for_terminal,
)
from offload.errors import UsageError
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.rules import Rule
from offload.source import read_header
from tuner.synth import write_shape

LAUNCH = Launch(
    model_path="/models/a b.gguf",
    n_gpu_layers=37,
    tensor_split=(18.0, 19.0),
    rules=(
        Rule(pattern=r"blk\.([0-5])\.ffn_(up|down)_exps", buffer_type="CPU"),
        Rule(pattern=r"blk\.18\.ffn_down_exps", buffer_type="CPU"),
    ),
    n_ctx=8192,
    n_batch=2048,
    n_ubatch=512,
    load_mode="none",
)


def _value(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_server_command_says_everything_that_decides_the_placement() -> None:
    """-ngl, -ts, -ot, -c, -ub, -fit off and the load mode stand in every command."""
    argv = emit_server_args(LAUNCH)
    assert argv[:3] == ("llama-server", "-m", "/models/a b.gguf")
    assert _value(argv, "-ngl") == "37"
    assert _value(argv, "-ts") == "18,19"
    assert _value(argv, "-ot") == (
        r"blk\.([0-5])\.ffn_(up|down)_exps=CPU,blk\.18\.ffn_down_exps=CPU"
    )
    assert _value(argv, "-c") == "8192"
    assert _value(argv, "-ub") == "512"
    assert _value(argv, "-fit") == "off"
    assert _value(argv, "--load-mode") == "none"


def test_quoted_command_survives_a_shell() -> None:
    """What is printed to paste parses back to the same argv."""
    argv = emit_server_args(LAUNCH)
    assert tuple(shlex.split(quote_argv(argv))) == argv


def test_terminal_line_is_printable_and_means_the_same_to_bash() -> None:
    """A path with a newline, a quote and a non-UTF-8 byte survives bash, escaped."""
    name = "/m/a\n'b\x1b\udcff.gguf"
    line = quote_for_terminal(("printf", "%s", name))
    assert line.isprintable()
    seen = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
    assert seen == name.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("shares", [(1.000001, 36.0), (1000001.0, 36000000.0), (0.1, 0.2)])
def test_shares_are_emitted_exactly(shares: tuple[float, ...]) -> None:
    """A share rounded for printing could move a layer."""
    argv = emit_server_args(replace(LAUNCH, tensor_split=shares))
    assert tuple(float(share) for share in _value(argv, "-ts").split(",")) == shares


def test_bench_uses_its_own_separators() -> None:
    """llama-bench splits variants at commas: shares take slashes, rules semicolons."""
    argv = emit_bench_args(LAUNCH)
    assert _value(argv, "-ts") == "18/19"
    assert _value(argv, "-ot").count(";") == 1
    assert "," not in "".join(argv[3:])


def test_older_builds_get_no_mmap() -> None:
    """A build without --load-mode and --fit gets --no-mmap and no -fit."""
    known = frozenset({"-m", "-ngl", "-ts", "-ot", "-c", "-ub", "--no-mmap"})
    argv = emit_server_args(LAUNCH, known_flags=known)
    assert "--no-mmap" in argv
    assert "-fit" not in argv
    assert "--load-mode" not in argv


def test_a_flag_that_decides_and_is_unknown_is_an_error() -> None:
    """Leaving -ot out would place the experts elsewhere: refuse, naming the flag."""
    known = frozenset({"-m", "-ngl", "-ts", "-c", "-ub"})
    with pytest.raises(UsageError, match="-ot"):
        emit_server_args(LAUNCH, known_flags=known)


def test_launch_survives_json() -> None:
    """A saved launch read back is the same value."""
    text = json.dumps(LAUNCH.to_json())
    assert Launch.from_json(json.loads(text)) == LAUNCH


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_ctx", "8192; rm -rf ~"),
        ("n_gpu_layers", True),
        ("model_path", 5),
        ("rules", [{"pattern": 1, "buffer_type": "CPU"}]),
        ("rules", "CPU"),
        ("tensor_split", ["x"]),
        ("devices", [3]),
        ("devices", "CUDA0"),
        ("tensor_split", "12"),
        ("tensor_split", [float("nan"), 1.0]),
        ("tensor_split", [10**400]),
        ("n_ubatch", 0),
        ("n_ctx", -5),
        ("type_k", "banana"),
        ("split_mode", "row"),
        ("load_mode", "zzz"),
        ("model_path", "a\0b"),
        ("rules", [{"pattern": "a,b=c", "buffer_type": "CPU"}]),
        ("rules", [{"pattern": "a"}]),
        ("layer_bytes", 5),
        ("layer_bytes", [1.5]),
        ("layer_bytes", [-1]),
        ("layer_bytes", [True]),
    ],
)
def test_hand_edited_launches_are_refused(key: str, value: object) -> None:
    """Values of another type or form are refused instead of reaching a command line."""
    data = json.loads(json.dumps(LAUNCH.to_json()))
    data[key] = value
    with pytest.raises(UsageError, match="launch"):
        Launch.from_json(data)


@pytest.mark.parametrize("key", ["n_ctx", "rules", "model_path"])
def test_missing_keys_are_named(key: str) -> None:
    """A launch without a key says which."""
    data = LAUNCH.to_json()
    del data[key]
    with pytest.raises(UsageError, match=key):
        Launch.from_json(data)


def test_single_card_needs_no_shares() -> None:
    """With one card -ts says nothing and is left out."""
    assert "-ts" not in emit_server_args(replace(LAUNCH, tensor_split=()))


@pytest.mark.parametrize("name", ["mistral-small-4-119b", "glm-4.5-air", "gemma-4-26b-a4b"])
def test_layer_bytes_are_what_one_card_would_hold(name: str, tmp_path: Path) -> None:
    """With everything on one card their sum is its weights and context, but for padding."""
    model = make_model(read_header(write_shape(name, tmp_path / "m.gguf")))
    plan = make_plan(model, devices_from_flags(1, (1 << 40,)), PlanOptions(n_ctx=8192))
    launch = make_launch(plan)
    (card,) = plan.memory.devices
    assert launch.n_units == model.n_layer + 1 and not launch.is_partial
    assert sum(launch.layer_bytes) == pytest.approx(card.model_bytes + card.context_bytes, rel=1e-3)
    assert replace(launch, n_gpu_layers=model.n_layer).is_partial


def test_plans_without_layer_bytes_are_still_read() -> None:
    """They were added later; such a plan cannot tell a partial -ngl from a full one."""
    data = LAUNCH.to_json()
    del data["layer_bytes"]
    launch = Launch.from_json(data)
    assert launch == LAUNCH and launch.n_units == 0 and not launch.is_partial
