"""The header of a GGUF file: what is read, and what is refused in one clear line."""

from __future__ import annotations

import math
import mmap
import random
import struct
import tracemalloc
from pathlib import Path

import pytest

from offload.errors import GGUFError
from offload.ggml import TYPES, TYPES_BY_NAME
from offload.gguf import GGUFHeader, SkippedArray, TensorInfo, parse_header, parse_header_at
from tests.gguf_bytes import (
    ARRAY,
    F16,
    F32,
    Q4_0,
    Q4_K,
    STRING,
    Tensor,
    array,
    gguf,
    header,
    key,
    padded,
    small_model,
    string,
)


def refusal(data: bytes, **rest: object) -> GGUFError:
    """The one error `data` is refused with, checked to be one printable line."""
    with pytest.raises(GGUFError) as caught:
        parse_header(data, **rest)  # type: ignore[arg-type]
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    return caught.value


def test_small_model() -> None:
    """Every kind of value and every field of every tensor is read as written."""
    data = small_model()
    read = parse_header(data, path="model.gguf")
    assert read.version == 3
    assert read.metadata == {
        "general.architecture": "llama",
        **{f"test.{name}": 1 for name in
           ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "u64", "i64", "f64")},
        "test.floats": (0.5, 1.5),
        "test.flags": (True, False, True),
        "tokenizer.ggml.tokens": SkippedArray(element_type="string", length=4),
    }  # fmt: skip
    assert read.metadata["test.bool"] is True
    assert isinstance(read.metadata["test.f32"], float)
    assert read.tensors == (
        TensorInfo(name="token_embd.weight", type=TYPES_BY_NAME["F32"], shape=(32, 4),
                   offset_bytes=0, n_bytes=512),
        TensorInfo(name="blk.0.ffn_up.weight", type=TYPES_BY_NAME["Q4_0"], shape=(64, 2),
                   offset_bytes=512, n_bytes=72),
        TensorInfo(name="output_norm.weight", type=TYPES_BY_NAME["F16"], shape=(3,),
                   offset_bytes=608, n_bytes=6),
    )  # fmt: skip
    assert read.data_offset_bytes % 32 == 0
    assert read.data_offset_bytes + 608 + 32 == len(data) == read.file_bytes
    assert (read.n_files, read.path) == (1, "model.gguf")


@pytest.mark.parametrize("version", [2, 3])
def test_versions(version: int) -> None:
    """Versions 2 and 3 differ in nothing a header shows on little-endian machines."""
    assert parse_header(small_model(version=version)).version == version


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (1, "version 1 is no longer readable"),
        (4, "version 4 is newer than this program"),
        (3 << 24, "big-endian"),
        (2 << 24, "big-endian"),
        (0, "big-endian"),
    ],
)
def test_other_versions(version: int, says: str) -> None:
    """Version 1, a future one and the other byte order are refused with what to do."""
    error = refusal(small_model(version=version))
    assert says in error.message
    assert "download" in error.message
    assert error.offset_bytes == 4


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("u8", (0, 255)), ("i8", (-128, 127)), ("u16", (0, 65535)), ("i16", (-32768, 32767)),
        ("u32", (0, 2**32 - 1)), ("i32", (-(2**31), 2**31 - 1)), ("u64", (0, 2**64 - 1)),
        ("i64", (-(2**63), 2**63 - 1)), ("f32", (-1.5, math.inf)), ("f64", (1e-300, 1e300)),
        ("bool", (False, True)),
    ],
)  # fmt: skip
def test_scalars_and_arrays(type_name: str, values: tuple[float, ...]) -> None:
    """Scalars and arrays of each type keep their smallest and largest value."""
    keys = [key(str(i), type_name, value) for i, value in enumerate(values)]
    read = parse_header(gguf([*keys, array("all", type_name, values), array("no", type_name, ())]))
    assert read.metadata == {"0": values[0], "1": values[1], "all": values, "no": ()}


