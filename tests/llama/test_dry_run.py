"""llama.cpp's dry run says what llama.cpp's real run does, whoever is asked and however."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offload.engine.binaries import library_folder
from offload.engine.dry_run import BINARY, IN_PROCESS, dry_run, nearest_for_fit_params
from offload.engine.generate import generate
from offload.engine.load_options import LoadOptions
from offload.engine.report import LoadReport
from offload.engine.virtual_cards import VirtualCard
from offload.errors import LlamaCppError, UsageError
from offload.split import split_layers
from offload.units import MIB
from tests.llama.server import load_for_real
from tuner.synth import RANDOM_ARCHS, write_random

pytestmark = pytest.mark.usefixtures("llama_cpp_python")

EXPERTS = r"ffn_(up|down|gate|gate_up)_(ch|)exps"


def endpoints(cards: Sequence[VirtualCard]) -> list[str]:
    """What `--rpc` takes."""
    return [card.endpoint for card in cards]


def memory(report: LoadReport) -> list[tuple[int, int, int]]:
    """Model, context and compute bytes of every card, the host and repacked buffers."""
    rows = (*report.devices, report.host, *report.extra)
    return [(row.model_bytes, row.context_bytes, row.compute_bytes) for row in rows]


@pytest.mark.parametrize(
    ("n_cpu_moe", "first_mib", "second_mib"),
    [
        (0, 28310, 25750),
        (8, 16662, 25750),
        (9, 15206, 25750),
        (10, 13750, 25750),
        (11, 12294, 25750),
    ],
)
def test_case_study(shape_119b: Path, n_cpu_moe: int, first_mib: int, second_mib: int) -> None:
    """Relieving the first layers of the 119B leaves the second card's weights as they were."""
    rules = tuple((rf"blk\.{il}\.{EXPERTS}", "CPU") for il in range(n_cpu_moe))
    options = LoadOptions(path=str(shape_119b), tensor_split=(1, 1), n_ctx=8192, overrides=rules)
    report = dry_run(options, n_cards=2)
    assert [d.model_bytes // MIB for d in report.devices] == [first_mib, second_mib]


def test_119b_on_three_cards_takes_less_than_two_seconds(shape_119b: Path) -> None:
    """Starting everything, three cards included, is part of the time."""
    options = LoadOptions(path=str(shape_119b), tensor_split=(12, 12, 13))
    start_s = time.perf_counter()
    report = dry_run(options, n_cards=3)
    assert time.perf_counter() - start_s < 2.0
    assert report.layers == ("RPC0",) * 12 + ("RPC1",) * 12 + ("RPC2",) * 13


def test_layers_rules_and_tensors(small_moe: Path) -> None:
    """Owners are those of the split; exactly the matched tensors and the embeddings are hosted."""
    pattern = rf"blk\.(1|3|5)\.{EXPERTS}"
    options = LoadOptions(
        path=str(small_moe), n_gpu_layers=6, tensor_split=(1, 2), overrides=((pattern, "CPU"),)
    )
    report = dry_run(options, n_cards=2)
    names = ("RPC0", "RPC1", "CPU")
    assert report.layers == tuple(names[i] for i in split_layers(6, 6, (1, 2)).owners)
    matched = {t.name for t in report.tensors if re.search(pattern, t.name)}
    assert set(report.overridden) == matched != set()
    first_layer = {t.name for t in report.tensors if t.name.startswith("blk.0.")}
    assert report.layers[0] == "CPU"
    assert report.tensors_on_host() == matched | first_layer | {"token_embd.weight"}


def test_rule_to_another_card(small_moe: Path) -> None:
    """A rule may name a card, by its device name or by its buffer type, and moves the bytes."""
    plain = LoadOptions(path=str(small_moe), tensor_split=(6, 1))
    moved = replace(plain, overrides=((r"blk\.0\.ffn_up_exps", "RPC1"),))
    before, after = dry_run(plain, n_cards=2), dry_run(moved, n_cards=2)
    n_bytes = next(t.n_bytes for t in after.tensors if t.name == "blk.0.ffn_up_exps.weight")
    assert after.devices[1].model_bytes - before.devices[1].model_bytes == n_bytes
    assert after.overridden == {"blk.0.ffn_up_exps.weight": after.devices[1].buffer_type}


def test_dry_run_equals_real_run(small_moe: Path, cards: tuple[VirtualCard, ...]) -> None:
    """Loading for real allocates the weights and caches of the dry run to the byte.

    Compute differs a little: a real load reserves several graphs in turn, a dry one counts
    the first (`llama_context::sched_reserve`).
    """
    options = LoadOptions(
        path=str(small_moe),
        tensor_split=(2, 2, 3),
        overrides=((rf"blk\.(1|4)\.{EXPERTS}", "CPU"),),
        n_ctx=2048,
    )
    dry = dry_run(options, endpoints=endpoints(cards))
    real = generate(options, [1, 2, 3] * 20, n_predict=4, endpoints=endpoints(cards)).report
    for said, done in zip(memory(dry), memory(real), strict=True):
        assert said[:2] == done[:2]
        assert said[2] == pytest.approx(done[2], abs=MIB)
    assert dry.tensors == real.tensors
    assert (dry.layers, dry.overridden) == (real.layers, real.overridden)
    for device in real.devices:
        for kind, n_bytes in (("KV", device.context_bytes), ("compute", device.compute_bytes)):
            assert real.log.bytes_of(kind)[device.buffer_type] == pytest.approx(n_bytes, abs=6000)


def test_dry_run_equals_llama_server(
    small_moe: Path, llama_server: Path, cards: tuple[VirtualCard, ...], tmp_path: Path
) -> None:
    """llama-server with its default slots allocates what a dry run of defaults says."""
    folder = library_folder(llama_server)
    if folder is None:
        pytest.skip(f"{llama_server} has no libllama of its own beside it")
    rule = rf"blk\.(0|5)\.{EXPERTS}"
    options = LoadOptions(path=str(small_moe), tensor_split=(2, 3, 2), overrides=((rule, "CPU"),))
    dry = dry_run(options, endpoints=endpoints(cards), library_folder=folder)
    args = ["-m", str(small_moe), "--rpc", ",".join(endpoints(cards)), "-dev", "RPC0,RPC1,RPC2"]
    args += ["-ts", "2,3,2", "-ot", f"{rule}=CPU", "-c", "4096", "--fit", "off", "--no-warmup"]
    real = load_for_real(llama_server, args, tmp_path, {})
    assert (real.layers, real.overridden) == (dry.layers, dry.overridden)
    for device in dry.devices:
        said = (device.model_bytes, device.context_bytes, device.compute_bytes)
        for n_bytes, kind in zip(said, ("model", "KV", "compute"), strict=True):
            done = real.bytes_of(kind)[device.buffer_type]
            assert done == pytest.approx(n_bytes, abs=MIB if kind == "compute" else 6000)


def test_pipeline_parallelism_shows(small_moe: Path) -> None:
    """Without rules virtual cards pipeline as real ones do, and need more; one rule ends it."""
    plain = LoadOptions(path=str(small_moe), tensor_split=(3, 4))
    ruled = replace(plain, overrides=(("matches nothing", "CPU"),))
    with_pipeline, without = dry_run(plain, n_cards=2), dry_run(ruled, n_cards=2)
    assert with_pipeline.log.pipeline_parallel
    assert not without.log.pipeline_parallel
    assert with_pipeline.devices[0].compute_bytes > without.devices[0].compute_bytes


@pytest.mark.parametrize("arch", RANDOM_ARCHS)
def test_both_backends_agree(
    arch: str, fit_params: Path, cards: tuple[VirtualCard, ...], tmp_path: Path
) -> None:
    """The same build of llama.cpp, asked in process or by llama-fit-params, says the same."""
    path = write_random(tmp_path / "model.gguf", arch=arch)
    options = nearest_for_fit_params(
        LoadOptions(
            path=str(path),
            tensor_split=(1, 1, 1),
            overrides=((rf"blk\.(0|2)\.{EXPERTS}", "CPU"),),
            n_ctx=2048,
            type_k="q8_0",
            type_v="q8_0",
        )
    )
    asked = endpoints(cards)
    binary = dry_run(options, endpoints=asked, backend=BINARY, fit_params=fit_params)
    folder = library_folder(fit_params)
    if folder is None:
        pytest.skip(f"{fit_params} has no libllama of its own beside it")
    process = dry_run(options, endpoints=asked, library_folder=folder)
    assert [tuple(n // MIB * MIB for n in row) for row in memory(process)] == memory(binary)
    assert (process.layers, process.overridden) == (binary.layers, binary.overridden)
    assert process.is_exact
    assert not binary.is_exact


def test_free_memory_decides_without_a_split(small_moe: Path) -> None:
    """Cards that report 1 and 5 GiB free share the layers like 1 to 5."""
    report = dry_run(LoadOptions(path=str(small_moe)), n_cards=2, free_bytes=[1 << 30, 5 << 30])
    names = ("RPC0", "RPC1")
    assert report.layers == tuple(names[i] for i in split_layers(6, -1, (1, 5)).owners)


def test_host_only(small_moe: Path) -> None:
    """Without cards everything is on the host."""
    report = dry_run(LoadOptions(path=str(small_moe)))
    assert set(report.layers) == {"CPU"}
    assert report.devices == ()
    assert report.host_bytes >= small_moe.stat().st_size * 0.9


def test_op_offload_like_cuda(shape_119b: Path) -> None:
    """Cards that take host operations over stage them on the first, whoever owns the layers."""
    options = LoadOptions(
        path=str(shape_119b),
        tensor_split=(18, 19),
        n_ctx=8192,
        overrides=((rf"blk\.(30|31)\.{EXPERTS}", "CPU"),),
        use_extra_bufts=False,
    )
    plain = dry_run(options, n_cards=2)
    staged = dry_run(options, n_cards=2, op_offload_like_cuda=True)
    largest = max(t.n_bytes for t in staged.tensors if t.name.startswith("blk.30."))
    grown = staged.devices[0].compute_bytes - plain.devices[0].compute_bytes
    assert grown >= 0.9 * largest
    assert staged.devices[1].compute_bytes <= plain.devices[1].compute_bytes
    assert [d.model_bytes for d in staged.devices] == [d.model_bytes for d in plain.devices]


@pytest.mark.parametrize("change", [{"op_offload": False}, {"n_ubatch": 16, "n_batch": 16}])
def test_no_op_offload(small_moe: Path, change: dict[str, Any]) -> None:
    """Without op offload, or with batches below 32, nothing is staged."""
    options = LoadOptions(
        path=str(small_moe),
        tensor_split=(3, 4),
        overrides=((EXPERTS, "CPU"),),
        use_extra_bufts=False,
    )
    options = replace(options, **change)
    assert memory(dry_run(options, n_cards=2)) == memory(
        dry_run(options, n_cards=2, op_offload_like_cuda=True)
    )


def test_unreachable_card(small_moe: Path) -> None:
    """llama.cpp aborts when a server is not there; we say so and live."""
    with pytest.raises(LlamaCppError, match=r"SIGABRT.*Failed to connect to 127.0.0.1:1") as caught:
        dry_run(LoadOptions(path=str(small_moe)), endpoints=["127.0.0.1:1"])
    assert caught.value.exit_code == -signal.SIGABRT
    assert caught.value.last_lines


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "/nowhere/model.gguf"}, "No such file"),
        ({"overrides": (("(", "CPU"),)}, "regular expression"),
        ({"type_v": "q8_0", "flash_attn": False}, "flash_attn"),
    ],
)
def test_refusals_of_llama_cpp(small_moe: Path, change: dict[str, Any], words: str) -> None:
    """What llama.cpp refuses reaches the user in its own words."""
    options = replace(LoadOptions(path=str(small_moe)), **change)
    with pytest.raises(LlamaCppError, match=words) as caught:
        dry_run(options, n_cards=1)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF" + b"\xff" * 100])
