"""What is in .venv, and how does it get there?"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"


def install_project(extra: str) -> None:
    """Install this clone, editable, with what it depends on; `extra` is "" or like "[dev]"."""
    declared = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    install(f"offload{extra}", "-e", f"{ROOT}{extra}", state=declared)
    compile_project()


def compile_project() -> None:
    """Compile what changed: pip leaves editable code alone, and Python may be told not to write.

    Where PYTHONDONTWRITEBYTECODE is set, `offload plan` would otherwise compile all it imports at
    each start, which takes longer than the plan. A tree that nobody may write to runs as it is.
    """
    run(PYTHON, "-m", "compileall", "-qq", "offload", "tuner")


def install(name: str, *args: str, state: str = "") -> None:
    """Have pip install into .venv, unless the same is known to be there."""
    make_venv()
    stamp, wanted = VENV / f".installed-{name}", "\n".join((*args, state))
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    say(f"{name}: installing into {VENV}")
    if run(PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "-qq", *args):
        sys.exit(f"{name} could not be installed; pip says why above")
    stamp.write_text(wanted)


def make_venv() -> None:
    """Make .venv; one that was not finished does not stay."""
    if PYTHON.exists():
        return
    try:
        code = run(sys.executable, "-m", "venv", VENV)
    except BaseException:
        shutil.rmtree(VENV, ignore_errors=True)
        raise
    if code:
        shutil.rmtree(VENV, ignore_errors=True)
        sys.exit("no virtual environment; on Debian and Ubuntu: apt install python3-venv")


def run(*argv: str | Path, env: Mapping[str, str] | None = None) -> int:
    """Run a program in the clone's folder; its exit code."""
    return subprocess.run(argv, cwd=ROOT, env=env, check=False).returncode


def say(text: str, *, end: str = "\n") -> None:
    """Tell the person who waits; standard output is for what they asked for."""
    print(text, end=end, file=sys.stderr, flush=True)
