"""`offload plan --explain` and `offload compare --cards` as scripts and people use them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import run

import pytest

from tests.cli.test_plan_command import offload
from tuner.synth import write_shape

TWO = ("--gpus", "2", "--vram", "22GiB", "--host-ram", "64GiB", "-c", "8192")


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 119B shape."""
    return write_shape("mistral-small-4-119b", tmp_path_factory.mktemp("m") / "119b.gguf")


def test_the_explanation_stands_below_the_plan(shape: Path) -> None:
    """The plan is the same with and without it, and stderr stays empty."""
    plain = offload("plan", shape, *TWO)
    told = offload("plan", shape, *TWO, "--explain")
    assert told.returncode == 0 and told.stderr == ""
    assert told.stdout.startswith(plain.stdout.rstrip("\n") + "\n\nwhy\n")
    for part in ("limited by", "next best plan: ", "1 GiB more on CUDA1", "-ub 2048"):
        assert part in told.stdout


def test_json_has_one_more_key(shape: Path) -> None:
    """`explanation`, whose turn is the one that the plan was chosen by."""
    plain = json.loads(offload("plan", shape, *TWO, "-o", "json").stdout)
    told = json.loads(offload("plan", shape, *TWO, "-o", "json", "--explain").stdout)
    explanation = told.pop("explanation")
    assert told == plain
    assert explanation["turn"]["seconds"] == pytest.approx(plain["choice"]["turn_s"])
    assert explanation["turn"]["n_depth"] == plain["choice"]["turn"]["n_depth"]
    for price in explanation["shadow_prices"]:
        if price["code"] == "ubatch":
            again = json.loads(offload("plan", shape, *TWO, "-o", "json", "-ub", "2048").stdout)
            assert price["prediction"] == again["prediction"]
            more_s = again["choice"]["turn_s"] - plain["choice"]["turn_s"]
            assert price["difference"]["seconds"] == pytest.approx(more_s)
            break
    else:
        pytest.fail("no price of -ub 2048")


def test_cards_that_the_plan_leaves_out_are_still_asked_about(shape: Path) -> None:
    """Of a slow card and a fast one the plan may be for one alone; both have their prices."""
    cards = ("--gpu", "CUDA0:80GiB:936GB/s", "--gpu", "CUDA1:6GiB:10GB/s")
    done = offload("plan", shape, *cards, "--host-ram", "64GiB", "--explain", "-o", "json")
    codes = {price["code"] for price in json.loads(done.stdout)["explanation"]["shadow_prices"]}
    assert {"memory:CUDA0", "memory:CUDA1", "without:CUDA0", "without:CUDA1"} <= codes


def test_arguments_alone_are_not_explained(shape: Path) -> None:
    """`-o args` is for scripts that start a server."""
    done = offload("plan", shape, *TWO, "--explain", "-o", "args")
    assert done.returncode == 2 and done.stdout == "" and "-o args" in done.stderr


def test_a_plan_that_does_not_fit_is_explained(shape: Path) -> None:
    """Exit code 1, and no price for what does not fit either."""
    small = ("--gpus", "1", "--vram", "2GiB", "--host-ram", "8GiB")
    done = offload("plan", shape, *small, "--explain")
    assert done.returncode == 1 and "does not fit" in done.stdout


def test_a_plain_plan_imports_none_of_it(shape: Path) -> None:
    """Start-up is a feature: who does not ask why does not wait for it."""
    code = (
        "import os, sys; from offload.__main__ import main; os._exit = sys.exit\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m.rpartition('.')[2] in ("
        "'explain', 'explanation', 'explaining', 'question', 'shadow_prices', 'what_if',"
        " 'difference', 'machines', 'card_memory')], file=sys.stderr)"
    )
    done = run(
        [sys.executable, "-c", code, "plan", str(shape), *TWO],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "llama-server" in done.stdout and done.stderr.strip() == "[]"


def test_machines_that_are_not_here(shape: Path) -> None:
    """A row for each, in the order asked for; stdout has nothing else."""
    machines = ("--cards", "3x24GiB:936GB/s", "--cards", "2x24GiB:936GB/s,1x12GiB:360GB/s")
    done = offload("compare", shape, *machines, "--host-ram", "64GiB")
    assert done.returncode == 0 and done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()[1:3]] == [
        "3x24GiB:936GB/s", "2x24GiB:936GB/s,1x12GiB:360GB/s",
    ]  # fmt: skip
    done = offload("compare", shape, *machines, "--host-ram", "64GiB", "-o", "json")
    first, second = json.loads(done.stdout)["machines"]
    assert first["difference"]["seconds"] == 0.0 < second["difference"]["seconds"]
    done = offload("compare", shape, *machines, "--host-ram", "64GiB", "-o", "md")
    assert done.stdout.startswith("| machine |")


def test_changes_of_this_machine_start_with_it(shape: Path) -> None:
    """`here` is what `offload plan` says of it; an option may begin with a minus."""
    done = offload(
        "compare", shape, *TWO, "--cards", "-CUDA1", "--cards", "+RTX 3090", "-o", "json"
    )
    machines = json.loads(done.stdout)["machines"]
    assert [one["cards"] for one in machines] == ["here", "-CUDA1", "+RTX 3090"]
    plan = json.loads(offload("plan", shape, *TWO, "-o", "json").stdout)
    assert machines[0]["prediction"] == plan["prediction"]
    assert machines[0]["devices"] == plan["devices"]
    assert machines[0]["turn"]["seconds"] == pytest.approx(plan["choice"]["turn_s"])


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--cards", "fish"), "fish"),
        (("--cards", "24GiB", "--gpus", "2", "--vram", "22GiB"), "--cards describes all cards"),
        (("--cards", "24GiB", "-ts", "1,1"), "-ts"),
        (("--cards", "24GiB", "-ub", "auto"), "-ub auto"),
        (("--cards", "+24GiB,12GiB", *TWO), "mixes"),
    ],
)
def test_what_cannot_be_meant_is_one_line(shape: Path, flags: tuple[str, ...], what: str) -> None:
    """Exit code 2 and what to write instead."""
    done = offload("compare", shape, *flags)
    assert done.returncode == 2 and done.stdout == ""
    assert what in done.stderr and done.stderr.count("\n") == 1


def test_nothing_fits_anywhere(shape: Path) -> None:
    """Exit code 1 where no machine holds the model."""
    done = offload("compare", shape, "--cards", "2GiB", "--cards", "4GiB", "--host-ram", "8GiB")
    assert done.returncode == 1 and done.stdout.count("short by") == 2
