"""llama.cpp agrees where experts are that lie on another card, and what every card then holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offload.device import parse_device
from offload.emit import emit_server_args, make_launch
from offload.engine.library_build import library_build
from offload.engine.verify import verify_plan
from offload.lint import Machine, lint, parse_command
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.render.plan_json import plan_to_json
from offload.rules import parse_overrides
from offload.saved import read_plan
from offload.source import read_header
from offload.speeds import Speeds
from offload.units import GIB, KIB, MIB
from tuner.synth import write_shape


@pytest.mark.parametrize(
    ("shape", "rules"),
    [
        ("gpt-oss-120b", r"blk\.[0-9]\.ffn_.*exps=CUDA1"),
        ("glm-4.5-air", r"blk\.[0-9]\.ffn_.*exps=CUDA1,blk\.1[0-9]\.ffn_down_exps=CPU"),
        (
            "mistral-small-4-119b",
            r"blk\.[0-9]\.ffn_.*exps=CUDA1,blk\.3[0-9]\.ffn_down_exps=CUDA0",
        ),
    ],
)
def test_experts_on_another_card_are_planned_as_llama_cpp_loads_them(
    llama_cpp_python: None, tmp_path: Path, shape: str, rules: str
) -> None:
    """Owners, tensors, weights, context and compute of both cards and the host are equal."""
    path = tmp_path / f"{shape}.gguf"
    write_shape(shape, path)
    cards = [parse_device("CUDA0:80GiB"), parse_device("CUDA1:80GiB")]
    options = PlanOptions(
        n_ctx=16384,
        n_parallel=1,
        llama_build=library_build(),
        tensor_split=(1, 1),
        override_rules=parse_overrides(rules),
    )
    plan = make_plan(make_model(read_header(path)), cards, options)
    assert plan.placement.crossed

    found = verify_plan(plan)

    assert not found.wrong_owners and not found.wrong_tensors
    for check in (*found.devices, found.host):
        planned, actual = check.planned, check.actual
        assert planned.context_bytes == actual.context_bytes
        assert abs(planned.model_bytes - actual.model_bytes) < 64 * KIB
        assert abs(planned.compute_bytes - actual.compute_bytes) < 64 * KIB


def test_a_plan_with_experts_on_slower_cards_is_confirmed_saved_and_clean(
    llama_cpp_python: None, tmp_path: Path
) -> None:
    """Chosen by its turn: llama.cpp agrees, a saved plan says the same, lint only remarks."""
    path = write_shape("glm-4.5-air", tmp_path / "m.gguf")
    texts = ["CUDA0:24GiB:1TB/s:25GB/s", *(f"CUDA{d}:12GiB:360GB/s:6GB/s" for d in (1, 2))]
    cards = [parse_device(text) for text in texts]
    options = PlanOptions(n_ctx=16384, llama_build=library_build())
    plan = make_plan(
        make_model(read_header(path)), cards, options, host_free_bytes=200 * GIB, speeds=Speeds()
    )
    assert plan.feasible and plan.guests(1) and plan.guests(2) and not plan.guests(0)

    found = verify_plan(plan)

    assert found.places_equal and max(c.over_budget_bytes for c in found.devices) <= 16 * MIB
    saved = tmp_path / "plan.json"
    saved.write_text(json.dumps(plan_to_json(plan)))
    again = read_plan(str(saved))
    assert dict(again.placement.placed) == dict(plan.placement.placed)
    assert again.memory.devices == plan.memory.devices
    report = lint(
        parse_command(emit_server_args(make_launch(plan)), is_argv=True),
        model=plan.model,
        machine=Machine(devices=tuple(cards), host_free_bytes=200 * GIB),
    )
    strays = [f for f in report.findings if f.code in ("expert-off-its-owner", "up-gate-apart")]
    assert strays and all(str(f.severity) == "note" for f in strays)
