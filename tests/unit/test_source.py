"""From a path to one header: single files, split sets, and everything a path can be instead."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from offload.errors import GGUFError
from offload.source import read_header
from tests.gguf_bytes import F32, Tensor, array, gguf, header, key, small_model


def refusal(path: str | os.PathLike[str]) -> GGUFError:
    """The one error `path` is refused with, checked to be one printable line."""
    with pytest.raises(GGUFError) as caught:
        read_header(path)
    assert str(caught.value).isprintable()
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


def part(
    no: int | None,
    count: int | None,
    names: Sequence[str],
    *,
    n_tensors: int | None = 4,
    arch: str | None = None,
) -> bytes:
    """One part of a split set, with whichever keys are given."""
    keys = []
    if arch is not None:
        keys.append(key("general.architecture", "string", arch))
    if no is not None:
        keys.append(key("split.no", "u16", no))
    if count is not None:
        keys.append(key("split.count", "u16", count))
    if n_tensors is not None:
        keys.append(key("split.tensors.count", "i32", n_tensors))
    return gguf(keys, [Tensor(name) for name in names])


PARTS: dict[int, dict[str, Any]] = {
    0: {"no": 0, "count": 3, "names": ["a"], "arch": "llama"},
    1: {"no": 1, "count": 3, "names": ["b", "c"]},
    2: {"no": 2, "count": 3, "names": ["d"]},
}
WriteSet = Callable[..., list[Path]]


@pytest.fixture
def write_set(tmp_path: Path) -> WriteSet:
    """Write a set of three parts, some of their keys changed by `i={...}`; returns the paths."""

    def write(changes: dict[int, dict[str, Any]] | None = None, stem: str = "m") -> list[Path]:
        paths = []
        for i, settings in PARTS.items():
            paths.append(tmp_path / f"{stem}-{i + 1:05d}-of-00003.gguf")
            paths[-1].write_bytes(part(**{**settings, **(changes or {}).get(i, {})}))
        return paths

    return write


def test_single_file(tmp_path: Path) -> None:
    """A path as text or Path gives the header, with the path as given."""
    (tmp_path / "m.gguf").write_bytes(small_model())
    read = read_header(tmp_path / "m.gguf")
    assert read == read_header(str(tmp_path / "m.gguf"))
    assert (read.n_files, read.path) == (1, str(tmp_path / "m.gguf"))
    assert read.file_bytes == len(small_model())


def test_sparse_file(tmp_path: Path) -> None:
    """A header and a hole of the right size is a model; one byte less is not."""
    path = tmp_path / "sparse.gguf"
    head = header([], [Tensor("big", (1 << 30,), F32, 4 << 30)])
    n_bytes = -(-len(head) // 32) * 32 + (4 << 30)
    path.write_bytes(head)
    os.truncate(path, n_bytes)
    assert read_header(path).tensors[0].n_bytes == 4 << 30
    os.truncate(path, n_bytes - 1)
    assert "1 of" in refusal(path).message


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_finds_all(write_set: WriteSet, given: int) -> None:
    """Whichever part is named, the set is read whole and `path` is the first part."""
    paths = write_set()
    read = read_header(paths[given])
    assert [(t.name, t.i_file, t.offset_bytes) for t in read.tensors] == [
        ("a", 0, 0), ("b", 1, 0), ("c", 1, 128), ("d", 2, 0),
    ]  # fmt: skip
    assert read.metadata["general.architecture"] == "llama"
    assert read.file_bytes == sum(path.stat().st_size for path in paths)
    assert (read.n_files, read.path) == (3, str(paths[0]))


def test_relative_path(write_set: WriteSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are found beside a part named relative to the working directory."""
    paths = write_set()
    monkeypatch.chdir(paths[0].parent)
    assert read_header(paths[1].name).path == paths[0].name


def test_parts_behind_links(write_set: WriteSet, tmp_path: Path) -> None:
    """Parts are found by the links' names, as in a Hugging Face cache, not by their targets'."""
    (tmp_path / "blobs").mkdir()
    for i, path in enumerate(write_set()):
        blob = path.rename(tmp_path / "blobs" / f"sha{i}")
        path.symlink_to(blob)
    assert read_header(tmp_path / "m-00002-of-00003.gguf").n_files == 3
    error = refusal(tmp_path / "blobs" / "sha1")
    assert "rename it to NAME-00002-of-00003.gguf" in error.message