def test_bool_is_any_byte() -> None:
    """ggml reads a bool as `byte != 0`."""
    data = gguf([string("flag") + struct.pack("<IB", 7, 200)])
    assert parse_header(data).metadata["flag"] is True


@pytest.mark.parametrize(("length", "kept"), [(65536, True), (65537, False)])
def test_long_arrays_are_skipped(length: int, kept: bool) -> None:
    """Of numeric arrays above 65536 elements only the length is kept, and reading goes on."""
    data = gguf([array("a", "i16", [7] * length), key("b", "u8", 3)], [Tensor("t")])
    read = parse_header(data)
    expected = (7,) * length if kept else SkippedArray(element_type="i16", length=length)
    assert read.metadata == {"a": expected, "b": 3}
    assert read.tensors[0].name == "t"


def test_long_strings_are_skipped() -> None:
    """A string above 1 MiB (an embedded tokenizer.json) is stepped over."""
    keys = [key("a", "string", "x" * (1 << 20)), key("b", "string", "x" * ((1 << 20) + 1))]
    read = parse_header(gguf(keys))
    assert read.metadata["a"] == "x" * (1 << 20)
    assert read.metadata["b"] == SkippedArray(element_type="char", length=(1 << 20) + 1)


def test_metadata_that_would_fill_memory() -> None:
    """Many values that are each small enough to keep end in an error, not in gigabytes."""
    keys = [key(str(i), "string", "x" * (1 << 20)) for i in range(9)]
    assert "more than 8 MiB" in refusal(gguf(keys)).message


def test_no_tensors() -> None:
    """A vocabulary-only file has no data section, not even padding."""
    data = gguf([key("general.architecture", "string", "llama")])
    assert parse_header(data).data_offset_bytes == len(data)


def test_scalar_tensor() -> None:
    """A tensor of 0 dimensions is one element, as ggml reads it."""
    (tensor,) = parse_header(gguf([], [Tensor("scale", (), F32, 4)])).tensors
    assert (tensor.shape, tensor.n_bytes) == ((1,), 4)


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignment(alignment: int) -> None:
    """`general.alignment` places the data section and every tensor in it."""
    tensors = [Tensor("a", (3,), F16, 6), Tensor("b", (3,), F16, 6)]
    data = gguf([key("general.alignment", "u32", alignment)], tensors, alignment=alignment)
    read = parse_header(data)
    assert read.data_offset_bytes % alignment == 0
    assert [t.offset_bytes for t in read.tensors] == [0, padded(6, alignment)]


@pytest.mark.parametrize("alignment", [0, 3, 48, 2**32 - 1])
def test_alignment_no_power_of_two(alignment: int) -> None:
    """ggml refuses an alignment that is not a power of two."""
    error = refusal(gguf([key("general.alignment", "u32", alignment)], [Tensor("a")]))
    assert "not a power of 2" in error.message
    assert error.key == "general.alignment"


@pytest.mark.parametrize("type_name", ["string", "bool", "u16", "i32", "u64"])
def test_alignment_of_another_type(type_name: str) -> None:
    """ggml takes a u32 only."""
    value = "32" if type_name == "string" else 1
    error = refusal(gguf([key("general.alignment", type_name, value)]))
    assert "not a 32-bit number" in error.message


def test_duplicates() -> None:
    """Two keys or two tensors of one name are refused, and the name is said."""
    error = refusal(gguf([key("k", "u8", 1), key("k", "u8", 2)]))
    assert (error.key, "twice" in error.message) == ("k", True)
    error = refusal(gguf([], [Tensor("t"), Tensor("t")]))
    assert (error.key, "twice" in error.message) == ("t", True)


