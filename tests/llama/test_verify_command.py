"""`offload verify` and `offload plan --verify` on the real llama.cpp, as scripts use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_plan_command import offload

pytestmark = pytest.mark.usefixtures("llama_cpp_python")
TIGHT = ("--gpus", "2", "--vram", "22GiB", "--host-ram", "64GiB")


def test_a_tight_plan_holds_after_all(shape_119b: Path) -> None:
    """The plan for two cards keeps every margin by llama.cpp's own numbers."""
    done = offload("verify", shape_119b, *TIGHT, "-o", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    last = answer["rounds"][-1]
    assert last["is_exact"] and not last["wrong_owners"] and not last["wrong_tensors"]
    plan = answer["plan"]
    assert plan["feasible"] and plan["compute_source"] == "dry-run"
    for check, device in zip(last["devices"], plan["devices"], strict=True):
        assert check["planned"]["context_bytes"] == check["actual"]["context_bytes"]
        assert device["total_bytes"] + 2**30 <= device["memory_free_bytes"]


def test_a_confirmed_plan_needs_no_repair(shape_119b: Path, tmp_path: Path) -> None:
    """What `plan --verify` saved holds when it is asked about again."""
    done = offload("plan", shape_119b, *TIGHT, "--verify", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["compute_source"] == "dry-run"
    saved = tmp_path / "plan.json"
    saved.write_text(done.stdout)
    again = offload("verify", saved)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.splitlines()[-1].startswith("holds: ")


def test_a_saved_plan_that_is_too_tight_is_a_no(shape_119b: Path, tmp_path: Path) -> None:
    """Cards that shrank since the plan was saved: exit code 1, and a plan that would hold."""
    done = offload("plan", shape_119b, *TIGHT, "--verify", "-o", "json")
    plan: dict[str, Any] = json.loads(done.stdout)
    for card in plan["request"]["machine"]["card"]:
        card["memory"] = "21GiB"
    saved = tmp_path / "plan.json"
    saved.write_text(json.dumps(plan))
    done = offload("verify", saved, "-o", "json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert not answer["holds"] and answer["repaired"] and answer["changes"]
    assert answer["rounds"][0]["devices"][0]["over_budget_bytes"] > 0
    assert answer["plan"]["feasible"]


def test_programs_without_a_library_can_be_asked(
    shape_119b: Path, llama_server: Path, fit_params: Path, tmp_path: Path
) -> None:
    """A llama-server that is one whole file: its llama-fit-params is asked, in whole MiB."""
    for program in (llama_server, fit_params):
        script = tmp_path / program.name
        script.write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
        script.chmod(0o755)
    done = offload("verify", shape_119b, *TIGHT, "--llama-server", tmp_path, "-o", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    last = answer["rounds"][-1]
    assert not last["is_exact"] and not last["wrong_owners"] and not last["wrong_tensors"]
    for check in last["devices"]:
        for kind in ("model_bytes", "context_bytes"):
            assert abs(check["planned"][kind] - check["actual"][kind]) < 2 * 2**20


def test_another_build_is_asked(shape_119b: Path, llama_server: Path) -> None:
    """With `--llama-server` the llama.cpp beside it answers, in exact bytes too."""
    done = offload("verify", shape_119b, *TIGHT, "--llama-server", llama_server, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"][0]["source"] in (
        "llama-cpp-python",
        "llama-fit-params",
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--gpus", "2"), "saved plan, so --gpus"),
        (("--llama-server", "/nonexistent"), "/nonexistent"),
    ],
)
def test_what_cannot_be_asked(tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    """Flags against a saved plan, and programs that are not there: one line, exit code 2."""
    saved = tmp_path / "plan.json"
    saved.write_text("{}")
    done = offload("verify", saved, *args)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and words in done.stderr


def test_a_model_that_is_gone(shape_119b: Path, tmp_path: Path) -> None:
    """A saved plan whose model has moved says which file is missing."""
    done = offload("plan", shape_119b, *TIGHT, "-o", "json")
    saved = tmp_path / "plan.json"
    saved.write_text(done.stdout.replace(str(shape_119b), str(tmp_path / "gone.gguf")))
    done = offload("verify", saved)
    assert done.returncode == 2 and "gone.gguf" in done.stderr and not done.stdout
