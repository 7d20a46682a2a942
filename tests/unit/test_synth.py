"""Files written by tuner.synth are GGUF, of the right size, whole, and the same every time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from offload.errors import UsageError
from offload.ggml import TYPES_BY_NAME
from offload.gguf import SkippedArray
from offload.source import read_header
from tuner.shapes import SHAPES
from tuner.synth import make_like, make_small_shape, write_random, write_shape
from tuner.synth.__main__ import main
from tuner.synth.blocks import RANDOM_TYPES, RandomData
from tuner.synth.container import (
    FileTensor,
    Typed,
    Value,
    encode_header,
    part_paths,
    write_gguf,
)
from tuner.synth.vocab import make_vocab

_F32 = TYPES_BY_NAME["F32"]


def _tensors(*n_elements: int) -> list[FileTensor]:
    return [FileTensor(name=f"t{i}", type=_F32, shape=(n,)) for i, n in enumerate(n_elements)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random MoE."""
    return write_random(tmp_path_factory.mktemp("s") / "m.gguf", arch="qwen3moe", quant="Q4_K_M")


def test_gguf_py_reads_what_we_write(small: Path) -> None:
    """gguf-py, which shares no code with us, finds the same keys, tensors, types and bytes."""
    ours, theirs = read_header(small), gguf.GGUFReader(small)
    assert [t.name for t in ours.tensors] == [t.name for t in theirs.tensors]
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert mine.shape == tuple(int(n) for n in other.shape)
        assert mine.type.id == other.tensor_type.value
        assert ours.data_offset_bytes + mine.offset_bytes == other.data_offset
        assert mine.n_bytes == other.n_bytes
    assert set(ours.metadata) == {k for k in theirs.fields if not k.startswith("GGUF.")}
    assert ours.metadata["qwen3moe.expert_count"] == 8
    last = theirs.tensors[-1]
    assert small.stat().st_size == last.data_offset + last.n_bytes + -last.n_bytes % 32


def test_every_kind_of_value(tmp_path: Path) -> None:
    """Numbers, strings, arrays and chosen integer widths come back as written."""
    written: dict[str, Value] = {
        "general.architecture": "llama", "a.u32": 7, "a.u64": 1 << 40, "a.i64": -3, "a.f32": 0.5,
        "a.bool": True, "a.u16": Typed("u16", 9), "a.bools": (True, False), "a.ints": (1, 2, 3),
        "a.signed": Typed("i32", (-1, 2)), "a.floats": (0.5, 1.5), "a.texts": ["x", "yß"],
    }  # fmt: skip
    path = write_gguf(tmp_path / "v.gguf", written, _tensors(32))
    fields = gguf.GGUFReader(path).fields
    for key, value in written.items():
        plain = value.value if isinstance(value, Typed) else value
        found = fields[key].contents()
        assert found == (list(plain) if isinstance(plain, (tuple, list)) else plain), key
    assert fields["a.u16"].types == [gguf.GGUFValueType.UINT16]
    assert fields["a.signed"].types[-1] == gguf.GGUFValueType.INT32
    assert fields["a.u64"].types == [gguf.GGUFValueType.UINT64]


def test_shape_is_a_hole_of_the_right_size(tmp_path: Path) -> None:
    """A 57 GB file takes less than a megabyte of disk and reads as the whole model."""
    path = write_shape("mistral-small-4-119b", tmp_path / "m.gguf")
    header = read_header(path)
    stat = path.stat()
    assert stat.st_blocks * 512 < 1 << 20
    assert 56.9e9 < stat.st_size == header.file_bytes < 57.1e9
    assert header.metadata["mistral4.attention.kv_lora_rank"] == 256
    assert sum(t.n_bytes for t in header.tensors) <= stat.st_size - header.data_offset_bytes


@pytest.mark.parametrize("n_parts", [1, 2, 5])
def test_split_sets(tmp_path: Path, n_parts: int) -> None:
    """Parts are named and keyed as llama.cpp's, share the bytes evenly and merge to the model."""
    first = write_shape("qwen3-30b-a3b", tmp_path / "q.gguf", n_parts=n_parts)
    parts = part_paths(tmp_path / "q.gguf", n_parts)
    assert first == parts[0] and sorted(tmp_path.iterdir()) == sorted(parts)
    whole = read_header(first)
    assert whole.n_files == n_parts and len(whole.tensors) == 579
    sizes = [p.stat().st_size for p in parts]
    assert sum(sizes) == whole.file_bytes and max(sizes) - min(sizes) < 400 << 20
    if n_parts > 1:
        assert parts[1].name == f"q-00002-of-{n_parts:05d}.gguf"
        fields = gguf.GGUFReader(parts[1]).fields
        assert fields["split.no"].contents() == 1
        assert fields["split.count"].contents() == n_parts
        assert fields["split.tensors.count"].contents() == 579
        assert fields["split.no"].types == [gguf.GGUFValueType.UINT16]