def test_names() -> None:
    """Empty keys, keys above 65535 bytes and tensor names above 63 bytes are refused."""
    assert "empty" in refusal(gguf([key("", "u64", 1)])).message
    assert parse_header(gguf([key("k" * 65535, "u8", 1)])).metadata == {"k" * 65535: 1}
    assert "more than 65535" in refusal(gguf([key("k" * 65536, "u8", 1)])).message
    assert parse_header(gguf([], [Tensor("t" * 63)])).tensors[0].name == "t" * 63
    assert "more than 63" in refusal(gguf([], [Tensor("t" * 64)])).message


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (Tensor("t", (1, 1, 1, 1, 1)), "5 dimensions"),
        (Tensor("t", (0,)), "no elements"),
        (Tensor("t", (32, 0)), "no elements"),
        (Tensor("t", (2**63,)), "larger than any"),
        (Tensor("t", (2**32, 2**32)), "larger than any"),
        (Tensor("t", (2**16,) * 4), "larger than any"),
        (Tensor("t", (31,), Q4_0), "not whole blocks of Q4_0"),
        (Tensor("t", (128, 2), Q4_K), "not whole blocks of Q4_K"),
        (Tensor("t", (32,), 43), "tensor type 43 is not one of ggml's"),
        (Tensor("t", (32,), 2**32 - 1), "tensor type 4294967295 is not"),
        (Tensor("t", offset=32), "at offset 32, expected at 0"),
        (Tensor("t", offset=2**60), f"at offset {2**60}, expected at 0"),
    ],
)
def test_tensors_that_cannot_be(tensor: Tensor, says: str) -> None:
    """Impossible shapes, types and offsets are refused, naming the tensor."""
    error = refusal(gguf([], [tensor]))
    assert says in error.message
    assert error.key == "t"


@pytest.mark.parametrize("type_", [t for t in TYPES.values() if not t.is_known])
def test_removed_types(type_: object) -> None:
    """Types that ggml removed are named, and so is the type to use instead."""
    id_, name = type_.id, type_.name  # type: ignore[attr-defined]
    error = refusal(gguf([], [Tensor("t", (32,), id_)]))
    assert f"{name} ({id_}) was removed" in error.message
    assert error.message.endswith(" as IQ4_NL" if name.startswith("IQ4_NL") else " as Q4_0")


def test_overlapping_tensors() -> None:
    """A second tensor must stand right behind the first, padded to the alignment."""
    error = refusal(gguf([], [Tensor("a"), Tensor("b", offset=96)]))
    assert (error.key, "at offset 96, expected at 128" in error.message) == ("b", True)


def test_incomplete_download() -> None:
    """A file that ends before its data names the first tensor cut and the missing bytes."""
    data = gguf([], [Tensor("a"), Tensor("b"), Tensor("c")])
    error = refusal(data[:-129], path="m.gguf")
    assert error.key == "b"
    assert f"129 of {len(data)} bytes are missing" in error.message
    assert "incomplete" in error.message
    assert error.offset_bytes == len(data) - 129


def test_last_padding_may_be_missing() -> None:
    """llama.cpp asks for the last tensor's bytes, not for the padding behind them."""
    data = gguf([], [Tensor("a", (3,), F16, 6)])
    parse_header(data[:-26])
    refusal(data[:-27])


