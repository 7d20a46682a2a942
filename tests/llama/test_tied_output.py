"""Embeddings that serve as output matrix too, and rules for them: llama.cpp's own bytes."""

from __future__ import annotations

import pytest

from offload.device import devices_from_flags
from offload.engine.verify import find_judge
from offload.model import Model, make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.rules import parse_overrides
from offload.source import read_header
from tuner.synth import write_random

GIB = 1 << 30


@pytest.fixture(scope="module", params=["gemma3", "gemma4"])
def tied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """gemma3 allocates what is wanted twice once; gemma4, whose output comes first, twice."""
    path = tmp_path_factory.mktemp("tied") / f"{request.param}.gguf"
    write_random(path, arch=request.param, quant="F16")
    model = make_model(read_header(path))
    assert model.output_is_tied
    return model


@pytest.mark.parametrize("place", [None, "CPU", "RPC1"])
def test_a_rule_for_tied_embeddings_moves_both_uses(
    llama_cpp_python: None, tied: Model, place: str | None
) -> None:
    """Weights of every card and of the host are equal, whoever holds the embeddings."""
    cards = devices_from_flags(None, None, ("RPC0:4GiB", "RPC1:4GiB"))
    buffer_type = cards[1].buffer_type if place == "RPC1" else place
    rules = () if place is None else parse_overrides(f"token_embd={buffer_type}")
    options = PlanOptions(n_ctx=512, override_rules=rules)
    verification = find_judge()(make_plan(tied, cards, options, host_free_bytes=8 * GIB))
    checks = (*verification.devices, verification.host)
    planned = [check.planned.model_bytes for check in checks]
    assert planned == [check.actual.model_bytes for check in checks]
