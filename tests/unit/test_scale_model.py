"""Small models with the layers of big ones, and their files."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from offload.errors import InfeasibleError, OffloadError, UnsupportedModelError, UsageError
from offload.model import make_model
from offload.source import read_header
from offload.units import GIB, MIB
from tuner import scale_file
from tuner.scale_file import temporary_scale_model, write_scale_model
from tuner.scale_model import ScaleModel, make_scale_model, make_scale_model_of_shape
from tuner.shapes import SHAPES
from tuner.synth import RANDOM_ARCHS, write_random, write_shape
from tuner.synth.container import FileTensor, Typed
from tuner.typed_keys import read_typed_keys


def _small(tmp_path: Path, arch: str = "qwen3moe") -> Path:
    return write_random(tmp_path / "source.gguf", arch=arch)


def test_as_many_layers_as_the_budget_allows(tmp_path: Path) -> None:
    """One layer more would not fit, and every width, expert and token is as in the source."""
    path = write_shape("glm-4.5-air", tmp_path / "air.gguf")
    cut = make_scale_model(path, budget_bytes=8 * GIB)
    more = make_scale_model(path, n_layer=len(cut.source_layers) + 1)
    assert cut.n_bytes <= 8 * GIB < more.n_bytes
    big = make_model(read_header(path))
    same = ("n_embd", "n_vocab", "n_expert", "n_expert_used", "arch")
    assert [getattr(cut.model, name) for name in same] == [getattr(big, name) for name in same]
    assert cut.model.layers[0].kind == big.layers[0].kind


def test_mtp_blocks_are_left_out(tmp_path: Path) -> None:
    """No unit of -ngl is taken by a block that loads nothing."""
    cut = make_scale_model(write_shape("glm-4.5-air", tmp_path / "air.gguf"), n_layer=4)
    assert cut.model.n_layer_nextn == 0
    assert cut.model.n_layer == 4
    assert not any("nextn" in t.name for t in cut.tensors)


def test_types_stay_in_proportion(tmp_path: Path) -> None:
    """Half the down projections of Q4_K_M are Q6_K, in the cut as in the whole."""
    cut = make_scale_model(write_shape("qwen3-30b-a3b", tmp_path / "m.gguf"), n_layer=8)
    down = Counter(t.type.name for t in cut.tensors if "ffn_down_exps" in t.name)
    assert down == {"Q4_K": 4, "Q6_K": 4}
    assert cut.types_missing == ()


def test_types_that_found_no_place_are_named() -> None:
    """Q4_K_S has a few Q5_K layers; one layer alone is Q4_K, and the cut says what is missing."""
    shape = SHAPES["qwen3-30b-a3b"]
    assert make_scale_model_of_shape(shape, quant="Q4_K_S", n_layer=1).types_missing == ("Q5_K",)
    assert make_scale_model_of_shape(shape, quant="Q4_K_S", n_layer=12).types_missing == ()


def test_split_sets_are_read_from_any_part(tmp_path: Path) -> None:
    """The third part of five gives the same cut as a single file."""
    write_shape("kimi-k2", tmp_path / "k.gguf", n_parts=5)
    cut = make_scale_model(tmp_path / "k-00003-of-00005.gguf", n_layer=2)
    whole = make_scale_model(write_shape("kimi-k2", tmp_path / "one.gguf"), n_layer=2)
    assert cut.tensors == whole.tensors and cut.metadata == whole.metadata
    assert not any(key.startswith("split.") for key in cut.metadata)


def test_arrays_of_one_value_per_layer_follow_the_layers(tmp_path: Path) -> None:
    """Gemma 4 lists its windows and KV heads; sections of rotary dimensions are no such list."""
    path = write_shape("gemma-4-26b-a4b", tmp_path / "g.gguf")
    cut = make_scale_model(path, n_layer=6)
    pattern = cut.metadata["gemma4.attention.sliding_window_pattern"]
    assert isinstance(pattern, Typed) and pattern.type == "bool"
    assert pattern.value == [True] * 5 + [False]
    qwen = make_scale_model(write_shape("qwen3.5-35b-a3b", tmp_path / "q.gguf"), n_layer=4)
    sections = qwen.metadata["qwen35moe.rope.dimension_sections"]
    assert isinstance(sections, Typed) and isinstance(sections.value, tuple)
    assert len(sections.value) == 4 and sections.type == "i32"


def test_keys_keep_their_types(tmp_path: Path) -> None:
    """llama.cpp refuses a key of another type; what is copied has the source's."""
    path = _small(tmp_path, "qwen3next")
    cut = make_scale_model(path, n_layer=4)
    for key, value in read_typed_keys(path).items():
        if key in cut.metadata and isinstance(value, Typed) and not key.endswith("block_count"):
            kept = cut.metadata[key]
            if isinstance(kept, Typed):
                assert kept.type == value.type, key


def test_a_budget_below_the_smallest_cut() -> None:
    """The error says what is needed and what there is."""
    with pytest.raises(UsageError, match=r"2 layer\(s\), takes 7\.\d GiB.*room for 1\.0 GiB"):
        make_scale_model_of_shape(SHAPES["deepseek-v3"], budget_bytes=GIB)


def test_a_number_of_layers_that_there_is_no_room_for() -> None:
    """An explicit number of layers is made as it is, or refused with what it takes."""
    shape = SHAPES["olmoe-1b-7b"]
    scale = make_scale_model_of_shape(shape, n_layer=3, budget_bytes=1 << 30)
    assert scale.model.n_layer == 3
    with pytest.raises(UsageError, match=r"5 of its layers take .* there is room for 1\.0 GiB"):
        make_scale_model_of_shape(shape, n_layer=5, budget_bytes=1 << 30)