def test_missing_parts(write_set: WriteSet) -> None:
    """Missing parts are named, whichever part is given."""
    paths = write_set()
    paths[1].unlink()
    assert "1 of the model's 3 parts are missing: m-00002-of-00003.gguf;" in str(refusal(paths[0]))
    paths[0].unlink()
    assert "missing: m-00001-of-00003.gguf, m-00002-of-00003.gguf;" in str(refusal(paths[2]))


def test_many_missing_parts(tmp_path: Path) -> None:
    """Of hundreds of missing parts the first few are named."""
    path = tmp_path / "m-00001-of-00400.gguf"
    path.write_bytes(part(0, 400, ["a"], n_tensors=400))
    message = refusal(path).message
    assert "399 of the model's 400 parts are missing: m-00002-of-00400.gguf, " in message
    assert "m-00004-of-00400.gguf and 396 more" in message


@pytest.mark.parametrize(
    ("changes", "guilty", "says"),
    [
        ({1: {"no": 2}}, 1, "named like part 2, but inside it is part 3"),
        ({1: {"no": None}}, 1, "without this key"),
        ({1: {"count": 4}}, 1, "says 4, the first part says 3: it is a part of another model"),
        ({2: {"n_tensors": 5}}, 2, "says 5, the first part says 4"),
        ({2: {"arch": "qwen3moe"}}, 2, "says qwen3moe, the first part says llama"),
        ({2: {"arch": "x" * 9999}}, 2, f"says {'x' * 80}…, the first part says llama"),
        ({2: {"names": ["b"]}}, 2, "also in m-00002-of-00003.gguf"),
        ({2: {"names": ["d", "e"]}}, 0, "has 4 tensors, its 3 parts hold 5"),
        ({2: {"names": []}}, 0, "has 4 tensors, its 3 parts hold 3"),
        ({0: {"n_tensors": None}}, 0, "without this key"),
        ({0: {"no": 1}}, 0, "named like part 1 of 3, but inside it is part 2 of 3"),
        ({0: {"no": None}}, 0, "without this key"),
        ({0: {"no": 3}}, 0, "claims to be part 4 of 3"),
        ({0: {"count": 2}}, 0, "named like part 1 of 3, but inside it is part 1 of 2"),
        ({0: {"count": None}}, 0, "not a part of a split model"),
        ({0: {"count": 1}}, 0, "not a part of a split model"),
    ],
)
def test_foreign_parts(
    write_set: WriteSet, changes: dict[int, dict[str, Any]], guilty: int, says: str
) -> None:
    """A part that is not what its name and the first part say is named and refused."""
    paths = write_set(changes)
    error = refusal(paths[0])
    assert says in error.message
    assert error.path == str(paths[guilty])
    assert "download" in error.message or "get the right part" in error.message


def test_foreign_first_part(write_set: WriteSet) -> None:
    """A wrong first part is found from a right later one too."""
    paths = write_set({0: {"count": None, "no": None, "n_tensors": None}})
    assert refusal(paths[2]).path == str(paths[0])


def test_keys_of_wrong_type(tmp_path: Path) -> None:
    """Split keys that are no integers are refused by name."""
    for value in (key("split.count", "string", "3"), key("split.count", "bool", True)):
        (tmp_path / "m.gguf").write_bytes(gguf([value]))
        error = refusal(tmp_path / "m.gguf")
        assert (error.key, "not an integer" in error.message) == ("split.count", True)
    (tmp_path / "m.gguf").write_bytes(gguf([array("split.count", "u16", [3])]))
    assert refusal(tmp_path / "m.gguf").key == "split.count"


@pytest.mark.parametrize("count", [None, 0, 1])
def test_one_of_one(tmp_path: Path, count: int | None) -> None:
    """`-00001-of-00001` and a split count of at most 1 is a single file."""
    path = tmp_path / "m-00001-of-00001.gguf"
    path.write_bytes(part(0, count, ["a"]))
    assert read_header(path).n_files == 1


def test_damaged_part(write_set: WriteSet) -> None:
    """A later part cut short is the one the error names."""
    paths = write_set()
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    error = refusal(paths[0])
    assert (error.path, error.key) == (str(paths[1]), "c")