def test_split_leaves_no_part_empty(tmp_path: Path) -> None:
    """As many parts as tensors gives one each, whatever their sizes; more is refused."""
    tensors = _tensors(1 << 20, 8, 8, 8)
    write_gguf(tmp_path / "x.gguf", {}, tensors, n_parts=4)
    for part in part_paths(tmp_path / "x.gguf", 4):
        assert len(gguf.GGUFReader(part).tensors) == 1
    for wrong in (0, 5):
        with pytest.raises(UsageError, match=f"4 tensors cannot be split into {wrong} parts"):
            write_gguf(tmp_path / "y.gguf", {}, tensors, n_parts=wrong)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_interrupted_write_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    """What stops half-way leaves no draft behind and an older file as it was."""
    path = tmp_path / "x.gguf"
    path.write_bytes(b"older")

    def fill(tensor: FileTensor) -> Iterator[bytes]:
        yield bytes(tensor.n_bytes // 2)
        raise error

    with pytest.raises(error):
        write_gguf(path, {}, _tensors(64), fill=fill)
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_fill_must_be_exact(tmp_path: Path) -> None:
    """Data of the wrong length is a programming error, not a broken file."""
    with pytest.raises(ValueError, match="t0: filled 4 of 256 bytes"):
        write_gguf(tmp_path / "x.gguf", {}, _tensors(64), fill=lambda _: [bytes(4)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("where", ["", "missing/x.gguf"])
def test_impossible_places(tmp_path: Path, where: str) -> None:
    """A folder as target, or a target in no folder, is refused in words."""
    with pytest.raises(UsageError, match=r"is a folder|no folder"):
        write_gguf(tmp_path / where, {}, _tensors(8))


def test_alignment_of_data() -> None:
    """The data section starts on a multiple of 32 bytes, whatever the keys' length."""
    for n in range(40):
        assert len(encode_header({"k": "x" * n}, _tensors(3))) % 32 == 0


@pytest.mark.parametrize("name", sorted(RANDOM_TYPES))
def test_random_weights_are_finite_and_of_unit_gain(name: str) -> None:
    """Each type's random blocks decode to finite weights deviating by 1/sqrt(row length)."""
    n_row = 2048
    tensor = FileTensor(name="w.weight", type=TYPES_BY_NAME[name], shape=(n_row, 256))
    raw = b"".join(RandomData(3)(tensor))
    assert len(raw) == tensor.n_bytes
    try:
        kind = gguf.GGMLQuantizationType[name]
        rows = np.frombuffer(raw, np.uint8).reshape(256, -1)
        if name == "F32":
            weights = rows.view(np.float32)
        elif name == "F16":
            weights = rows.view(np.float16).astype(np.float32)
        else:
            weights = dequantize(rows, kind)
    except (KeyError, NotImplementedError):
        pytest.skip(f"this gguf-py cannot decode {name}")
    assert np.isfinite(weights).all()
    # MXFP4 and NVFP4 scale by powers of two, NVFP4 by no less than 2^-6
    tolerance = 1.5 if name in ("MXFP4", "NVFP4") else 0.15
    assert weights.std() * n_row**0.5 == pytest.approx(1.0, rel=tolerance)


def test_no_random_data_for_unknown_blocks() -> None:
    """A type whose block layout is not known here is refused by name."""
    tensor = FileTensor(name="w", type=TYPES_BY_NAME["Q8_K"], shape=(256,))
    with pytest.raises(UsageError, match="w: no random data for type Q8_K"):
        list(RandomData(0)(tensor))


def test_seed_decides_every_byte(tmp_path: Path) -> None:
    """The same seed writes the same file, another one another."""
    files = [
        write_random(tmp_path / f"{i}.gguf", arch="gpt-oss", quant="MXFP4_MOE", seed=seed)
        for i, seed in enumerate((5, 5, 6))
    ]
    a, b, c = (f.read_bytes() for f in files)
    assert a == b != c


def test_experts_and_layers_differ(small: Path) -> None:
    """No two experts of a tensor and no two layers share their weights."""
    tensors = {t.name: t for t in gguf.GGUFReader(small).tensors}
    gates = [bytes(expert) for expert in tensors["blk.0.ffn_gate_exps.weight"].data]
    gates += [bytes(expert) for expert in tensors["blk.1.ffn_gate_exps.weight"].data]
    assert len(set(gates)) == len(gates) == 16


def test_end_token_is_never_the_likeliest(small: Path) -> None:
    """The output row of the end token is zero and no other is, so greedy runs do not stop early."""
    output = next(t for t in gguf.GGUFReader(small).tensors if t.name == "output.weight")
    assert [il for il, row in enumerate(output.data) if not row.any()] == [2]


def test_norms_and_decays_are_usable(tmp_path: Path) -> None:
    """Norm weights are one and the recurrent decay is negative, or nothing sensible comes out."""
    path = write_random(tmp_path / "n.gguf", arch="qwen3next")
    tensors = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
    assert (tensors["blk.0.attn_norm.weight"] == 1.0).all()
    assert (tensors["blk.0.ssm_a"] < 0).all()


@pytest.mark.parametrize("name", ["deepseek-v3", "mixtral-8x7b"])
def test_full_vocabulary_has_the_real_size(tmp_path: Path, name: str) -> None:
    """With `full` the header holds distinct tokens, types and merges or scores like a real one."""
    shape = SHAPES[name]
    metadata = read_header(write_shape(name, tmp_path / "f.gguf", vocab="full")).metadata
    key = "tokenizer.ggml.tokens"
    assert metadata[key] == SkippedArray(element_type="string", length=shape.n_vocab)
    tokens = make_vocab(shape, "full")[key]
    assert isinstance(tokens, list) and len(set(tokens)) == shape.n_vocab
    if shape.tokenizer == "gpt2":
        assert 5.5 < sum(len(t.encode()) for t in tokens) / len(tokens) < 8.5
        merges = make_vocab(shape, "full")["tokenizer.ggml.merges"]
        assert isinstance(merges, list) and all(m.count(" ") == 1 for m in merges)


def test_byte_vocabulary_covers_every_byte() -> None:
    """Any text can be tokenised: there is one token per byte, and one for the space."""
    tokens = make_vocab(make_small_shape("qwen3moe", n_vocab=260), "bytes")["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list) and len(tokens) == 260
    assert {f"<0x{byte:02X}>" for byte in range(256)} | {"▁"} < set(tokens)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"n_expert": 4, "n_expert_used": 5}, "5 of 4 experts"),
        ({"n_ff_exp": 100}, "multiples of 32"),
        ({"n_vocab": 100}, "at least 260 tokens"),
        ({"n_layer": 0}, "must be positive"),
        ({"n_head": 3, "n_head_kv": 2}, "3 heads cannot share 2"),
    ],
)
def test_sizes_that_make_no_model(sizes: dict[str, int], words: str) -> None:
    """Impossible sizes are refused in words before anything is written."""
    with pytest.raises(UsageError, match=words):
        make_small_shape("qwen3moe", **sizes)


