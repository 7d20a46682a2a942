"""llama.cpp itself reads the command lines that lint accepts or refuses."""

from __future__ import annotations

import random
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from offload.engine.binaries import read_build, supported_flags
from offload.lint import lint
from offload.lint.command import Program, parse_command
from offload.lint.finding import Severity
from offload.lint.flags import BENCH, COMMON
from offload.lint.reading import read_settings
from offload.lint.user_rules import expand_overrides
from offload.model import make_model
from offload.source import read_header
from tests.missing import missing

PROGRAMS = ("llama-server", "llama-cli", "llama-completion", "llama-perplexity")
RARE = ("llama-cli", "llama-perplexity")
"""Not among what `python3 -m dev setup` builds: judged where somebody has them."""
GOOD = (
    "-ngl 99", "-ngl all", "-ngl 12x", "-c 4096", "-ub 512", "-b 1024", "-np 2", "-np -1", "-kvu",
    "-no-kvu", "-ctk q8_0", "-ctv f16", "-fa on", "-fa auto", "--swa-full", "-nkvo", "-sm none",
    "-sm row", "-ts 1,2", "-ts 3/1", "-mg 0", "-ot exps=CPU", "-ot 'blk\\.1\\.=CPU,x=CPU'", "-cmoe",
    "-ncmoe 5", "--n_cpu_moe 5", "-ncffn 3", "-lm none", "--load-mode mmap", "-fit off",
    "-fitt 512", "-fitc 4096", "--no-host", "--no-op-offload", "--host 127.0.0.1", "--temp 0.5",
    "--control-vector-layer-range 1 2", "-dev none", "--spec-type draft-mtp",
)  # fmt: skip
BAD = (
    "--no-mmap", "--mlock", "-ngl=99", "--ctx-size=4096", "--foo", "stray", "-c x", "-ngl x",
    "-np 0", "-ctk q3_K", "-fa maybe", "-sm diagonal", "-lm fast", "-fit perhaps", "-ncmoe -1",
    "-ot exps", "-ot exps=NOWHERE", "-ot 'blk\\.\\d{1,2}=CPU'", "-ot '(?=x)a=b=CPU'", "-ts a,b",
    "-fmoe", "-rtr", "-draft 3", "--draft-max 3", "-c 99999999999", "-dev NOWHERE",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Path:
    """llama-server of b11434."""
    found = shutil.which("llama-server")
    if found is None or supported_flags(Path(found)).isdisjoint({"-lm"}):
        missing("no llama-server as new as b11434")
    return Path(found)


@pytest.mark.parametrize("name", [*PROGRAMS, "llama-bench"])
def test_the_flag_tables_are_complete(name: str, server: Path) -> None:
    """Every flag of a program's help is in our table, with a value where the help shows one."""
    program = server.with_name(name)
    if not program.exists() and name in RARE:
        pytest.skip(f"{name} is not here")
    if not program.exists():
        missing(f"{name} is not built")
    table = BENCH if name == "llama-bench" else COMMON
    build = read_build(program)
    unknown = {f for f in build.flags or () if f not in table}
    # refused with a hint, and names with a dot in them, which are cut short there
    assert not {f for f in unknown if not f.startswith(("--draft", "--spec-ngram", "--fim-"))}
    hints = {f: hint for f, hint in build.hints.items() if f in table}
    assert len(hints) > 20
    assert {f for f, hint in hints.items() if bool(hint) != bool(table[f][1])} == set()


def _is_refused(text: str) -> bool:
    """True where lint says that llama.cpp does not get beyond reading the command."""
    command = parse_command([f"llama-server {text}"])
    settings = read_settings(command)
    _, wrong = expand_overrides(settings.overrides)
    found = [*command.findings, *settings.findings, *wrong]
    is_error = any(f.severity is Severity.ERROR or f.code in _WARNED for f in found)
    # these need the list of devices, which a case of lint brings along
    return is_error or "NOWHERE" in text


_WARNED = ("removed-flag", "ik-flag", "flash-attn-without-value")


def _is_accepted(server: Path, text: str) -> bool:
    """`--list-devices` ends the program well when every flag before it has been read."""
    words = [*shlex.split(text), "--list-devices"]
    done = subprocess.run([server, *words], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def test_each_flag_alone_is_judged_alike(server: Path) -> None:
    """What lint takes llama-server takes, and what lint refuses it refuses."""
    for text in (*GOOD, *BAD):
        assert _is_accepted(server, text) != _is_refused(text), text
    assert not any(_is_refused(text) for text in GOOD)
    assert all(_is_refused(text) for text in BAD)


def test_random_commands_are_judged_alike(server: Path) -> None:
    """Seeded mixtures of good and bad flags: the verdicts agree on every one."""
    rng = random.Random(11434)
    verdicts = set()
    for _ in range(60):
        parts = rng.sample(GOOD, rng.randint(1, 6)) + rng.sample(BAD, rng.random() < 0.5)
        rng.shuffle(parts)
        text = " ".join(parts)
        refused = _is_refused(text)
        verdicts.add(refused)
        assert _is_accepted(server, text) != refused, text
    assert verdicts == {True, False}


def test_programs_are_told_apart() -> None:
    """The names of the judged programs are the ones whose tables are used."""
    kinds = {name: parse_command([f"{name} -m x"]).kind for name in PROGRAMS}
    assert kinds.pop("llama-server") is Program.SERVER
    assert set(kinds.values()) == {Program.OTHER}


REFUSABLE = ("-ctk q8_0 -ctv q8_0", "-ctk q8_0", "-fa off -ctv q8_0", "-ctv q4_0", "-np 3 -ub 512")


def test_what_a_model_does_not_allow_is_judged_alike(archs_dir: Path, server: Path) -> None:
    """Cache types, flash attention and slots: the dry run of llama-fit-params refuses the same.

    A seeded fifth of all architectures; every one of them with every option was compared once.
    """
    program = server.with_name("llama-fit-params")
    if not program.exists():
        missing("llama-fit-params is not built")
    rng = random.Random(11434)
    files = sorted(archs_dir.glob("*.gguf"))
    chosen = [*rng.sample(files, len(files) // 5), archs_dir / "kimi-linear-moe.gguf"]
    verdicts = set()
    for path in chosen:
        model = make_model(read_header(str(path)))
        for options in rng.sample(REFUSABLE, 2) if path != chosen[-1] else REFUSABLE:
            words = ["-m", str(path), "-c", "2048", *options.split()]
            done = subprocess.run(
                [program, *words, "-fitp", "on"], capture_output=True, timeout=60, check=False
            )
            report = lint(parse_command(["llama-server", *words]), model=model)
            verdicts.add(report.has_errors)
            assert (done.returncode != 0) == report.has_errors, (path.name, options)
    assert verdicts == {True, False}


FAILING = (
    ("-ot exps=NOWHERE", "unknown-buffer"),
    ("--foo", "unknown-flag"),
    ("-c x", "bad-value"),
    ("-dev NOWHERE", "unknown-device"),
    ("--rpc 127.0.0.1:9", "rpc-unreachable"),
    ("-fa off -ctk q8_0 -ctv q8_0", "quantised-v-without-flash-attention"),
    ("-ctk q4_0 -ctv f16", "mla-cache-types-differ"),
)


@pytest.mark.parametrize(("flags", "code"), FAILING)
def test_logs_of_real_failures_are_explained(
    flags: str, code: str, archs_dir: Path, server: Path
) -> None:
    """What b11434 prints when it stops is recognised by its own words."""
    words = [str(server), "-m", str(archs_dir / "deepseek2-moe.gguf"), *flags.split()]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    found = {finding.code for finding in lint(None, logs=[text.splitlines()]).findings}
    assert code in found, (found, text[-1500:])
