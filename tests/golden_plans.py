"""Golden plans: twelve models of the catalogue on three machines, as `offload check` keeps them.

`python -m tests.golden_plans` records them anew; `git diff tests/golden` is then the review.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tuner.synth import write_shape

GOLDEN: Final = Path(__file__).parent / "golden"
MODELS: Final = (
    "mistral-small-4-119b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "gemma-4-26b-a4b",
    "glm-4.5-air",
    "gpt-oss-120b",
    "kimi-k2",
    "llama-4-maverick",
    "mixtral-8x7b",
    "qwen3-235b-a22b",
    "qwen3-next-80b-a3b",
    "qwen3.5-35b-a3b-mtp",
)
MACHINES: Final = {
    "one": 'gpu = ["CUDA0:24GiB:1008GB/s:25GB/s"]',
    "three": 'gpus = 3\nvram = "22GiB"',
    "mixed": (
        'gpu = ["CUDA0:16GiB:448GB/s:12GB/s", "CUDA1:48GiB:960GB/s:25GB/s",'
        ' "CUDA2:12GiB:360GB/s:6GB/s"]'
    ),
}
CONFIG: Final = """\
# Written by python -m tests.golden_plans
[machine]
{machine}
host-ram = "768GiB"

[options]
ctx-size = 32768

[check]
run = ["plan"]
baseline = "plans"

[tolerances]
plan-memory = "0"
"""


def config_text(machine: str) -> str:
    """The offload.toml of one machine."""
    models = "".join(f'\n[[model]]\npath = "models/{name}.gguf"\n' for name in MODELS)
    return CONFIG.format(machine=MACHINES[machine]) + models


def write_models(folder: Path) -> Path:
    """The models' headers over holes, in a folder of their own."""
    folder.mkdir()
    for name in MODELS:
        write_shape(name, folder / f"{name}.gguf")
    return folder


def lay_out(folder: Path, models: Path, machine: str) -> Path:
    """The machine's golden files beside the models; where its offload.toml is."""
    shutil.copytree(GOLDEN / machine, folder)
    (folder / "models").symlink_to(models)
    return folder / "offload.toml"


def check(config: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`offload check` of one machine."""
    argv = [sys.executable, "-m", "offload", "check", "--config", str(config), *args]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def main() -> int:
    """Record all plans anew; golden files of a machine that fails stay as they were."""
    with tempfile.TemporaryDirectory() as name:
        models = write_models(Path(name) / "models")
        for machine in MACHINES:
            folder = Path(name) / machine
            folder.mkdir()
            (folder / "models").symlink_to(models)
            config = folder / "offload.toml"
            config.write_text(config_text(machine), encoding="utf-8")
            done = check(config, "--update")
            if done.returncode:
                sys.stderr.write(done.stdout + done.stderr)
                return 1
            golden = GOLDEN / machine
            shutil.rmtree(golden, ignore_errors=True)
            shutil.copytree(folder / "plans", golden / "plans")
            shutil.copy(config, golden)
    print("recorded; review with: git diff tests/golden")
    return 0


if __name__ == "__main__":
    sys.exit(main())