def test_header_without_its_data() -> None:
    """The first bytes are enough when the file's size is told."""
    data = small_model()
    start = parse_header(data).data_offset_bytes
    assert parse_header(data[:start], file_bytes=len(data)) == parse_header(data)
    error = refusal(data[: start // 2], file_bytes=len(data))
    assert "could be read" in error.message


def test_tensor_data_is_never_read() -> None:
    """Of a terabyte model nothing is asked for but its first mebibyte."""
    head = header([], [Tensor("a", (1 << 38,), F32, 1 << 40)])
    asked: list[tuple[int, int]] = []

    def read_at(offset: int, n_bytes: int) -> bytes:
        asked.append((offset, n_bytes))
        return head[offset:].ljust(n_bytes, b"\0")[:n_bytes]

    read = parse_header_at(read_at, file_bytes=(1 << 40) + 4096)
    assert read.tensors[0].n_bytes == 1 << 40
    assert asked == [(0, 1 << 20)]


@pytest.mark.parametrize("number", [2**31, 2**60, 2**63, 2**64 - 1])
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lambda n: header(n_tensors=n), "tensors"),
        (lambda n: header(n_keys=n), "metadata keys"),
        (lambda n: header(n_keys=1) + struct.pack("<Q", n), "metadata key 0"),
        (lambda n: header(n_keys=1) + string("k") + struct.pack("<IQ", STRING, n), "a string"),
        (
            lambda n: header(n_keys=1) + string("k") + struct.pack("<IIQ", ARRAY, STRING, n),
            "strings",
        ),
        (
            lambda n: header(n_keys=1) + string("k") + struct.pack("<IIQQ", ARRAY, STRING, 2, n),
            "string 1 of 2",
        ),
        (lambda n: header(n_keys=1) + string("k") + struct.pack("<IIQ", ARRAY, 4, n), "u32"),
        (lambda n: header(n_tensors=1) + struct.pack("<Q", n), "name"),
    ],
)
def test_absurd_numbers(data: object, says: str, number: int) -> None:
    """A count or length of 2^60 is one error and no memory, wherever it stands."""
    written = data(number) + bytes(100)  # type: ignore[operator]
    tracemalloc.start()
    error = refusal(written)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert says in error.message
    assert peak < 1 << 20


def test_counts_beyond_the_file() -> None:
    """A count that is possible, but not in a file of this size, is refused at once."""
    assert "has room for 4" in refusal(header(n_tensors=5) + bytes(100)).message
    assert "has room for 7" in refusal(header(n_keys=8) + bytes(100)).message
    assert "more than 65536" in refusal(header(n_keys=65537) + bytes(1 << 20)).message


def test_header_without_end() -> None:
    """A header of more than 128 MiB is refused before it is walked."""
    data = header(n_keys=1) + string("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 24)
    assert "longer than 128 MiB" in refusal(data, file_bytes=1 << 40).message


def test_nested_arrays() -> None:
    """GGUF has no arrays of arrays."""
    data = header(n_keys=1) + string("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1) + bytes(100)
    error = refusal(data)
    assert (error.key, "array of arrays" in error.message) == ("k", True)


@pytest.mark.parametrize("id_", [13, 255, 2**32 - 1])
def test_unknown_metadata_types(id_: int) -> None:
    """A metadata type that GGUF does not have is refused, alone and in an array."""
    start = header(n_keys=1) + string("k")
    assert (
        f"{id_} is not a metadata type"
        in refusal(start + struct.pack("<I", id_) + bytes(100)).message
    )
    assert (
        f"metadata type {id_}"
        in refusal(start + struct.pack("<IIQ", ARRAY, id_, 1) + bytes(100)).message
    )


def test_text_that_drives_terminals() -> None:
    """Control characters in keys, names and paths come out escaped; bytes are never lost."""
    error = refusal(gguf([key("\x1b[2J", "u8", 1), key("\x1b[2J", "u8", 1)]), path="\x1b]0;x\n")
    assert "\\x1b[2J" in str(error)
    assert "\\x1b]0;x\\n" in str(error)
    read = parse_header(gguf([key(b"a\xff", "string", b"\xfe\x80"), key(b"a\xfe", "u8", 1)]))
    assert read.metadata == {"a\\xff": "\\xfe\\x80", "a\\xfe": 1}
    str(read).encode()


def test_long_names_in_messages() -> None:
    """A key of thousands of bytes, as a damaged length makes, is shortened in the message."""
    error = refusal(gguf([key("k" * 60000, "u8", 1)] * 2))
    assert error.key == "k" * 80 + "…"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"GG", "ends after 2 bytes"),
        (bytes(1000), "begins with zeros"),
        (b"<!DOCTYPE html><html><head>", "web page"),
        (b"\n  <html lang='en'>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (struct.pack("<Q", 20000) + b'{"__metadata__":{"format":"pt"}', "safetensors"),
        (b"PK\x03\x04\0\0", "zip archive or PyTorch"),
        (b"\x80\x02\x8a\x0al\xfc", "PyTorch checkpoint"),
        (b"\x1f\x8b\x08\0", "compressed archive"),
        (b"(\xb5/\xfd\0", "compressed archive"),
        (b"tjgg\x03\0\0\0", "old format"),
        (b"Entry not found\n", "text beginning 'Entry not found'"),
        (b'{"error":"Repository not found"}', "text beginning"),
        (b"\x1b[31mred", "begins with the bytes 1b 5b 33 31"),
        (b"\xde\xad\xbe\xef\0\0", "begins with the bytes de ad be ef"),
        (b"FUGG\0\0\0\3", "begins with the bytes 46 55 47 47"),
    ],
)
def test_other_files(data: bytes, says: str) -> None:
    """What is no GGUF is recognised where possible, and the owner is told what to do."""
    error = refusal(data)
    assert says in error.message
    assert error.message.startswith("not a GGUF file: ")
    assert any(verb in error.message for verb in ("download", "pull", "convert", "unpack"))


