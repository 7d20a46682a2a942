"""A saved plan says everything: what was asked for, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.cost import Coefficient, Coefficients
from offload.device import Device, check_devices, device_by_name
from offload.errors import UsageError
from offload.forecast import forecast_of
from offload.ggml import TYPES_BY_NAME
from offload.machine import Host
from offload.model import make_model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.render import plan_to_json
from offload.render.request_json import Request, request_of_json, request_to_json
from offload.render.speeds_json import speeds_of_json, speeds_to_json
from offload.rules import Rule
from offload.saved import read_plan, read_saved
from offload.source import read_header
from offload.speeds import Measured, Speeds
from offload.turn import Turn
from offload.units import GIB
from tuner.synth import write_shape

TYPES = st.sampled_from([TYPES_BY_NAME[name] for name in ("F16", "Q8_0", "BF16", "F32")])
NAMES = st.lists(
    st.sampled_from(("CUDA0", "CUDA1", "CUDA3", "ROCm0", "Vulkan0", "RPC0")),
    max_size=4,
    unique=True,
)
OPTIONS = st.builds(
    PlanOptions,
    n_ctx=st.sampled_from((None, 512, 4096, 65536)),
    n_ubatch=st.sampled_from((64, 512, 2048)),
    n_parallel=st.sampled_from((None, 1, 3)),
    kv_unified=st.sampled_from((None, True, False)),
    type_k=TYPES,
    flash_attn=st.sampled_from((None, True)),
    op_offload=st.booleans(),
    n_gpu_layers=st.sampled_from((None, -1, 3, 99)),
    tensor_split=st.sampled_from((None, (1.0, 2.5), (3.0,))),
    override_rules=st.sampled_from(((), (Rule(pattern=r"blk\.1\.ffn_.*exps", buffer_type="CPU"),))),
    n_cpu_moe=st.sampled_from((None, 2)),
    load_mode=st.sampled_from((None, "mmap")),
    margin_bytes=st.sampled_from(((GIB,), (0,), (123456789,))),
    strategy=st.sampled_from(Strategy),
)


def cards(names: list[str], free: int) -> tuple[Device, ...]:
    """Cards of these names with `free` bytes each."""
    return check_devices(
        [
            device_by_name(name, free + i, endpoint="127.0.0.1:5000" if "RPC" in name else None)
            for i, name in enumerate(names)
        ]
    )


@given(
    names=NAMES,
    free=st.integers(1, 1 << 45),
    options=OPTIONS,
    host=st.one_of(st.none(), st.integers(1, 1 << 45)),
)
def test_requests_survive_json(
    names: list[str], free: int, options: PlanOptions, host: int | None
) -> None:
    """What was asked for comes back equal, to the byte."""
    request = Request(
        model_path="/a/ß\n.gguf", devices=cards(names, free), options=options, host_free_bytes=host
    )
    assert request_of_json(json.loads(json.dumps(request_to_json(request)))) == request


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(where=st.sampled_from(("model_path", "machine", "options", "card", "option")), value=JSON)
def test_edited_requests_are_read_or_refused(where: str, value: Any) -> None:
    """Whatever a hand puts into a saved request, it is a Request or one clear error."""
    data: dict[str, Any] = {"model_path": "m", "machine": {"card": []}, "options": {}}
    if where == "card":
        data["machine"]["card"] = [{"name": "CUDA0", "memory": value}]
    elif where == "option":
        data["options"] = dict.fromkeys(("n_ctx", "tensor_split", "type_k", "margin_bytes"), value)
    else:
        data[where] = value
    try:
        assert isinstance(request_of_json(data), Request)
    except UsageError as error:
        assert "request" in str(error)


def places(plan: Plan) -> object:
    """Everything about a plan but the way to it."""
    return plan.placement.split, dict(plan.placement.placed), plan.memory, dict(plan.short_bytes)


@pytest.mark.parametrize(
    ("names", "gib", "options"),
    [
        (["CUDA0", "CUDA1"], 20, PlanOptions()),
        (["CUDA0", "CUDA1"], 80, PlanOptions()),
        (["CUDA0"], 24, PlanOptions(n_cpu_moe=5, n_ctx=4096)),
        (["CUDA0", "ROCm0", "RPC0"], 16, PlanOptions(strategy=Strategy.LAST)),
        (["CUDA0", "CUDA1"], 24, PlanOptions(split_mode="none", main_gpu=1, n_ctx=8192)),
        (["CUDA0", "CUDA1"], 24, PlanOptions(tensor_split=(3.0, 1.0), n_gpu_layers=20)),
        (["CUDA0"], 24, PlanOptions(n_gpu_layers=0)),
        (["CUDA0", "CUDA1"], 2, PlanOptions()),
        ([], 1, PlanOptions()),
    ],
)
def test_saved_plans_come_back(
    tmp_path: Path, names: list[str], gib: int, options: PlanOptions
) -> None:
    """Places, bytes and what is short are those of the plan that was saved."""
    model_path = write_shape("gpt-oss-120b", tmp_path / "m.gguf")
    model = make_model(read_header(model_path))
    plan = make_plan(model, cards(names, gib * GIB), options, host_free_bytes=90 * GIB)
    saved = tmp_path / "plan.json"
    saved.write_text(json.dumps(plan_to_json(plan)))
    assert places(read_plan(str(saved))) == places(plan)
    request = read_saved(str(saved)).request
    again = make_plan(
        model, request.devices, request.options, host_free_bytes=request.host_free_bytes
    )
    assert places(again) == places(plan)


def test_llama_cpp_s_own_numbers_come_back(tmp_path: Path) -> None:
    """Compute bytes that a dry run gave are kept, not estimated anew."""
    model_path = write_shape("gpt-oss-120b", tmp_path / "m.gguf")
    plan = make_plan(make_model(read_header(model_path)), cards(["CUDA0"], 24 * GIB), PlanOptions())
    data = plan_to_json(plan)
    data["compute_source"] = "dry-run"
    data["devices"][0]["compute_bytes"] = 12 * GIB
    data["host"]["compute_bytes"] = 7
    saved = tmp_path / "plan.json"
    saved.write_text(json.dumps(data))
    back = read_plan(str(saved))
    assert back.compute_source == "dry-run"
    assert back.memory.devices[0].compute_bytes == 12 * GIB
    assert back.memory.host.compute_bytes == 7
    assert not back.feasible and back.short_bytes[0] == -back.headroom_bytes(0)
    data["devices"][0]["compute_bytes"] = "much"
    saved.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="compute_bytes"):
        read_plan(str(saved))


def change_value(argv: list[str], flag: str, value: str) -> None:
    """As somebody does with an editor."""
    argv[argv.index(flag) + 1] = value


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda plan: plan["devices"][0].update(model_bytes=7), "model_bytes of its device"),
        (lambda plan: plan["devices"][0].update(layers=[1]), "layers of its device"),
        (lambda plan: plan["devices"].pop(), "'devices'"),
        (lambda plan: plan.update(tensor_split=[1]), "'tensor_split'"),
        (lambda plan: plan.update(n_gpu_layers=3), "'n_gpu_layers'"),
        (lambda plan: plan["launch"].update(n_gpu_layers=3), "'n_gpu_layers'"),
        (lambda plan: plan["rules"][0].update(buffer_type="CUDA0"), "'rules'"),
        (lambda plan: plan["model"].update(size_bytes=5), "size_bytes of its model"),
        (lambda plan: plan["model"].update(path="elsewhere.gguf"), "path of its model"),
        (lambda plan: plan["options"].update(n_ctx=8192), "n_ctx of its options"),
        (lambda plan: plan["options"].update(n_ubatch=64), "n_ubatch of its options"),
        (lambda plan: plan["options"].update(type_k="q8_0"), "type_k of its options"),
        (lambda plan: change_value(plan["argv"], "-ngl", "3"), "'argv' says -ngl 3"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], words: str
) -> None:
    """An edited key that would be ignored, or a model that is another by now, is said."""
    model_path = write_shape("gpt-oss-120b", tmp_path / "m.gguf")
    model = make_model(read_header(model_path))
    plan = make_plan(model, cards(["CUDA0"], 24 * GIB), PlanOptions(), host_free_bytes=90 * GIB)
    data = plan_to_json(plan)
    saved = tmp_path / "plan.json"
    saved.write_text(json.dumps(data))
    read_plan(str(saved))
    data = json.loads(json.dumps(data))
    edit(data)
    saved.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=words):
        read_plan(str(saved))


MEASURED = Measured(
    coefficients=Coefficients(
        table={
            name: Coefficient(name, value, "s/B", value / 20, 7)
            for name, value in (
                ("decode.bytes.CUDA0.F16", 3e-12),
                ("decode.bytes.CPU.F16", 2e-11),
                ("prefill.link", 1.1e-10),
            )
        },
        covariance={("decode.bytes.CPU.F16", "decode.bytes.CUDA0.F16"): -1e-26},
        residual_sds={"decode": 0.03, "prefill": 0.04},
        source="measured",
    ),
    device_of={"CUDA0": "CUDA0", "CUDA1": "CUDA0"},
)


@given(
    prompt=st.integers(0, 1 << 30),
    depth=st.one_of(st.none(), st.integers(0, 1 << 30)),
    bandwidth=st.one_of(st.none(), st.integers(1, 1 << 40)),
    cores=st.one_of(st.none(), st.integers(1, 512)),
    measured=st.sampled_from((None, MEASURED)),
    skew=st.floats(0, 5),
    may_drop=st.booleans(),
)
def test_speeds_survive_json(
    prompt: int,
    depth: int | None,
    bandwidth: int | None,
    cores: int | None,
    measured: Measured | None,
    skew: float,
    may_drop: bool,
) -> None:
    """What a plan was priced with is the same after a file, to the last bit."""
    speeds = Speeds(
        turn=Turn(n_prompt=prompt, n_depth=depth),
        host=Host(bandwidth_bytes_per_s=bandwidth, n_cores_physical=cores),
        measured=measured,
        routing_skew=skew,
        may_drop_cards=may_drop,
    )
    assert speeds_of_json(json.loads(json.dumps(speeds_to_json(speeds)))) == speeds


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("turn", 3, "turn is not an object"),
        ("turn", {"n_prompt": "1", "n_generate": 1}, "n_prompt"),
        ("host", {"speed": "fast"}, "host"),
        ("routing_skew", float("nan"), "routing_skew"),
        ("measured", {"coefficients": [{"name": 1}]}, "name is not text"),
    ],
)
def test_broken_speeds_are_named(key: str, value: object, said: str) -> None:
    """A plan that was edited by hand says which part of its speeds is wrong."""
    data = {**(speeds_to_json(Speeds(measured=MEASURED)) or {}), key: value}
    with pytest.raises(UsageError, match=said):
        speeds_of_json(data)


def test_a_saved_plan_is_priced_as_before(tmp_path: Path) -> None:
    """Decode and prefill are those the plan was saved with; plans without speeds still read."""
    path = write_shape("gpt-oss-120b", tmp_path / "m.gguf")
    speeds = Speeds(turn=Turn(n_prompt=100), host=Host(bandwidth_bytes_per_s=80 * 10**9))
    plan = make_plan(
        make_model(read_header(path)),
        [device_by_name("CUDA0", 24 * GIB), device_by_name("CUDA1", 24 * GIB)],
        PlanOptions(n_ctx=4096),
        speeds=speeds._replace(measured=MEASURED),
    )
    data = plan_to_json(plan, forecast_of(plan))
    assert data["prediction"] is not None
    saved = tmp_path / "plan.json"
    saved.write_text(json.dumps(data))
    again = read_plan(str(saved))
    assert again.speeds == plan.speeds
    assert forecast_of(again) == forecast_of(plan)
    del data["speeds"]
    saved.write_text(json.dumps(data))
    assert read_plan(str(saved)).speeds is None
