"""`--llama-server` means the same program to every command, however it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload.cli.flags import located


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a program in it, and another of the same name on PATH."""
    here, path = tmp_path / "here", tmp_path / "path"
    for where, name in ((here, "mine"), (here / "build", "llama-server"), (path, "mine"),
                        (path, "other")):  # fmt: skip
        where.mkdir(exist_ok=True)
        (where / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.chdir(here)
    return path


def test_what_is_meant(folder: Path) -> None:
    """A file here comes before one on PATH, and is never looked up there; folders hold theirs."""
    assert located("mine") == "./mine"
    assert located("build") == "build/llama-server"
    assert located("build/llama-server") == "build/llama-server"
    assert located("other") == str(folder / "other")
    assert located("nothing") == "nothing"
    assert located(None) is None
