"""Placements that people use, side by side and priced by one referee."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from offload.contenders import FitAnswer, fit_contender, make_contenders
from offload.device import Device, check_devices, device_by_name
from offload.engine.fit_choice import parse_fit_answer
from offload.errors import LlamaCppError
from offload.model import Model, make_model
from offload.options import PlanOptions
from offload.plan import make_plan
from offload.render.contenders import contenders_to_json, render_contenders
from offload.rules import parse_overrides
from offload.source import read_header
from offload.units import GIB
from tuner.synth import write_shape


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """Models of the catalogue by name."""
    folder: Path = tmp_path_factory.mktemp("shapes")
    return lambda name: make_model(read_header(write_shape(name, folder / f"{name}.gguf")))


def cards(*gib: int) -> tuple[Device, ...]:
    """CUDA cards of these sizes."""
    return check_devices([device_by_name(f"CUDA{d}", n * GIB) for d, n in enumerate(gib)])


def test_every_strategy_and_every_card(read: Callable[[str], Model]) -> None:
    """Our spread comes first and no other that fits leaves fewer expert bytes on the host."""
    model = read("gpt-oss-120b")
    found = list(make_contenders(model, cards(24, 16), PlanOptions(), host_free_bytes=90 * GIB))
    assert [one.name for one in found] == [
        "own", "first", "last", "all", "none", "CUDA0 alone", "CUDA1 alone",
    ]  # fmt: skip
    hosted = {one.name: one.plan.memory.host.model_bytes for one in found if one.plan.feasible}
    assert "own" in hosted and "all" in hosted and "none" not in hosted
    assert hosted["own"] == min(hosted.values())
    assert [d.name for d in found[-1].plan.devices] == ["CUDA1"]
    assert found[-1].plan.options.device_names == ("CUDA1",)


def test_margins_go_with_their_card(read: Callable[[str], Model]) -> None:
    """A card alone keeps its own margin."""
    options = PlanOptions(margin_bytes=(GIB, 3 * GIB))
    found = list(make_contenders(read("gpt-oss-120b"), cards(24, 24), options))
    assert [one.plan.margins_bytes for one in found[-2:]] == [(GIB,), (3 * GIB,)]


def test_nothing_to_compare(read: Callable[[str], Model]) -> None:
    """A dense model or no card has one placement; a user's own -ts keeps all cards."""
    one_strategy = [
        one.name for one in make_contenders(read("qwen3-14b"), cards(24), PlanOptions())
    ]
    assert one_strategy == ["own"]
    model = read("gpt-oss-120b")
    assert [one.name for one in make_contenders(model, (), PlanOptions())] == ["own"]
    shared = make_contenders(model, cards(24, 24), PlanOptions(tensor_split=(1.0, 1.0)))
    assert not any("alone" in one.name for one in shared)


def test_fit_s_answer_is_priced_as_it_stands(read: Callable[[str], Model]) -> None:
    """What `--fit` prints becomes a plan that moves exactly those tensors."""
    line = (
        r'-c 8192 -ngl 37 -ts 20,17 -ot "blk\.(2|3)\.ffn_.*exps=CPU,blk\.4\.ffn_up_exps=RPC0[h:1]"'
    )
    answer = parse_fit_answer(line, {"RPC0[h:1]": "CUDA0"})
    assert (answer.n_gpu_layers, answer.tensor_split) == (37, (20.0, 17.0))
    assert [rule.buffer_type for rule in parse_overrides(answer.overrides)] == ["CPU", "CUDA0"]
    model = read("gpt-oss-120b")
    contender = fit_contender(model, cards(24, 24), PlanOptions(), answer)
    moved = {name.split(".")[1] for name in contender.plan.placement.host_tensors}
    assert moved == {"2", "3"}
    assert contender.plan.split.counts(2) == (20, 17)


@pytest.mark.parametrize("line", ["", "-ngl", "-ngl x", "-ts 1,2", "-ngl 3 -ts a", "'"])
def test_no_answer_is_an_error(line: str) -> None:
    """Words that are no placement are llama.cpp's failure, named."""
    with pytest.raises(LlamaCppError, match="no placement"):
        parse_fit_answer(line, {})


def test_rendering(read: Callable[[str], Model]) -> None:
    """Short cards are marked in the table; JSON has the devices of a plan."""
    model = read("gpt-oss-120b")
    found = list(make_contenders(model, cards(24, 16), PlanOptions(), host_free_bytes=90 * GIB))
    rows = [(one, None) for one in found]
    table = render_contenders(rows).splitlines()
    assert table[0].split()[0] == "placement" and len(table) == len(rows) + 1
    none = next(line for line in table if line.startswith("none"))
    assert "!" in none and "short by" in none
    assert render_contenders(rows, markdown=True).splitlines()[1].count("---") == 7
    data = contenders_to_json(rows)
    assert [p["feasible"] for p in data["placements"]] == [one.plan.feasible for one in found]
    assert data["placements"][0]["devices"][0]["name"] == "CUDA0"


def test_ours_is_what_plan_says(read: Callable[[str], Model]) -> None:
    """The first line is the very plan that `offload plan` makes."""
    model = read("gpt-oss-120b")
    plan = make_plan(model, cards(24, 16), PlanOptions(), host_free_bytes=90 * GIB)
    first = next(
        iter(make_contenders(model, cards(24, 16), PlanOptions(), host_free_bytes=90 * GIB))
    )
    assert first.plan.placement == plan.placement and first.plan.memory == plan.memory


def test_an_answer_without_rules_moves_nothing(read: Callable[[str], Model]) -> None:
    """`--fit` says `-ngl -1` where everything fits."""
    answer = FitAnswer(n_gpu_layers=-1, tensor_split=(), overrides="")
    contender = fit_contender(read("gpt-oss-120b"), cards(80), PlanOptions(), answer)
    assert not contender.plan.placement.placed and contender.plan.feasible