def test_missing_file(tmp_path: Path) -> None:
    """A missing file is said to be missing."""
    assert "no such file; check the path" in refusal(tmp_path / "m.gguf").message
    assert "no such file" in refusal(tmp_path / "no" / "m.gguf").message
    assert "no such file" in refusal("").message
    assert "download the model first" in refusal("https://example.org/m.gguf").message


def test_missing_file_of_a_set(write_set: WriteSet) -> None:
    """`m.gguf` where there is `m-00001-of-00003.gguf`: the latter is proposed."""
    folder = write_set()[0].parent
    assert "give m-00001-of-00003.gguf" in refusal(folder / "m.gguf").message


def test_directory(write_set: WriteSet, tmp_path: Path) -> None:
    """For a folder a model in it is proposed."""
    assert "a folder without .gguf files" in refusal(tmp_path).message
    write_set()
    assert "such as m-00001-of-00003.gguf" in refusal(tmp_path).message
    assert "such as m-00001-of-00003.gguf" in refusal(f"{tmp_path}/").message


def test_not_a_gguf(tmp_path: Path) -> None:
    """Empty, text and web-page files are refused with what they are."""
    path = tmp_path / "m.gguf"
    for data, says in (
        (b"", "empty"),
        (b"hello\n", "text beginning 'hello'"),
        (b"<!doctype html>", "web page"),
        (struct.pack("<Q", 99) + b'{"a":', "safetensors"),
    ):
        path.write_bytes(data)
        assert says in refusal(path).message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipes_and_devices_do_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes, sockets and devices are refused unopened: opening a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes only
        listener.bind("socket")
        start = time.monotonic()
        for path in (tmp_path / "pipe", tmp_path / "socket", "/dev/zero", "/dev/null"):
            assert "pipe, socket or device" in refusal(path).message
    assert time.monotonic() - start < 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="permissions work otherwise here")
def test_no_permission(tmp_path: Path) -> None:
    """A file one may not read, or in a folder one may not enter, is one error."""
    path = tmp_path / "closed" / "m.gguf"
    path.parent.mkdir()
    path.write_bytes(small_model())
    for closed, mode in ((path, 0o000), (path.parent, 0o000)):
        closed.chmod(mode)
        assert "no permission" in _refusal_as_nobody(path)
        closed.chmod(0o700)


def _refusal_as_nobody(path: Path) -> str:
    """The error an ordinary user gets: tests may run as root, whom no mode stops."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            read_header(path)
        except GGUFError as error:
            os.write(into, str(error).encode())
        except BaseException as error:
            os.write(into, repr(error).encode())
        finally:
            os._exit(0)
    os.close(into)
    os.waitpid(child, 0)
    with os.fdopen(out, "rb") as file:
        return file.read().decode()


@pytest.mark.skipif(sys.platform == "win32", reason="such paths cannot be made")
def test_strange_paths(tmp_path: Path) -> None:
    """Paths with zero bytes, loops, control characters or no text at all are one error."""
    assert "cannot be read" in refusal("a\0b").message
    assert "cannot be read" in refusal("x" * 5000).message
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be read" in refusal(loop).message
    assert "\\x1b[2J" in str(refusal(tmp_path / "\x1b[2J.gguf"))
    assert "\\udcff" in str(refusal(os.fsdecode(b"\xff.gguf")))
    (tmp_path / "\x1b[2J.gguf").write_bytes(small_model())
    assert read_header(tmp_path / "\x1b[2J.gguf").path == str(tmp_path / "\x1b[2J.gguf")


def test_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input/output error while reading is one error that says so."""
    (tmp_path / "m.gguf").write_bytes(small_model())

    def fail(self: object, offset: int, n_bytes: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("offload.source._ReadAt.__call__", fail)
    assert "cannot be read: Input/output error" in refusal(tmp_path / "m.gguf").message


def test_shrinking_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file cut while it is read is one error, where a memory map would kill the process."""
    path = tmp_path / "m.gguf"
    path.write_bytes(small_model())

    def cut(self: object, offset: int, n_bytes: int) -> bytes:
        os.truncate(path, 100)
        return path.read_bytes()[offset : offset + n_bytes]

    monkeypatch.setattr("offload.source._ReadAt.__call__", cut)
    assert "could be read" in refusal(path).message
