"""Buffers that real cards logged in public are what we plan for the same placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.recorded_memory import TOLERANCE, Row, load, main, model_of, plan_of, rows_of, runs
from offload.split import HOST

_PRINTED_MIB = 0.02
"""Logs have two decimals, and what stays on the host may be the sum of two of them."""

_all_runs = pytest.mark.parametrize("run", runs(), ids=[run["id"] for run in runs()])
_known = [name for name, file in load()["files"].items() if file["why"] is None]


def _judged(run: Mapping[str, Any], what: str) -> list[Row]:
    return [row for row in rows_of(run) if row.is_judged and row.what == what]


@_all_runs
def test_weights_as_recorded(run: Mapping[str, Any]) -> None:
    """Where the log tells every tensor's type, weights are planned to its last decimal."""
    for row in _judged(run, "weights"):
        assert row.planned_mib == pytest.approx(row.recorded_mib, abs=_PRINTED_MIB), row


@_all_runs
def test_context_as_recorded(run: Mapping[str, Any]) -> None:
    """Context memory depends on no types of weights, and is within 1 % wherever it was logged."""
    for row in _judged(run, "context"):
        assert row.planned_mib == pytest.approx(row.recorded_mib, rel=TOLERANCE), row


@_all_runs
def test_every_run_tests_something(run: Mapping[str, Any]) -> None:
    """A run among those that can be planned has at least one number that is judged."""
    assert any(row.is_judged for row in rows_of(run))
    assert run["origin"] and run["date"] and run["build"]


@pytest.mark.parametrize("name", [n for n in _known if "counts" in load()["files"][n]])
def test_types_as_counted_in_the_log(name: str) -> None:
    """A rebuilt file has as many tensors of each type as llama.cpp counted when it loaded it."""
    assert Counter(t.type.name for t in model_of(name).tensors) == load()["files"][name]["counts"]


def test_types_are_known_or_said_not_to_be() -> None:
    """Files with types by recipe or pattern need no reason, all others have one."""
    for name, file in load()["files"].items():
        assert ("types" in file or "recipe" in file) == (file["why"] is None), name


def test_unknown_types_are_not_judged() -> None:
    """Weights of a file whose types are not known are shown, never compared."""
    run = next(run for run in runs() if load()["files"][run["file"]]["why"])
    weights = [row for row in rows_of(run) if row.what == "weights"]
    assert weights and all(row.planned_mib is None and not row.is_judged for row in weights)


def test_given_shares_give_the_recorded_layers() -> None:
    """`-ts 68,70,60,240` over 94 layers and the output: 15, 15, 13 and 52, as the caches show."""
    run = next(run for run in runs() if run["id"] == "ik425-q235-q4kxl-4gpu")
    assert plan_of(run).split.counts(4) == (15, 15, 13, 52)


def test_old_and_new_count_of_gpu_layers() -> None:
    """30 layers on the card and the output on the host, as `-ngl 30` once meant."""
    run = next(run for run in runs() if run["id"] == "ml13729-q30b-ngl30")
    plan = plan_of(run)
    assert plan.split.layers_of(0) == tuple(range(18, 48))
    assert plan.placement.placed["output.weight"] == HOST


def test_every_case_is_a_run_or_left_out_with_a_reason() -> None:
    """34 cases were recorded, each once."""
    left_out = load()["left_out"]
    ids = [case["id"] for case in (*runs(), *left_out)]
    assert len(ids) == len(set(ids)) == 34
    assert all(case["why"] and case["origin"] for case in left_out)


def test_the_benchmark_prints_all_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a line for each device, and nothing in it differs."""
    assert main(["--markdown"]) == 0
    printed = capsys.readouterr().out
    assert "DIFFERS" not in printed
    n_devices = sum(len(run["devices"]) + (run["host_model_mib"] is not None) for run in runs())
    assert printed.count("\n| ") == n_devices + 1
