"""`offload --version`: which version, without loading what a command needs."""

from __future__ import annotations

import subprocess
import sys

from offload import __version__


def test_version_is_one_line_and_loads_no_command() -> None:
    """It prints the name and the version, and imports neither a command nor a metadata reader."""
    code = (
        "import sys; sys.argv = ['offload', '--version']; from offload.cli import main; main();"
        " print([m for m in ('typer', 'click', 'importlib.metadata', 'offload.cli.app')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"offload {__version__}\n[]\n"


def test_help_names_it() -> None:
    """Who looks for it in the help finds it."""
    argv = [sys.executable, "-m", "offload", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert "--version" in done.stdout
