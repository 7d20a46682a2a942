"""Which model is timed, and whether there is room for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from offload.device import device_by_name
from offload.errors import InfeasibleError, UsageError
from offload.units import GIB, MIB
from tuner import subject
from tuner.subject import cut_model, kept_path, model_digest, own_model, room_bytes
from tuner.synth import write_random, write_shape


@pytest.fixture(autouse=True)
def _scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_cut_and_a_shorter_one_for_as_long_as_they_are_used(tmp_path: Path) -> None:
    """Both are files that can be loaded, and both are gone afterwards."""
    big = write_random(tmp_path / "big.gguf", arch="qwen3moe", n_layer=8)
    with cut_model(str(big), 100 * GIB, time_s=60.0) as found:
        assert found.kind == "cut" and found.n_layer_source == found.model.n_layer == 8
        assert found.short_model is not None
        assert found.short_model.n_layer < 8
        assert Path(found.short_model.path).stat().st_size < found.path.stat().st_size
        assert len(_files(tmp_path)) == 4  # each with its lock
    assert _files(tmp_path) == []
    assert big.exists()


def test_short_sweeps_take_small_models(tmp_path: Path) -> None:
    """What is loaded often must load fast, but holds every kind of layer all the same."""
    shape = write_shape("glm-4.5-air", tmp_path / "air.gguf")
    made = [
        subject._make_scale(str(shape), budget_bytes=64 * GIB, wish_bytes=n) for n in (1, 8 * GIB)
    ]
    # one dense layer, and two with experts: one for a card and one for the host
    assert [len(scale.source_layers) for scale in made] == [3, 5]


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "gpt-oss-20b", "qwen3.5-35b-a3b"])
def test_the_smallest_cut_has_a_shorter_one(tmp_path: Path, name: str) -> None:
    """Costs of layers need two numbers of them, though one layer cannot hold every kind."""
    shape = str(write_shape(name, tmp_path / "shape.gguf"))
    smallest = subject._make_scale(shape, budget_bytes=64 * GIB, wish_bytes=1)
    short = subject._shorter(smallest, partial(subject._make_scale, shape))
    assert short is not None and short.model.expert_layers
    assert short.model.n_layer == smallest.model.n_layer // 2


def test_too_little_memory_says_how_much_is_missing(tmp_path: Path) -> None:
    """For a cut and for the user's own model."""
    shape = write_shape("deepseek-v3", tmp_path / "ds.gguf")
    with (
        pytest.raises(UsageError, match=r"there is room for 1\.0 GiB"),
        cut_model(str(shape), GIB, time_s=60.0),
    ):
        pass
    small = write_random(tmp_path / "small.gguf", arch="qwen3moe")
    with pytest.raises(InfeasibleError, match="offload bench --like"), own_model(str(small), MIB):
        pass


def test_a_kept_cut_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies in this folder under a name nobody had; a second one gets another."""
    monkeypatch.chdir(tmp_path)
    big = write_random(tmp_path / "big.gguf", arch="qwen3moe", n_layer=8)
    for name in ("big-cut.gguf", "big-cut-2.gguf"):
        kept = kept_path(str(big))
        with cut_model(str(big), GIB, time_s=60.0, keep=kept):
            pass
        assert kept == Path(name) and kept.exists()
    assert _files(tmp_path) == []


def test_room_is_the_smaller_of_host_and_cards() -> None:
    """Virtual cards live in the host's memory; real ones must hold the model too."""
    cards = (device_by_name("CUDA0", 4 * GIB), device_by_name("CUDA1", 4 * GIB))
    assert room_bytes(cards, 64 * GIB, virtual=True) > 40 * GIB
    assert room_bytes(cards, 64 * GIB, virtual=False) < 8 * GIB
    assert room_bytes(cards, 100 * MIB, virtual=True) == 0


def test_a_digest_is_of_the_shape(tmp_path: Path) -> None:
    """The same for the same tensors wherever they lie, another for another width."""
    from offload.model import make_model
    from offload.source import read_header

    digests = []
    for i, n_embd in enumerate((256, 256, 512)):
        path = write_random(tmp_path / f"{i}.gguf", arch="qwen3moe", n_embd=n_embd, seed=i)
        digests.append(model_digest(make_model(read_header(path))))
    assert digests[0] == digests[1] != digests[2]
