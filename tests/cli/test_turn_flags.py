"""--turn, --reserve, -ub auto and --settings on the command line, and `choice` in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offload.saved import read_plan
from offload.units import GIB
from tuner.synth import write_shape

UNEQUAL = (
    "--gpu", "CUDA0:24GiB:936GB/s:25GB/s", "--gpu", "CUDA1:12GiB:360GB/s:6GB/s",
    "--host-ram", "100GiB", "-c", "8192",
)  # fmt: skip


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that does not fit on the cards."""
    return write_shape("gpt-oss-120b", tmp_path_factory.mktemp("m") / "m.gguf")


def offload(*args: object) -> subprocess.CompletedProcess[str]:
    """Run the command without a state of this machine."""
    return subprocess.run(
        [sys.executable, "-m", "offload", *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": "/nowhere"},
        timeout=120,
        check=False,
    )


def planned(shape: Path, *args: str) -> dict[str, Any]:
    """The JSON of a plan that fits."""
    done = offload("plan", shape, *UNEQUAL, "-o", "json", *args)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_choice_names_the_winner_and_what_was_weighed(shape: Path, tmp_path: Path) -> None:
    """The shortest turn is emitted, its bound is below it, and the plan can be read back."""
    done = offload("plan", shape, *UNEQUAL, "-o", "json")
    choice = json.loads(done.stdout)["choice"]
    assert choice["turn"] == {"n_prompt": 2048, "n_generate": 512, "n_depth": 4096}
    assert choice["bound_s"] <= choice["turn_s"]
    assert choice["turn_low_s"] < choice["turn_s"] < choice["turn_high_s"]
    named = [one["name"] for one in choice["baselines"]]
    assert named[0] == "even" and {"first", "last", "all", "CUDA0 alone"} <= set(named)
    assert choice["turn_s"] <= 1.01 * min(
        one["turn_s"] for one in choice["baselines"] if one["feasible"]
    )
    saved = tmp_path / "plan.json"
    saved.write_text(done.stdout)
    assert read_plan(str(saved)).feasible
    table = offload("plan", shape, *UNEQUAL).stdout
    assert any(line.startswith("turn ") and choice["name"] in line for line in table.splitlines())


def test_the_turn_is_the_one_asked_for(shape: Path) -> None:
    """More written tokens take longer; another depth is said."""
    short = planned(shape, "--turn", "prompt=100,generate=100,depth=7")["choice"]
    assert short["turn"] == {"n_prompt": 100, "n_generate": 100, "n_depth": 7}
    longer = planned(shape, "--turn", "prompt=100,generate=200,depth=7")["choice"]
    assert longer["turn_s"] > 1.4 * short["turn_s"]


def test_even_is_the_spread_without_speeds(shape: Path) -> None:
    """--strategy even weighs nothing, and other strategies do not either."""
    assert planned(shape, "--strategy", "even")["choice"] is None
    assert planned(shape, "--strategy", "last")["choice"] is None


def test_reserve_is_kept_free_on_its_card(shape: Path) -> None:
    """What another program needs is added to the margin of that card alone."""
    data = planned(shape, "--reserve", "CUDA0=8GiB", "--reserve", "CUDA0=1GiB")
    margins = {d["name"]: d["margin_bytes"] for d in data["devices"]}
    assert margins["CUDA0"] == 10 * GIB
    assert margins.get("CUDA1", GIB) == GIB
    assert all(d["headroom_bytes"] >= 0 for d in data["devices"])


def test_ubatch_auto_takes_the_shortest_turn(shape: Path) -> None:
    """It is no longer than that of the default, and the command says which it is."""
    auto = planned(shape, "-ub", "auto", "--settings", "auto")
    assert auto["choice"]["turn_s"] <= planned(shape)["choice"]["turn_s"]
    argv = auto["argv"]
    assert int(argv[argv.index("-ub") + 1]) == auto["options"]["n_ubatch"] > 512


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--turn", "prompt=x"), "whole number"),
        (("--turn", "speed=1"), "expected one of"),
        (("--reserve", "CUDA7=1GiB"), "the cards here are CUDA0, CUDA1"),
        (("--reserve", "CUDA0"), "CARD=SIZE"),
        (("-ub", "many"), "a number of tokens, or auto"),
        (("--settings", "all"), "auto is all there is"),
    ],
)
def test_wrong_words_are_one_line(shape: Path, args: tuple[str, ...], said: str) -> None:
    """Exit code 2 and what to write instead."""
    done = offload("plan", shape, *UNEQUAL, *args)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_context_and_cache_types_are_chosen_on_request(shape: Path, tmp_path: Path) -> None:
    """-c max, -ctk auto and -ctv auto become numbers in the command, and say why."""
    words = ("-c", "max", "-ctk", "auto", "-ctv", "auto")
    plan = planned(shape, *words)
    assert plan["options"]["n_ctx"] == plan["model"]["n_ctx_train"]
    assert "auto" not in plan["argv"] and str(plan["options"]["n_ctx"]) in plan["argv"]
    codes = {one["code"] for one in plan["warnings"]}
    assert {"context-chosen", "cache-types-chosen"} <= codes
    saved = tmp_path / "p.json"
    saved.write_text(json.dumps(plan))
    assert read_plan(str(saved)).context.n_ctx == plan["options"]["n_ctx"]
    for wrong in ("soon", "-1", "1e3"):
        done = offload("plan", shape, *UNEQUAL, "-c", wrong)
        assert done.returncode == 2 and "-c" in done.stderr
