"""llama.cpp agrees where experts are that lie on another card, and what every card then holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload.device import parse_device
from offload.engine.library_build import library_build
from offload.engine.verify import verify_plan
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.rules import parse_overrides
from offload.source import read_header
from offload.units import KIB
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
