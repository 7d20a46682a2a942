"""What `serve --canary` saw of a machine becomes the margin of its next plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offload.engine.serving.growth import record_growth
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.probe import read_machine
from offload.source import read_header
from offload.units import GIB
from tests.cli.test_plan_command import offload
from tuner.synth import write_shape

CARDS = """
[[card]]
name = "CUDA0"
description = "Some Card"
memory = "24GiB"
memory_total = "24GiB"
[[card]]
name = "CUDA1"
description = "Some Card"
memory = "24GiB"
memory_total = "24GiB"
[host]
memory = "100GiB"
"""


def test_growth_raises_margins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 GiB seen on one card are kept free there, unless the user says otherwise."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    model = write_shape("gpt-oss-120b", tmp_path / "m.gguf")
    cards = tmp_path / "devices.toml"
    cards.write_text(CARDS)
    machine = read_machine(str(cards))
    plan = make_plan(make_model(read_header(model)), machine.devices, PlanOptions())
    record_growth(plan, {"CUDA0": 3 * GIB, "CUDA1": 1000}, n_tokens=9, survived=True)

    def margins(*args: str) -> tuple[list[int], str]:
        done = offload("plan", model, "--devices", cards, "-o", "json", *args)
        assert done.returncode == 0, done.stderr
        return [d["margin_bytes"] for d in json.loads(done.stdout)["devices"]], done.stderr

    raised, said = margins()
    assert raised[0] > 3 * GIB and raised[1] == GIB
    assert "a long prompt took here before" in said
    assert margins("--margin", "1GiB") == ([GIB, GIB], "")
    other = write_shape("gpt-oss-20b", tmp_path / "m.gguf")
    assert other == model and margins() == ([GIB, GIB], "")
