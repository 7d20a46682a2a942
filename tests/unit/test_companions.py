"""A draft model and a projector are charged to their cards before the model is spread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offload.companions import companions_of_json, companions_to_json, draft_cards, mmproj_card
from offload.device import parse_device
from offload.errors import UsageError
from offload.memory import Companion, MemoryBytes
from offload.saved import read_plan
from offload.units import GIB
from tuner.synth import write_shape

CARDS = tuple(parse_device(t) for t in ("CUDA0:12GiB", "CUDA1:24GiB", "CUDA2:24GiB"))
BOTH = ("--gpus", "2", "--vram", "24GiB,24GiB", "--host-ram", "200GiB", "-c", "8192")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that does not fit on two cards, and a dense one to draft for it."""
    folder = tmp_path_factory.mktemp("m")
    main = write_shape("gpt-oss-120b", folder / "m.gguf")
    return main, write_shape("gpt-oss-20b", folder / "d.gguf")


def offload(*args: object) -> subprocess.CompletedProcess[str]:
    """Run the command without a state of this machine."""
    return subprocess.run(
        [sys.executable, "-m", "offload", *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": "/nowhere"},
        timeout=120,
        check=False,
    )


def planned(*args: object) -> dict[str, Any]:
    """The JSON of a plan that fits."""
    done = offload("plan", *args, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_draft_goes_to_the_freest_card_unless_told() -> None:
    """One card, the first of equally free ones; `-devd` names others, `none` the host."""
    assert [d.name for d in draft_cards(CARDS, None)] == ["CUDA1"]
    assert [d.name for d in draft_cards(CARDS, "CUDA2,CUDA0")] == ["CUDA2", "CUDA0"]
    assert draft_cards(CARDS, "none") == () == draft_cards((), None)
    for wrong in ("CUDA9", "CUDA0,CUDA0"):
        with pytest.raises(UsageError, match="-devd"):
            draft_cards(CARDS, wrong)


def test_a_projector_goes_to_the_first_card_unless_told() -> None:
    """As llama.cpp has it; `none` is the host."""
    first, named = mmproj_card(CARDS, None), mmproj_card(CARDS, "CUDA2")
    assert first is CARDS[0] and named is CARDS[2]
    assert mmproj_card(CARDS, "none") is None
    with pytest.raises(UsageError, match="-mmdev"):
        mmproj_card(CARDS, "CUDA9")


def test_companions_survive_json() -> None:
    """What a saved plan says of them is read back; nonsense is refused."""
    memory = MemoryBytes(model_bytes=5, context_bytes=6, compute_bytes=7)
    one = Companion(name="draft", path="/d.gguf", cards={"CUDA1": memory}, host=MemoryBytes())
    assert companions_of_json(json.loads(json.dumps(companions_to_json((one,))))) == (one,)
    assert companions_of_json(None) == ()
    for wrong in (3, [3], [{"name": "draft"}]):
        with pytest.raises(UsageError, match="companions"):
            companions_of_json(wrong)


def test_a_draft_is_charged_to_its_card(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Its bytes are in its card's margin, flags are emitted, and a saved plan keeps both."""
    main, draft = files
    plan = planned(main, *BOTH, "--draft", draft, "-ctkd", "q8_0", "--strategy", "even")
    (one,) = plan["companions"]
    (card,) = one["devices"]
    by_name = {d["name"]: d for d in plan["devices"]}
    assert card["name"] == "CUDA0" and card["total_bytes"] > 10 * GIB
    assert by_name["CUDA0"]["margin_bytes"] == GIB + card["total_bytes"]
    assert by_name["CUDA1"]["margin_bytes"] == GIB
    assert all(d["headroom_bytes"] >= 0 for d in plan["devices"])
    words = " ".join(plan["argv"])
    assert f"-md {draft} --spec-type draft-simple -devd CUDA0 -ctkd q8_0" in words
    saved = tmp_path / "p.json"
    saved.write_text(json.dumps(plan))
    assert companions_to_json(read_plan(str(saved)).companions) == plan["companions"]
    emitted = offload("emit", saved, "--format", "ini").stdout
    assert f"spec-draft-model = {draft}" in emitted and "spec-draft-device = CUDA0" in emitted
    refused = offload("emit", saved, "--format", "ik")
    assert refused.returncode == 2 and "draft" in refused.stderr


def test_a_draft_on_two_cards_follows_the_split(files: tuple[Path, Path]) -> None:
    """Each card's margin holds at least what the draft takes of it under the final `-ts`."""
    main, draft = files
    plan = planned(main, *BOTH, "--draft", draft, "-devd", "CUDA0,CUDA1", "--strategy", "even")
    taken = {d["name"]: d["total_bytes"] for d in plan["companions"][0]["devices"]}
    assert set(taken) == {"CUDA0", "CUDA1"}
    for device in plan["devices"]:
        assert device["margin_bytes"] >= GIB + taken[device["name"]]


def test_flags_of_a_file_that_is_not_there_are_refused(files: tuple[Path, Path]) -> None:
    """A card for no draft, and a model that is no projector, are usage errors."""
    main, draft = files
    for args in (("-devd", "CUDA0"), ("--no-mmproj-offload",), ("--mmproj", draft)):
        done = offload("plan", main, *BOTH, *args)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, args
