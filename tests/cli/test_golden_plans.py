"""Plans of real models on three machines stay as they were reviewed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_plans import GOLDEN, MACHINES, MODELS, check, config_text, lay_out, write_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models' headers."""
    return write_models(tmp_path_factory.mktemp("golden") / "models")


@pytest.mark.parametrize("machine", MACHINES)
def test_plans_are_as_reviewed(machine: str, models: Path, tmp_path: Path) -> None:
    """Placement, rules and bytes are the golden ones; `python -m tests.golden_plans` records."""
    done = check(lay_out(tmp_path / machine, models, machine))
    assert done.returncode == 0, (
        f"{done.stdout}{done.stderr}\nmeant? python -m tests.golden_plans, then git diff"
    )


@pytest.mark.parametrize("machine", MACHINES)
def test_every_model_has_a_golden_plan(machine: str) -> None:
    """The files are those of the list: none is forgotten, none is left over."""
    assert (GOLDEN / machine / "offload.toml").read_text(encoding="utf-8") == config_text(machine)
    recorded = {path.stem for path in (GOLDEN / machine / "plans").iterdir()}
    assert recorded == set(MODELS)
