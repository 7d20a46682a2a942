"""`offload plan` says how fast: from a profile, or from data sheets, or refuses a bad profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offload.cost import Coefficient, Coefficients
from tuner.profile import Card, Hardware, Profile, write_profile
from tuner.synth import write_shape


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 30B shape."""
    return write_shape("qwen3-30b-a3b", tmp_path_factory.mktemp("m") / "30b.gguf")


def plan(shape: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Plan the shape for one described card, with no state of this machine."""
    return subprocess.run(
        [
            sys.executable, "-m", "offload", "plan", shape, "--gpus", "1", "--vram", "12GiB",
            "--host-ram", "64GiB", "-c", "4096", *args,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": "/nowhere"},
        timeout=60,
        check=False,
    )  # fmt: skip


def profile_at(path: Path, phases: tuple[str, ...] = ("decode", "prefill")) -> Path:
    """A profile in which every byte on the card takes a picosecond, on the host ten."""
    table = {}
    for name, value in {
        "decode.read.CUDA0.Q4_K": 1e-12, "decode.read.CPU.Q4_K": 1e-11,
        "decode.layer.CUDA0": 0.0, "decode.layer.CPU": 0.0, "decode.const": 0.0,
        "decode.hop": 0.0, "decode.context.CUDA0": 0.0,
        "prefill.const": 1.0, "prefill.ubatch": 0.0, "prefill.layer.CUDA0": 0.0,
        "prefill.read.CUDA0": 0.0, "prefill.flops.CUDA0.Q4_K": 0.0,
        "prefill.attention.CUDA0": 0.0, "prefill.stream.CUDA0": 0.0, "prefill.hop": 0.0,
        "prefill.carry": 0.0,
    }.items():  # fmt: skip
        if name.startswith(phases):
            table[name] = Coefficient(name=name, value=value, unit="s", standard_error=value / 100)
    write_profile(
        Profile(
            hardware=Hardware(cards=(Card(name="CUDA0", description="any card"),), cpu="any"),
            build_number=11434,
            build_commit="",
            created="2026-12-01T00:00:00Z",
            coefficients=Coefficients(
                table=table,
                covariance={},
                residual_sds={"decode": 0.02, "prefill": 0.02},
                source="measured",
            ),
        ),
        path,
    )
    return path


def test_the_table_says_how_fast_in_one_line(shape: Path) -> None:
    """Decode and prefill with the ends of their intervals, and that they are guessed."""
    done = plan(shape)
    lines = [line for line in done.stdout.splitlines() if line.startswith("speed")]
    assert done.returncode == 0 and len(lines) == 1
    assert "decode" in lines[0] and " to " in lines[0] and "guessed, not measured here" in lines[0]


def test_a_profile_is_believed(shape: Path, tmp_path: Path) -> None:
    """With --profile the answer follows from its coefficients, with a narrower interval."""
    guessed = json.loads(plan(shape, "-o", "json").stdout)["prediction"]
    path = profile_at(tmp_path / "p.json")
    done = plan(shape, "-o", "json", "--profile", str(path))
    speed = json.loads(done.stdout)["prediction"]
    assert speed["source"] == "profile"
    assert speed["prefill_t_s"] == pytest.approx(2048)
    assert (
        speed["decode_high_t_s"] / speed["decode_low_t_s"]
        < guessed["decode_high_t_s"] / guessed["decode_low_t_s"]
    )
    assert any(name.endswith("Q6_K") for name in speed["borrowed"])
    assert "types never measured" in plan(shape, "--profile", str(path)).stdout


def test_what_a_profile_lacks_is_guessed_and_said(shape: Path, tmp_path: Path) -> None:
    """A profile of decode alone gives decode; prefill comes from data sheets."""
    path = profile_at(tmp_path / "p.json", ("decode",))
    speed = json.loads(plan(shape, "-o", "json", "--profile", str(path)).stdout)["prediction"]
    assert speed["source"] == "profile+prior"
    assert speed["prefill_high_t_s"] / speed["prefill_low_t_s"] > 2


@pytest.mark.parametrize("text", [None, "{}", "no profile"])
def test_a_bad_profile_is_refused(shape: Path, tmp_path: Path, text: str | None) -> None:
    """Exit code 2 and one line that names the file, whatever is printed."""
    path = tmp_path / "p.json"
    if text is not None:
        path.write_text(text)
    for output in ("table", "args"):
        done = plan(shape, "-o", output, "--profile", str(path))
        assert done.returncode == 2 and not done.stdout
        assert str(path) in done.stderr and "Traceback" not in done.stderr
