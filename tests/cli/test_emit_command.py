"""`offload emit` as scripts use it: every format from a saved plan, errors on one line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from offload.emit.formats import FORMAT_NAMES
from tests.emit_readers import read_preset, read_unit_command
from tuner.synth import write_shape


def offload(*args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "offload", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 119B shape and its plan for two cards, by a relative path."""
    folder = tmp_path_factory.mktemp("emit")
    write_shape("mistral-small-4-119b", folder / "119b.gguf")
    done = offload(
        *("plan", "119b.gguf", "--gpus", "2", "--vram", "22GiB", "--host-ram", "64GiB"),
        *("-c", "8192", "-o", "json"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    (folder / "plan.json").write_text(done.stdout)
    return folder


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_every_format_comes_out(name: str, folder: Path) -> None:
    """stdout carries the file, stderr nothing, exit code 0."""
    done = offload("emit", "plan.json", "--format", name, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n")


def test_args_are_the_plans_own(folder: Path) -> None:
    """`args` is the argv that stands in the plan, with the whole path: it is read anywhere."""
    argv = json.loads((folder / "plan.json").read_text())["argv"]
    assert shlex.split(offload("emit", "plan.json", cwd=folder).stdout) == argv
    assert argv[2] == str(folder / "119b.gguf")


def test_a_draft_is_not_left_out_without_a_word(folder: Path) -> None:
    """llama-bench has no draft: it times the model alone, and stderr says so."""
    saved = json.loads((folder / "plan.json").read_text())
    saved["launch"]["draft_path"] = "draft.gguf"
    (folder / "draft.json").write_text(json.dumps(saved))
    done = offload("emit", "draft.json", "--format", "bench", cwd=folder)
    assert done.returncode == 0 and "draft.gguf" not in done.stdout
    assert done.stderr.count("\n") == 1 and "draft" in done.stderr


def test_files_have_whole_paths(folder: Path) -> None:
    """A unit, a preset or a Compose file is read from some other folder."""
    unit = offload("emit", "plan.json", "--format", "systemd", cwd=folder).stdout
    assert read_unit_command(unit)[2] == str(folder / "119b.gguf")
    service = yaml.safe_load(
        offload(
            "emit", "plan.json", "--format", "compose", "--model", "/data/x.gguf", cwd=folder
        ).stdout
    )["services"]["llama-server"]
    assert service["volumes"][0]["source"] == "/data"
    assert service["command"][1] == "/models/x.gguf"


def test_host_port_and_alias_arrive(folder: Path) -> None:
    """And an address others can reach is told on stderr, since there is no key."""
    done = offload(
        *("emit", "plan.json", "--format", "systemd", "--host", "0.0.0.0", "--port", "9000"),
        *("--alias", "big"),
        cwd=folder,
    )
    argv = read_unit_command(done.stdout)
    assert argv[-6:] == ["--host", "0.0.0.0", "--port", "9000", "--alias", "big"]
    assert done.returncode == 0 and "without a key" in done.stderr


def test_a_program_decides_the_words(folder: Path, tmp_path: Path) -> None:
    """An old build's help leads to old flags, and the unit runs that program."""
    program = tmp_path / "llama-server"
    flags = "-m -ngl -ts -ot -c -ub --no-mmap --host --port --alias"
    lines = "".join(f"  {flag} X                    text\\n" for flag in flags.split())
    program.write_text(
        "#!/bin/sh\n"
        f"case $1 in --version) echo 'version: 6000 (abc)';; *) printf '{lines}';; esac\n"
    )
    program.chmod(0o755)
    done = offload(
        "emit", "plan.json", "--format", "systemd", "--llama-server", program, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    argv = read_unit_command(done.stdout)
    assert argv[0] == str(program)
    assert "--no-mmap" in argv and not {"-fit", "--load-mode"} & set(argv)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "yaml"), "--format 'yaml': one of args"),
        (("--format", "ini", "--port", "1"), "--port"),
        (("--format", "compose", "--image", "a b"), "--image"),
        (("--port", "70000"), "--port"),
        (("--format", "bench", "--model", "/a,b.gguf"), "comma"),
        (("--format", "ini", "--model", "/a#b.gguf"), "'#'"),
        (("--format", "ini", "--model", "a.gguf"), "--model"),
        (("--llama-server", "/nowhere/llama-server"), "llama-server"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(
    arguments: tuple[str, ...], message: str, folder: Path
) -> None:
    """Never a traceback, never half an answer."""
    done = offload("emit", "plan.json", *arguments, cwd=folder)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_preset_is_read_back(folder: Path) -> None:
    """The section is the model's name and holds the plan's context."""
    text = offload("emit", "plan.json", "--format", "ini", "--alias", "big", cwd=folder).stdout
    assert read_preset(text)["big"]["ctx-size"] == "8192"