def test_buffers(tmp_path: Path) -> None:
    """Bytes, bytearrays, memory views and memory maps are all buffers."""
    data = small_model()
    (tmp_path / "m.gguf").write_bytes(data)
    expected = parse_header(data)
    assert parse_header(bytearray(data)) == expected
    assert parse_header(memoryview(data)) == expected
    with (
        open(tmp_path / "m.gguf", "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        assert parse_header(mapped) == expected


@pytest.mark.parametrize("window_bytes", [7, 8, 9, 13, 64, 100, 1000])
def test_windows(monkeypatch: pytest.MonkeyPatch, window_bytes: int) -> None:
    """Wherever the windows' edges fall, the header read is the same."""
    data = small_model()
    expected: GGUFHeader = parse_header(data)
    monkeypatch.setattr("offload.header_bytes._WINDOW_BYTES", window_bytes)
    assert parse_header(data) == expected


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("longest", [3, 48, 49, 400])
def test_strings_of_any_length_are_stepped_over(
    monkeypatch: pytest.MonkeyPatch, seed: int, longest: int
) -> None:
    """Runs of usual lengths, long ones between, bytes like lengths: the next key is found."""
    rng = random.Random(seed)
    tokens = [
        rng.choice((b"\0", b"\6\0\0\0", b"x")) * rng.randint(0, longest)
        if rng.random() < rng.choice((0.01, 0.5))
        else b"ab" * rng.randint(1, 8)
        for _ in range(rng.choice((127, 128, 129, 256, 1000)))
    ]
    data = gguf([array("tokenizer.ggml.tokens", "string", tokens), key("after", "u8", 9)])
    monkeypatch.setattr("offload.header_bytes._WINDOW_BYTES", rng.choice((64, 1000, 1 << 20)))
    assert parse_header(data).metadata["after"] == 9
    end = len(gguf([array("tokenizer.ggml.tokens", "string", tokens)]))
    with pytest.raises(GGUFError, match=r"string|bytes"):
        parse_header(data[: rng.randint(end - len(tokens[-1]) - 8, end - 1)])


def test_memory_of_a_large_vocabulary() -> None:
    """Stepping over 20 MB of tokens takes no more memory than the window."""
    tokens = [b"x" * (i % 60) for i in range(600_000)]
    data = gguf([array("tokenizer.ggml.tokens", "string", tokens), key("after", "u8", 9)])
    del tokens
    tracemalloc.start()
    read = parse_header(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read.metadata["after"] == 9
    assert read.metadata["tokenizer.ggml.tokens"] == SkippedArray(
        element_type="string", length=600_000
    )
    assert peak < 4 << 20
