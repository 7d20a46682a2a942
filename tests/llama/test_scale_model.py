"""llama.cpp judges the cuts: they load in both builds, and they run."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from offload.engine.binaries import find_binary
from offload.engine.dry_run import dry_run
from offload.engine.load_options import LoadOptions
from offload.engine.process import child_environment
from offload.engine.session import load
from offload.engine.virtual_cards import VirtualCard
from offload.errors import UnsupportedModelError, UsageError
from tests.missing import missing
from tuner.scale_file import write_scale_model
from tuner.scale_model import ScaleModel, make_scale_model, make_scale_model_of_shape
from tuner.shapes import SHAPES
from tuner.synth import RANDOM_ARCHS, write_random
from tuner.synth.container import write_gguf

_BUILD_11434 = "llama-fit-params"
_LEAST = {"gemma-4-26b-a4b": 2}
"""llama.cpp asserts that two layers have a KV cache of their own."""


def _load_in_both(cut: ScaleModel, path: Path, cards: Sequence[VirtualCard]) -> None:
    """Load a header over a hole without weights, in process and by the program."""
    write_gguf(path, cut.metadata, cut.tensors)
    endpoints = [card.endpoint for card in cards[:2]]
    options = LoadOptions(path=str(path), tensor_split=(1, 1), n_ctx=512, n_seq_max=1)
    report = dry_run(options, endpoints=endpoints)
    assert {t.name: t.n_bytes for t in report.tensors} == {t.name: t.n_bytes for t in cut.tensors}
    program = find_binary(_BUILD_11434) or missing(f"{_BUILD_11434} is not here")
    argv = [str(program), "-m", str(path), "-ngl", "99", "-ts", "1,1", "-fitp", "on", "-c", "512"]
    ended = subprocess.run(
        [*argv, "--rpc", ",".join(endpoints)], capture_output=True, timeout=60,
        env=child_environment(),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-500:]


@pytest.mark.parametrize("name", [s.name for s in SHAPES.values() if s.n_expert])
def test_cuts_of_real_shapes_load(name: str, cards: Sequence[VirtualCard], tmp_path: Path) -> None:
    """One, two and three layers of every real MoE are a model to both builds, to the byte."""
    shape = SHAPES[name]
    for n_layer in range(_LEAST.get(name, 1), 4):
        try:
            cut = make_scale_model_of_shape(shape, n_layer=n_layer)
        except UnsupportedModelError:
            assert name == "deepseek-v2-lite"
            continue
        _load_in_both(cut, tmp_path / "cut.gguf", cards)


def test_cuts_of_every_architecture_load(
    archs_dir: Path, cards: Sequence[VirtualCard], tmp_path: Path
) -> None:
    """What llama.cpp's own test writes for each MoE architecture is cut to what still loads."""
    files = sorted(archs_dir.glob("*-moe.gguf"))
    assert len(files) >= 40
    for file in files:
        _load_in_both(_smallest(file), tmp_path / "cut.gguf", cards)


def _smallest(file: Path) -> ScaleModel:
    """The smallest cut that is made for a budget."""
    whole = make_scale_model(file)
    for n_layer in range(1, whole.n_layer_source):
        with contextlib.suppress(UsageError):
            budget_bytes = make_scale_model(file, n_layer=n_layer).n_bytes
            return make_scale_model(file, budget_bytes=budget_bytes)
    return whole


@pytest.mark.parametrize("arch", RANDOM_ARCHS)
def test_cuts_run(arch: str, cards: Sequence[VirtualCard], tmp_path: Path) -> None:
    """A cut of each architecture decodes in process and in llama-bench, without a vocabulary."""
    source = write_random(tmp_path / "source.gguf", arch=arch, n_layer=8)
    path = write_scale_model(make_scale_model(source, n_layer=4), tmp_path / "cut.gguf")
    options = LoadOptions(path=str(path), tensor_split=(1, 1), n_ctx=256, n_seq_max=1)
    with load(options, endpoints=[card.endpoint for card in cards[:2]]) as session:
        assert not session.has_text
        said = session.generate(list(range(3, 40)), n_predict=4)
    assert len(said.tokens) == 4
    program = find_binary("llama-bench") or missing("llama-bench is not here")
    argv = [str(program), "-m", str(path), "-p", "16", "-n", "4", "-r", "1", "-t", "1"]
    ended = subprocess.run(
        [*argv, "-o", "jsonl", "--rpc", cards[0].endpoint], capture_output=True, timeout=120,
        env=child_environment(),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-500:]
    assert ended.stdout.count(b'"samples_ns"') == 2
