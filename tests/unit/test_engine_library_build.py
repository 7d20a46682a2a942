"""Which build a libllama is: by the package's version, or by a program beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload.engine import library_build as module
from offload.engine.library_build import library_build


def _program(folder: Path, name: str, answer: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)


def test_a_folder_is_the_build_its_programs_say(tmp_path: Path) -> None:
    """llama-server's `--version` beside the library names the build."""
    _program(tmp_path, "llama-server", 'echo "version: 9876 (abcdef)" >&2')
    assert library_build(tmp_path) == 9876


def test_another_program_is_asked_where_one_has_no_version(tmp_path: Path) -> None:
    """llama-server that fails does not end the search."""
    _program(tmp_path, "llama-server", "exit 1")
    _program(tmp_path, "llama-cli", 'echo "version: 9876 (abcdef)" >&2')
    assert library_build(tmp_path) == 9876


def test_a_folder_without_programs_is_no_known_build(tmp_path: Path) -> None:
    """A libllama alone does not say its build."""
    assert library_build(tmp_path) is None


def test_the_environment_can_name_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for llama-cpp-python itself, LLAMA_CPP_LIB_PATH is a folder."""
    _program(tmp_path, "llama-server", 'echo "version: 9876 (abcdef)" >&2')
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert library_build() == 9876


@pytest.mark.parametrize(("version", "build"), [("0.3.36", 11312), ("0.0.1", None)])
def test_the_package_is_known_by_its_version(
    version: str, build: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only of releases whose changelog was read is the build known."""
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    assert module.library_build() == build
