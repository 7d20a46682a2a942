"""Which files make up this model, and what do their headers say together?

Mirrors how `llama_model_loader` (src/llama-model-loader.cpp, b11434) finds and checks the parts
of a split model, except that any part may be given, not only the first.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO, Final

from offload.errors import GGUFError
from offload.gguf import GGUFHeader, TensorInfo, parse_header_at
from offload.header_bytes import printable, shortened

_PART: Final = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})\.gguf", re.ASCII | re.DOTALL)
_PARTS_MAX: Final = (1 << 16) - 1  # split.count is a uint16
_NAMED_MAX: Final = 3


def read_header(path: str | os.PathLike[str]) -> GGUFHeader:
    """The header of the model at `path`: one file, or any part of a split set.

    Reads no tensor data. Raises GGUFError, also for whatever keeps a file from being read.
    """
    given = os.fspath(path)
    header = _read_file(given)
    n_parts = _integer(header, "split.count", 0)
    match = _PART.fullmatch(given)
    if n_parts <= 1:
        if match and int(match[3]) > 1:
            raise _error(
                given,
                f"named like part {int(match[2])} of {int(match[3])}, but it is not a part of a "
                "split model (no split.count); get the right part, or rename the file if it is a "
                "model of its own",
            )
        return header
    paths = _part_paths(header, match, n_parts)
    missing = [name for name in paths if not os.path.exists(name)]
    if missing:
        named = ", ".join(printable(os.path.basename(name)) for name in missing[:_NAMED_MAX])
        more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
        raise _error(
            given,
            f"{len(missing)} of the model's {n_parts} parts are missing: {named}{more}; "
            "download them into the same folder",
        )
    return merge_parts([header if name == given else _read_file(name) for name in paths])


def merge_parts(parts: Sequence[GGUFHeader]) -> GGUFHeader:
    """One header for a split model: the first part's metadata, all parts' tensors.

    Raises GGUFError where a part is not the one its place asks for.
    """
    first = parts[0]
    n_tensors = _integer(first, "split.tensors.count")
    tensors: list[TensorInfo] = []
    home: dict[str, int] = {}
    for i_file, part in enumerate(parts):
        _check_part(part, i_file, first, len(parts))
        for tensor in part.tensors:
            i_other = home.setdefault(tensor.name, i_file)
            if i_other != i_file:
                raise _error(
                    part.path,
                    f"this tensor is also in {printable(os.path.basename(parts[i_other].path))}; "
                    "the parts are not of one model: download them again",
                    key=tensor.name,
                )
            tensors.append(tensor._replace(i_file=i_file) if i_file else tensor)
    if len(tensors) != n_tensors:
        raise _error(
            first.path,
            f"the model has {n_tensors} tensors, its {len(parts)} parts hold {len(tensors)}; "
            "a part is damaged or from another model: download the parts again",
        )
    return replace(
        first,
        tensors=tuple(tensors),
        file_bytes=sum(part.file_bytes for part in parts),
        n_files=len(parts),
    )


def _part_paths(header: GGUFHeader, match: re.Match[str] | None, n_parts: int) -> list[str]:
    """The paths of all parts, as `llama_split_path` names them."""
    no = _integer(header, "split.no")
    if not 0 <= no < n_parts <= _PARTS_MAX:
        raise _error(
            header.path, f"claims to be part {no + 1} of {n_parts}, which cannot be; {_AGAIN}"
        )
    if match is None:
        raise _error(
            header.path,
            f"part {no + 1} of {n_parts} of a split model, but not named so, and the other parts "
            f"are found by name: rename it to NAME-{no + 1:05d}-of-{n_parts:05d}.gguf",
        )
    if (int(match[2]), int(match[3])) != (no + 1, n_parts):
        raise _error(
            header.path,
            f"named like part {int(match[2])} of {int(match[3])}, but inside it is part {no + 1} "
            f"of {n_parts}; {_AGAIN}",
        )
    return [f"{match[1]}-{i + 1:05d}-of-{n_parts:05d}.gguf" for i in range(n_parts)]


def _check_part(part: GGUFHeader, i_file: int, first: GGUFHeader, n_parts: int) -> None:
    """Refuse a part whose metadata contradicts its place in the set or the first part."""
    no = _integer(part, "split.no")
    if no != i_file:
        raise _error(
            part.path, f"named like part {i_file + 1}, but inside it is part {no + 1}; {_AGAIN}"
        )
    # llama.cpp looks only at split.no and the sum of tensors. Whatever else a part says about
    # its set must agree too: the sum can be right by chance.
    for key in ("split.count", "split.tensors.count", "general.architecture"):
        mine, theirs = part.metadata.get(key), first.metadata.get(key)
        if mine is not None and mine != theirs:
            raise _error(
                part.path,
                f"says {_shown(mine)}, the first part says {_shown(theirs)}: "
                f"it is a part of another model; {_AGAIN}",
                key=key,
            )


_AGAIN: Final = "download the right file again"


def _integer(header: GGUFHeader, key: str, default: int | None = None) -> int:
    """A split set's number; without a default the key must be there."""
    value = header.metadata.get(key, default)
    if value is None:
        raise _error(
            header.path,
            "a part of a split model without this key: it is from another model or damaged; "
            + _AGAIN,
            key=key,
        )
    if not isinstance(value, int) or isinstance(value, bool):
        raise _error(header.path, f"not an integer; the file is damaged, {_AGAIN}", key=key)
    return value


def _read_file(path: str) -> GGUFHeader:
    """The header of one file; every failure of the system as one GGUFError."""
    try:
        # Asked before opening: opening a pipe waits for a writer, and a device may act on it.
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise _error(path, _directory_advice(path))
        if not stat.S_ISREG(mode):
            raise _error(path, "a pipe, socket or device, not a regular file; save it to a file")
        with open(path, "rb") as file:
            return parse_header_at(
                _ReadAt(file), file_bytes=os.fstat(file.fileno()).st_size, path=path
            )
    except FileNotFoundError:
        raise _error(path, _missing_advice(path)) from None
    except PermissionError:
        raise _error(path, "no permission to read it; check owner and mode (`ls -l`)") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or error
        raise _error(path, f"cannot be read: {reason}") from None


class _ReadAt:
    """`read_at` of an open file."""

    __slots__ = ("_file",)

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __call__(self, offset: int, n_bytes: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(n_bytes)


def _directory_advice(path: str) -> str:
    """Point to a model in the folder, the first part where it is split."""
    try:
        models = sorted(name for name in os.listdir(path) if name.endswith(".gguf"))
    except OSError:
        models = []
    if not models:
        return "a folder without .gguf files; give the model's .gguf file"
    return f"a folder, not a file; give a .gguf file in it, such as {printable(models[0])}"


def _missing_advice(path: str) -> str:
    """Say what else there is: a split set of that name, or that this is no local path."""
    if "://" in path:
        return "a URL, but only local files are read; download the model first"
    folder, name = os.path.split(path)
    stem = name.removesuffix(".gguf")
    try:
        parts = sorted(
            other
            for other in os.listdir(folder or ".")
            if (match := _PART.fullmatch(other)) and match[1] == stem
        )
    except OSError:
        parts = []
    if parts:
        return f"no such file, but a split model of that name: give {printable(parts[0])}"
    return "no such file; check the path"


def _shown(value: object) -> str:
    return printable(shortened(str(value)))


def _error(path: str, message: str, *, key: str = "") -> GGUFError:
    return GGUFError(message, path=printable(path), key=key)
