"""Whose coefficients predict a plan, and what of its placement does the prediction see?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchmarks.speed_cases import model_of
from offload.cost import Coefficient, Coefficients
from offload.device import Device, device_by_name
from offload.forecast import MIXED, PROFILE, Measured, make_forecast, plan_work
from offload.machine import Host
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan

NO_HOST = Host()


def planned(
    *names: str, strategy: Strategy = Strategy.ALL, load_mode: str | None = None, **more: bool
) -> Plan:
    """A plan of a 30B model on roomy cards."""
    cards = [device_by_name(name, 32 << 30) for name in names]
    options = PlanOptions(n_ctx=4096, strategy=strategy, load_mode=load_mode, **more)  # type: ignore[arg-type]
    return make_plan(model_of("qwen3-30b-a3b", "Q4_K_M"), cards, options)


def measured(device_of: Mapping[str, str], *names: str) -> Measured:
    """A profile in which everything takes a microsecond per unit."""
    table = {
        name: Coefficient(name=name, value=1e-6, unit="s", standard_error=1e-7) for name in names
    }
    return Measured(
        coefficients=Coefficients(
            table=table, covariance={}, residual_sds={"decode": 0.01}, source="measured"
        ),
        device_of=device_of,
    )


def features(plan: Plan) -> tuple[str, ...]:
    """All features of a plan's work."""
    decode, prefill = plan_work(plan)
    return (*decode.amounts, *prefill.amounts)


def test_without_a_profile_it_is_a_prior() -> None:
    """Data sheets and defaults always give something, marked as such."""
    found = make_forecast(planned("CUDA0"), NO_HOST)
    assert found is not None and found.source == "prior"
    assert found.decode.low_s < found.decode.seconds < found.decode.high_s


def test_a_profile_of_all_features_is_enough() -> None:
    """Where every feature was measured nothing is guessed."""
    plan = planned("CUDA0")
    found = make_forecast(plan, NO_HOST, measured({"CUDA0": "CUDA0"}, *features(plan)))
    assert found is not None and found.source == PROFILE and not found.borrowed


def test_a_card_speaks_for_others_of_its_kind() -> None:
    """A profile's one card predicts a plan for two, and they are wrong together."""
    two = planned("CUDA0", "CUDA1")
    names = [name for name in features(two) if "CUDA1" not in name]
    alone = {"CUDA0": "CUDA0"}
    both = {**alone, "CUDA1": "CUDA0"}
    mixed = make_forecast(two, NO_HOST, measured(alone, *names))
    found = make_forecast(two, NO_HOST, measured(both, *names))
    assert mixed is not None and mixed.source == MIXED
    assert found is not None and found.source == PROFILE
    amounts = plan_work(two)[0].amounts
    assert found.decode.seconds == pytest.approx(1e-6 * sum(amounts.values()))


def test_devices_are_renamed() -> None:
    """The profile's Vulkan0 may be the plan's CUDA0, and its own name then means nothing."""
    plan = planned("CUDA0")
    names = [name.replace("CUDA0", "Vulkan0") for name in features(plan)]
    found = make_forecast(plan, NO_HOST, measured({"CUDA0": "Vulkan0"}, *names))
    other = make_forecast(plan, NO_HOST, measured({}, *names))
    assert found is not None and found.source == PROFILE
    assert other is not None and other.source == MIXED


def test_load_mode_decides_how_experts_stream() -> None:
    """Pinned without mmap, through pageable memory with it, not at all when repacked."""
    pinned, mapped = planned("CUDA0"), planned("CUDA0", load_mode="mmap")
    repacked = planned("CUDA0", no_host=True)
    assert "prefill.stream.CUDA0" in features(pinned)
    assert "prefill.stream_mmap.CUDA0" in features(mapped)
    assert not [name for name in features(repacked) if "stream" in name]
    assert "decode.read.CPU_REPACK.Q4_K" in features(repacked)


def test_faster_cards_are_faster() -> None:
    """The described card's data sheet reaches the forecast."""

    def decode_s(description: str) -> float:
        card: Device = replace(device_by_name("CUDA0", 32 << 30), description=description)
        plan = make_plan(model_of("qwen3-30b-a3b", "Q4_K_M"), [card], PlanOptions(n_ctx=4096))
        found = make_forecast(plan, NO_HOST)
        assert found is not None
        return found.decode.seconds

    assert decode_s("RTX 4090") < decode_s("RTX 3060")


def test_a_measured_phase_keeps_its_own_scatter() -> None:
    """Prefill that must be guessed does not make measured decode any less sure."""
    plan = planned("CUDA0")
    decode = [name for name in features(plan) if name.startswith("decode.")]
    whole = make_forecast(plan, NO_HOST, measured({"CUDA0": "CUDA0"}, *features(plan)))
    part = make_forecast(plan, NO_HOST, measured({"CUDA0": "CUDA0"}, *decode))
    assert whole is not None and part is not None and part.source == MIXED
    assert part.decode == whole.decode
    assert part.prefill.high_s / part.prefill.low_s > 2