def test_not_a_model(content: bytes, tmp_path: Path) -> None:
    """A file that is no GGUF is an error with llama.cpp's words, not a crash of ours."""
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(LlamaCppError):
        dry_run(LoadOptions(path=str(path)), n_cards=1)


def test_unknown_buffer_type(small_moe: Path) -> None:
    """A rule to a card that is not there names those that are."""
    options = LoadOptions(path=str(small_moe), overrides=(("exps", "CUDA7"),))
    with pytest.raises(UsageError, match=r"'CUDA7'; known: CPU, RPC0"):
        dry_run(options, n_cards=1)


def test_fit_params_refuses_what_it_cannot_be_asked(small_moe: Path) -> None:
    """llama-server's slots over one cache and op offload are the in-process backend's alone."""
    options = LoadOptions(path=str(small_moe))
    with pytest.raises(UsageError, match="unified"):
        dry_run(options, backend=BINARY)
    with pytest.raises(UsageError, match=IN_PROCESS):
        dry_run(nearest_for_fit_params(options), backend=BINARY, op_offload_like_cuda=True)


def test_not_llama_cpp(small_moe: Path) -> None:
    """A program that is something else is found out by what it does not answer."""
    with pytest.raises(LlamaCppError, match="exit code 1"):
        dry_run(
            nearest_for_fit_params(LoadOptions(path=str(small_moe))),
            backend=BINARY,
            fit_params=Path("/bin/false"),
        )


def test_time_out(small_moe: Path) -> None:
    """A dry run that takes too long is ended."""
    with pytest.raises(LlamaCppError, match="did not end within"):
        dry_run(LoadOptions(path=str(small_moe)), n_cards=1, timeout_s=0.01)
