"""Does a profile come back as it was written, and is everything else refused in one line?"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from offload.cost import Coefficient, Coefficients
from offload.device import device_by_name
from offload.errors import UsageError
from tuner.profile import (
    Card,
    Hardware,
    Profile,
    match_cards,
    newest_profile,
    profile_to_json,
    profiles_dir,
    read_profile,
    write_profile,
)

NAMES = ("decode.const", "decode.read.CUDA0.Q4_K", "prefill.const")


def some_profile(description: str = "NVIDIA GeForce RTX 3090") -> Profile:
    """A profile of one card with three coefficients, two of them correlated."""
    table = {
        name: Coefficient(
            name=name, value=0.1 + i, unit="s", standard_error=0.3 * (i + 1), n_samples=7
        )
        for i, name in enumerate(NAMES)
    }
    return Profile(
        hardware=Hardware(
            cards=(Card(name="CUDA0", description=description, memory_total_bytes=24 << 30),),
            cpu="AMD EPYC 7282",
            n_threads=16,
            memory_total_bytes=128 << 30,
        ),
        build_number=11434,
        build_commit="abc",
        created="2026-12-01T00:00:00Z",
        coefficients=Coefficients(
            table=table,
            covariance={
                (NAMES[1], NAMES[0]): -0.05,
                (NAMES[2], NAMES[0]): 0.0,
                (NAMES[2], NAMES[1]): 0.0,
            },
            residual_sds={"decode": 0.02, "prefill": 0.03},
            source="measured",
        ),
        samples=({"n_gen": 64, "samples_ns": [1, 2, 3]},),
    )


def test_written_and_read_back(tmp_path: Path) -> None:
    """A profile read back is equal in every number, covariance included."""
    path = tmp_path / "deep" / "profile.json"
    write_profile(some_profile(), path)
    assert read_profile(path) == some_profile()


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the new file cannot be put in place the old one stays, and no scrap is left."""
    path = tmp_path / "profile.json"
    write_profile(some_profile(), path)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UsageError, match="No space left"):
        write_profile(some_profile("another"), path)
    assert os.listdir(tmp_path) == ["profile.json"]
    assert read_profile(path) == some_profile()


@pytest.mark.parametrize(
    "text", ["", "my notes", "[1]", '{"models": 3}', '{"schema_version": 1}', "\udcff"]
)
def test_what_is_no_profile_is_not_written_over(tmp_path: Path, text: str) -> None:
    """The file stays byte for byte, and one line says so; nothing is left beside it."""
    path = tmp_path / "notes.json"
    raw = text.encode(errors="surrogateescape")
    path.write_bytes(raw)
    with pytest.raises(UsageError, match=r"notes\.json: .* no profile, and it is kept; give"):
        write_profile(some_profile(), path)
    assert path.read_bytes() == raw
    assert os.listdir(tmp_path) == ["notes.json"]


def test_a_profile_of_another_version_is_renewed(tmp_path: Path) -> None:
    """It is ours, though it can no longer be read."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(profile_to_json(some_profile()) | {"schema_version": 0}))
    write_profile(some_profile(), path)
    assert read_profile(path) == some_profile()


def test_a_device_or_a_folder_is_not_written_over(tmp_path: Path) -> None:
    """A pipe and a folder are named and stay what they are."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UsageError, match="not a file"):
            write_profile(some_profile(), path)
    assert not (tmp_path / "pipe").is_file()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema_version": 2}, "schema version"),
        ({"machine": []}, "machine"),
        ({"coefficients": [{"name": "a"}]}, r"coefficients\[0\]: value"),
        ({"covariance": [[1.0]]}, "covariance"),
        ({"covariance": [[1.0], [1.0, 1.0], [1.0, 1.0, "x"]]}, "row 2 of covariance"),
        ({"residual_sd": {"decode": -1}}, "residual_sd: decode"),
        ({"created": 5}, "created"),
        ({"samples": 3}, "samples"),
    ],
)
def test_what_is_no_profile_is_refused(
    tmp_path: Path, change: dict[str, object], named: str
) -> None:
    """The error names the file and the key."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_to_json(some_profile()) | change))
    with pytest.raises(UsageError, match=named) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"schema_version": 1}', "[" * 99999])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """A file that is anything else is refused with one line."""
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="offload bench"):
        read_profile(path)
    with pytest.raises(UsageError, match="No such file"):
        read_profile(tmp_path / "missing.json")


def test_the_newest_profile_of_these_cards_is_found(tmp_path: Path) -> None:
    """Only a profile about the cards counts, the newest of several, broken ones passed over."""
    card = replace(device_by_name("CUDA0", 1 << 30), description="NVIDIA GeForce RTX 3090")
    assert newest_profile([card], tmp_path / "missing") is None
    for i, (name, profile) in enumerate(
        {
            "old": some_profile(),
            "new": replace(some_profile(), created="2027-01-01T00:00:00Z"),
            "other": some_profile("another card"),
        }.items()
    ):
        write_profile(profile, tmp_path / f"{name}.json")
        os.utime(tmp_path / f"{name}.json", (i, i))
    (tmp_path / "broken.json").write_text("{")
    found = newest_profile([card], tmp_path)
    assert found is not None and found.created == "2027-01-01T00:00:00Z"
    assert newest_profile([device_by_name("CUDA0", 1 << 30)], tmp_path) is None


def test_cards_are_matched_by_what_they_are() -> None:
    """A description says more than a name; a card without one goes by its name."""
    hardware = Hardware(
        cards=(Card(name="CUDA0", description="big"), Card(name="CUDA1", description="small"))
    )
    names = ("CUDA0", "CUDA1", "CUDA2")
    bare = [device_by_name(name, 1) for name in names]
    assert match_cards(hardware, bare) == {"CUDA0": "CUDA0", "CUDA1": "CUDA1"}
    swapped = [replace(bare[0], description="small"), replace(bare[1], description="other")]
    assert match_cards(hardware, swapped) == {"CUDA0": "CUDA1"}


def test_profiles_live_in_the_state_folder() -> None:
    """XDG_STATE_HOME is obeyed where it is absolute, as its specification asks."""
    assert profiles_dir({"XDG_STATE_HOME": "/x"}) == Path("/x/offload/profiles")
    assert profiles_dir({"XDG_STATE_HOME": "x"}).parts[-4:] == (
        ".local",
        "state",
        "offload",
        "profiles",
    )
