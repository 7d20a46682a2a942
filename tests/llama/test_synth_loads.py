"""llama.cpp judges our files: real shapes load and small random models generate."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from offload.engine.binaries import build_number, find_binary
from offload.engine.dry_run import dry_run
from offload.engine.generate import generate
from offload.engine.load_options import LoadOptions
from offload.engine.report import LoadReport
from offload.engine.virtual_cards import VirtualCard
from offload.units import MIB
from tests.missing import missing
from tuner.shapes import SHAPES, Shape
from tuner.shapes.recipes import RECIPES
from tuner.synth import RANDOM_ARCHS, write_random, write_shape
from tuner.synth.model import make_file

_MIXES = tuple(r for r in RECIPES if r not in ("F32", "BF16", "MXFP4_BF16", "Q3_K_MIX"))


def _ask(
    path: Path,
    cards: Sequence[VirtualCard],
    *,
    overrides: tuple[tuple[str, str], ...] = (),
) -> LoadReport:
    """Two cards sharing layers evenly, as llama-fit-params counts (one slot, all outputs)."""
    options = LoadOptions(
        path=str(path), tensor_split=(1, 1), n_ctx=8192, overrides=overrides,
        n_seq_max=1, kv_unified=False, n_outputs_max=0,
    )  # fmt: skip
    return dry_run(options, endpoints=[card.endpoint for card in cards[:2]])


def _first_experts(n: int) -> tuple[tuple[str, str], ...]:
    """What `-ncmoe n` stands for."""
    pattern = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    return tuple((pattern.format(il), "CPU") for il in range(n))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_real_shapes_load(shape: Shape, cards: Sequence[VirtualCard], tmp_path: Path) -> None:
    """llama.cpp takes every tensor of the file, except those of MTP blocks, in its own size."""
    report = _ask(write_shape(shape, tmp_path / "s.gguf"), cards)
    ours = {
        t.name: t.n_bytes
        for t in make_file(shape)[1]
        if not t.name.startswith(tuple(f"blk.{il}." for il in range(shape.n_layer, 999)))
    }
    theirs = {t.name: t.n_bytes for t in report.tensors}
    if shape.arch == "glm-dsa":  # this one tensor of the MTP block is loaded all the same
        assert theirs.pop(f"blk.{shape.n_layer}.exp_probs_b.bias") == 4 * shape.n_expert
    assert theirs == ours
    assert len(report.layers) == shape.n_layer_all + 1


@pytest.mark.parametrize(
    ("n", "mib"),
    [(0, (28310, 25750)), (8, (16662, 25750)), (9, (15206, 25750)), (10, (13750, 25750)),
     (11, (12294, 25750))],
)  # fmt: skip
def test_case_study_weights(
    n: int, mib: tuple[int, int], cards: Sequence[VirtualCard], shape_119b: Path
) -> None:
    """Relieving the first n layers takes 1456 MiB each off card 0 and never a byte off card 1."""
    report = _ask(shape_119b, cards, overrides=_first_experts(n))
    assert tuple(card.model_bytes // MIB for card in report.devices) == mib


@pytest.mark.parametrize(
    ("n_ctx", "n_ubatch", "n", "mib"),
    [
        (8192, 512, 8, (16662, 25750, None)),
        (32768, 512, 0, (28310, 25750, 308)),
        (32768, 512, 8, (16662, 25750, 112)),
        (32768, 2048, 0, (28310, 25750, 1234)),
        (32768, 2048, 8, (16662, 25750, 448)),
    ],
)
def test_case_study_by_program(
    n_ctx: int, n_ubatch: int, n: int, mib: tuple[int, int, int | None],
    fit_params: Path, cards: Sequence[VirtualCard], shape_119b: Path,
) -> None:  # fmt: skip
    """llama-fit-params prints the case study's weights; a rule also shrinks card 0's compute."""
    if build_number(fit_params) != 11434:
        pytest.skip("compute buffers are those of b11434")
    argv = [str(fit_params), "-m", str(shape_119b), "-ngl", "99", "-ts", "1,1", "-fitp", "on"]
    argv += ["-c", str(n_ctx), "-ub", str(n_ubatch), "-ncmoe", str(n)]
    argv += ["--rpc", ",".join(card.endpoint for card in cards[:2])]
    out = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    rows = {name: [int(m) for m in rest] for name, *rest in map(str.split, out.splitlines())}
    assert (rows["RPC0"][0], rows["RPC1"][0]) == mib[:2]
    assert mib[2] in (None, rows["RPC0"][2])


@pytest.mark.parametrize("name", ["kimi-k2", "glm-4.5-air"])
def test_split_and_vocabulary_change_no_memory(
    name: str, cards: Sequence[VirtualCard], tmp_path: Path
) -> None:
    """A split set with a full vocabulary is planned like the single file without one."""
    plain = _ask(write_shape(name, tmp_path / "a.gguf"), cards)
    rich = _ask(write_shape(name, tmp_path / "b.gguf", vocab="full", n_parts=3), cards)
    assert rich.devices == plain.devices and rich.host == plain.host


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_types_are_llama_quantize_s(shape: Shape, tmp_path: Path) -> None:
    """`llama-quantize --dry-run` chooses the same type for every tensor as our recipes do."""
    program = find_binary("llama-quantize") or missing("llama-quantize is not here")
    path = write_shape(shape, tmp_path / "s.gguf", quant="BF16")
    drawn = random.Random(shape.name).sample(_MIXES, 4)
    for recipe in sorted({"Q4_K_M", *drawn}):
        run = subprocess.run(
            [program, "--dry-run", path, recipe],
            capture_output=True, text=True, errors="replace", timeout=60, check=True,
        )  # fmt: skip
        lines = re.findall(
            r"\] (\S+) +- \[.*\], type = *(\w+), size = *[\d.]+ MiB(?: -> *[\d.]+ MiB \((\w+)\))?",
            run.stdout + run.stderr,
        )
        theirs = {name: (new or old).upper() for name, old, new in lines}
        assert theirs == {t.name: t.type.name for t in make_file(shape, quant=recipe)[1]}, recipe


@pytest.mark.parametrize("arch", RANDOM_ARCHS)
def test_random_models_generate(arch: str, cards: Sequence[VirtualCard], tmp_path: Path) -> None:
    """A small random model of every architecture loads over two cards and decodes any text."""
    path = write_random(tmp_path / "m.gguf", arch=arch)
    options = LoadOptions(path=str(path), tensor_split=(1, 1), n_ctx=256, n_seq_max=1)
    said = generate(
        options, prompt="Grüße an 東京", n_predict=4, endpoints=[c.endpoint for c in cards[:2]]
    )
    assert len(said.tokens) == 4
    assert said.n_prompt >= len("Grüße an 東京".encode())


@pytest.mark.parametrize(
    "quant", ["Q8_0", "Q4_0", "Q5_1", "Q2_K", "Q3_K_M", "Q6_K", "IQ2_XXS", "IQ1_M", "IQ3_S",
              "IQ4_XS", "TQ1_0", "MXFP4_MOE", "BF16"],
)  # fmt: skip
def test_random_blocks_pass_check_tensors(quant: str, tmp_path: Path) -> None:
    """llama.cpp's own check finds no invalid block in any type, and the model runs."""
    program = find_binary("llama-completion") or missing("llama-completion is not here")
    path = write_random(tmp_path / "m.gguf", arch="qwen3moe", quant=quant)
    argv = [
        str(program),
        "-m",
        str(path),
        "-p",
        "Hi",
        "-n",
        "2",
        "-t",
        "1",
        "-c",
        "256",
        "--check-tensors",
    ]
    argv += ["-no-cnv", "--no-warmup", "-fit", "off", "-ngl", "0"]
    ended = subprocess.run(argv, capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr[-500:]


def test_split_random_model_generates(llama_cpp_python: None, tmp_path: Path) -> None:
    """A runnable model in three parts says what the same model in one file says."""
    texts = []
    for n_parts in (1, 3):
        path = write_random(tmp_path / "m.gguf", arch="glm4moe", n_parts=n_parts, seed=4)
        options = LoadOptions(path=str(path), n_ctx=256, n_seq_max=1)
        texts.append(generate(options, prompt="Hello", n_predict=8).tokens)
    assert texts[0] == texts[1]