def test_models_known_by_their_count_are_not_cut() -> None:
    """DeepSeek-V2-Lite with fewer layers would be read as another model."""
    with pytest.raises(UnsupportedModelError, match="number of layers"):
        make_scale_model_of_shape(SHAPES["deepseek-v2-lite"], n_layer=4)
    with pytest.raises(UsageError, match=r"27 layer\(s\)"):
        make_scale_model_of_shape(SHAPES["deepseek-v2-lite"], budget_bytes=GIB)


@pytest.mark.parametrize("arch", RANDOM_ARCHS)
def test_a_cut_of_all_layers_is_the_model(arch: str, tmp_path: Path) -> None:
    """Nothing but MTP blocks is lost where there is room for everything."""
    path = _small(tmp_path, arch)
    big = make_model(read_header(path))
    cut = make_scale_model(path)
    assert len(cut.source_layers) == big.n_layer - big.n_layer_nextn
    theirs = {t.name: (t.type, t.shape) for t in big.tensors if t.loaded and t.il != big.n_layer}
    ours = {t.name: (t.type, t.shape) for t in cut.tensors}
    mtp = {name for name in theirs if name.startswith(f"blk.{len(cut.source_layers)}.")}
    assert ours == {name: value for name, value in theirs.items() if name not in mtp}


def _cut(tmp_path: Path) -> ScaleModel:
    return make_scale_model(_small(tmp_path), n_layer=2)


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    """Samples of an interrupted sweep stay valid when the model is written again."""
    cut = _cut(tmp_path)
    first = write_scale_model(cut, tmp_path / "a.gguf", seed=3).read_bytes()
    assert first == write_scale_model(cut, tmp_path / "b.gguf", seed=3).read_bytes()


def test_no_file_is_written_over(tmp_path: Path) -> None:
    """Whatever lies at the path stays as it is, the source too."""
    cut = _cut(tmp_path)
    source = tmp_path / "source.gguf"
    before = source.read_bytes()
    with pytest.raises(UsageError, match="there is such a file already"):
        write_scale_model(cut, source)
    assert source.read_bytes() == before


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how much is needed, before anything is written."""
    monkeypatch.setattr(scale_file, "disk_free_bytes", lambda folder: 0)
    with pytest.raises(InfeasibleError, match="the disk is too full") as caught:
        write_scale_model(_cut(tmp_path), tmp_path / "new.gguf")
    assert caught.value.short_bytes["disk"] > 0
    assert not (tmp_path / "new.gguf").exists()


def test_a_disk_that_fills_up_while_writing(tmp_path: Path) -> None:
    """With a limit on file sizes the write fails half-way: one clear error, nothing left."""
    source = _small(tmp_path)
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "from tuner.scale_file import write_scale_model\n"
        "from tuner.scale_model import make_scale_model\n"
        "from offload.errors import InfeasibleError\n"
        "try: write_scale_model(make_scale_model(sys.argv[1]), sys.argv[2])\n"
        "except InfeasibleError as error: print(error)\n"
    )
    target = tmp_path / "new.gguf"
    done = subprocess.run(
        [sys.executable, "-c", program, source, target],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert "the disk is too full" in done.stdout, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source.gguf"]


def test_a_temporary_model_is_gone_afterwards(tmp_path: Path) -> None:
    """Also when what used it fails."""
    cut, folder = _cut(tmp_path), tmp_path / "scratch"

    def use() -> None:
        with temporary_scale_model(cut, folder=folder) as path:
            assert path.stat().st_size > cut.n_bytes
            raise OffloadError("a run failed")

    with pytest.raises(OffloadError, match="a run failed"):
        use()
    assert list(folder.iterdir()) == []


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    """A model whose lock nobody holds goes, one that is in use stays."""
    cut, folder = _cut(tmp_path), tmp_path / "scratch"
    folder.mkdir()
    for name in ("scale-1.lock", "scale-1.gguf", ".scale-1.gguf.1.tmp", "scale-2.gguf"):
        (folder / name).write_text("left behind")
    with (folder / "scale-2.lock").open("w") as in_use:
        fcntl.flock(in_use, fcntl.LOCK_EX)
        with temporary_scale_model(cut, folder=folder):
            ours = f"scale-{os.getpid()}-"
            names = {p.name for p in folder.iterdir() if not p.name.startswith(ours)}
    assert names == {"scale-2.lock", "scale-2.gguf"}


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """The error names the folder and the variable to set."""
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OffloadError, match="XDG_CACHE_HOME"),
        temporary_scale_model(_cut(tmp_path), folder=tmp_path / "file" / "x"),
    ):
        pass


def test_tables_of_expert_numbers_name_experts() -> None:
    """DeepSeek V4 routes its first layers by token: every row names different experts."""
    from offload.ggml import TYPES_BY_NAME
    from tuner.synth.blocks import RandomData

    tensor = FileTensor(
        name="blk.0.ffn_gate_tid2eid.weight", type=TYPES_BY_NAME["I32"], shape=(4, 5000)
    )
    raw = b"".join(bytes(chunk) for chunk in RandomData(1, n_expert=16)(tensor))
    numbers = memoryview(raw).cast("i").tolist()
    rows = [numbers[i : i + 4] for i in range(0, len(numbers), 4)]
    assert len(rows) == 5000
    assert all(len(set(row)) == 4 and 0 <= min(row) <= max(row) < 16 for row in rows)


def test_models_of_no_layers_to_spare(tmp_path: Path) -> None:
    """More layers than there are cannot be had."""
    with pytest.raises(UsageError, match="9 layers of a model that has 4"):
        make_scale_model(_small(tmp_path), n_layer=9)
    assert make_scale_model(_small(tmp_path), budget_bytes=100 * MIB).n_layer_source == 4
