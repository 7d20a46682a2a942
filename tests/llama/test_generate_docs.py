"""The examples of docs/python.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from offload.engine.process import child_environment
from tuner.synth import write_random

pytestmark = pytest.mark.usefixtures("llama_cpp_python")

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def run(folder: Path, *args: str) -> str:
    """What a Python of our own says in `folder`; nothing may go wrong."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *args],
        cwd=folder,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples(tmp_path: Path) -> None:
    """Both of them, one after the other, with a small model in the place of a big one."""
    write_random(tmp_path / "model.gguf", arch="qwen3moe", n_layer=6, quant="Q8_0")
    args = ("plan", "model.gguf", "--gpus", "2", "--vram", "24GiB", "-c", "4096", "-o", "json")
    (tmp_path / "plan.json").write_text(run(tmp_path, "-m", "offload", *args))
    first, second = (run(tmp_path, "-c", example) for example in EXAMPLES)
    assert first.startswith(second.rstrip("\n"))
    assert re.search(r"^CUDA0 \d+ \d+$", first, re.MULTILINE)


def test_names_are_here() -> None:
    """`offload.engine` hands out what the page uses, and nothing else by accident."""
    import offload.engine

    assert callable(offload.engine.load)
    for name in offload.engine.__all__:
        assert getattr(offload.engine, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'loaf'"):
        _ = offload.engine.loaf  # type: ignore[attr-defined]


def test_children_start_fast() -> None:
    """The package itself imports none of its rooms."""
    code = "import offload.engine, sys; print([m for m in sys.modules if 'offload.engine.' in m])"
    assert run(Path.cwd(), "-c", code) == "[]\n"
