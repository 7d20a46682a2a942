"""Real models on realistic machines: a plan that says it fits does, by llama.cpp's own count."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.versus_fit import MACHINES, SHAPES
from offload.device import devices_from_flags
from offload.engine.binaries import library_folder
from offload.engine.verify import verify_plan
from offload.model import Model, make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.source import read_header
from offload.units import GIB, MIB
from tuner.synth import write_shape

OPTIONS = (
    PlanOptions(n_ctx=16384),
    PlanOptions(n_ctx=65536, n_ubatch=1024, n_parallel=1),
)


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """One real shape."""
    path = tmp_path_factory.mktemp("shapes") / f"{request.param}.gguf"
    return make_model(read_header(write_shape(request.param, path)))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("options", OPTIONS, ids=("16k", "64k"))
def test_feasible_plans_fit(
    llama_cpp_python: None, fit_params: Path, model: Model, machine: str, options: PlanOptions
) -> None:
    """On CUDA cards of these sizes: placement equal, totals within free memory, near the plan."""
    sizes = tuple(size * GIB for size in MACHINES[machine])
    plan = make_plan(model, devices_from_flags(len(sizes), sizes), options)
    if not plan.feasible:
        assert plan.advice
        return
    verification = verify_plan(plan, library_folder=library_folder(fit_params))
    assert verification.places_equal
    assert verification.fits
    for check in verification.devices:
        assert check.over_budget_bytes <= max(check.actual.compute_bytes // 20, 8 * MIB)