def test_like_keeps_every_width() -> None:
    """A cut-down model has the same tensors per layer as the whole one."""
    from tuner.shapes.tensors import make_tensors

    whole = SHAPES["qwen3-235b-a22b"]
    cut = make_like(whole, n_layer=2)
    names = [{t.name: t.shape for t in make_tensors(s) if t.il == 1} for s in (whole, cut)]
    assert names[0] == names[1]
    assert max(t.il for t in make_tensors(cut)) == 1


def test_tensors_are_in_llama_quantize_order(small: Path) -> None:
    """Model-wide tensors come first, then layers by number, names in order within."""
    keys = [
        (int(t.name.split(".")[1]) if t.name.startswith("blk.") else -1, t.name)
        for t in read_header(small).tensors
    ]
    assert all(a < b for a, b in pairwise(keys))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The three commands work; what they wrote stands on stdout and nothing else does."""
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in SHAPES)
    out = tmp_path / "a.gguf"
    assert main(["shape", "gpt-oss-20b", str(out), "--quant", "q8_0", "--split", "2"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a-00001-of-00002.gguf'}\n"
    assert main(["random", str(out), "--arch", "llama", "--layers", "2", "--experts", "4"]) == 0
    assert read_header(out).metadata["llama.expert_count"] == 4
    assert main(["random", str(out), "--like", "deepseek-v2-lite", "--layers", "1",
                 "--vocab-size", "512"]) == 0  # fmt: skip
    assert read_header(out).metadata["deepseek2.block_count"] == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["shape", "gpt-6", "x.gguf"], "no shape 'gpt-6'; one of "),
        (["shape", "glm-5", "x.gguf", "--quant", "Q9"], "no quantisation 'Q9'; one of "),
        (["shape", "glm-5", "nowhere/x.gguf"], "no folder nowhere"),
        (["random", "x.gguf", "--arch", "llama", "--used", "99"], "99 of 8 experts"),
        (["random", "x.gguf", "--like", "glm-5", "--embd", "64"], "leave out --embd"),
    ],
)
def test_command_line_errors(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Wrong input exits 2 with one line on stderr and leaves no file."""
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    said = capsys.readouterr()
    assert not said.out and words in said.err and said.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
