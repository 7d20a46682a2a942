"""What was learned about one machine, as a file?

A profile is one JSON object: `schema_version`, `machine` (what its cards and processor are
called, never a host's or a user's name), `llama_cpp` (the build), `created`, `coefficients`
with their covariance, and the `samples` they come from in llama-bench's own field names.
Written whole or not at all: to a temporary file beside it, then renamed; and never over a
file that is something else.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from offload.cost import Coefficient, Coefficients
from offload.device import Device
from offload.errors import UsageError

SCHEMA_VERSION: Final = 1
_BYTES_MAX: Final = 256 << 20
_HINT: Final = "write one with offload bench"
_PROFILE_KEYS: Final = frozenset(("schema_version", "machine", "coefficients", "samples"))
"""What every version of a profile has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card as llama.cpp names and describes it."""

    name: str
    description: str = ""
    memory_total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The machine a profile is about: cards in llama.cpp's order, the processor's model name."""

    cards: tuple[Card, ...]
    cpu: str = ""
    n_threads: int | None = None
    memory_total_bytes: int | None = None

    @property
    def card_models(self) -> dict[str, str]:
        """What each card is, by llama.cpp's name; cards nobody describes are left out."""
        return {card.name: card.description for card in self.cards if card.description}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All of a profile file. `created` is ISO 8601 in UTC, `samples` llama-bench-like objects."""

    hardware: Hardware
    build_number: int | None
    build_commit: str
    created: str
    coefficients: Coefficients
    samples: tuple[Mapping[str, Any], ...] = ()


def profiles_dir(env: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/offload/profiles`, by default under ~/.local/state."""
    base = env.get("XDG_STATE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "offload" / "profiles"


def profile_to_json(profile: Profile) -> dict[str, Any]:
    """The object that is written; floats as they are, covariance as rows of its lower half."""
    known = profile.coefficients
    names = tuple(known.table)
    return {
        "schema_version": SCHEMA_VERSION,
        "machine": {
            "cards": [
                {
                    "name": card.name,
                    "description": card.description,
                    "memory_total_bytes": card.memory_total_bytes,
                }
                for card in profile.hardware.cards
            ],
            "cpu": profile.hardware.cpu,
            "n_threads": profile.hardware.n_threads,
            "memory_total_bytes": profile.hardware.memory_total_bytes,
        },
        "llama_cpp": {
            "build_number": profile.build_number,
            "build_commit": profile.build_commit,
        },
        "created": profile.created,
        "coefficients": [
            {
                "name": c.name,
                "value": c.value,
                "unit": c.unit,
                "standard_error": c.standard_error,
                "n_samples": c.n_samples,
                "source": c.source,
            }
            for c in known.table.values()
        ],
        "covariance": [
            [known.covariance_of(a, b) for b in names[: i + 1]] for i, a in enumerate(names)
        ],
        "residual_sd": dict(known.residual_sds),
        "samples": [dict(sample) for sample in profile.samples],
    }


def profile_from_json(data: object, where: str = "the profile") -> Profile:
    """The profile in `data`; raises UsageError naming the key that is missing or wrong."""
    top = _Reader(data, where)
    if top.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"{where}: not a profile of schema version {SCHEMA_VERSION}; {_HINT}")
    machine, build = top.reader("machine"), top.reader("llama_cpp")
    table = {}
    for row in top.readers("coefficients"):
        coefficient = Coefficient(
            name=row.text("name"),
            value=row.number("value"),
            unit=row.text("unit"),
            standard_error=row.number("standard_error"),
            n_samples=row.whole("n_samples") or 0,
            source=row.text("source"),
        )
        table[coefficient.name] = coefficient
    return Profile(
        hardware=Hardware(
            cards=tuple(
                Card(
                    name=card.text("name"),
                    description=card.text("description"),
                    memory_total_bytes=card.whole("memory_total_bytes"),
                )
                for card in machine.readers("cards")
            ),
            cpu=machine.text("cpu"),
            n_threads=machine.whole("n_threads"),
            memory_total_bytes=machine.whole("memory_total_bytes"),
        ),
        build_number=build.whole("build_number"),
        build_commit=build.text("build_commit"),
        created=top.text("created"),
        coefficients=Coefficients(
            table=table,
            covariance=dict(_covariance(top.get("covariance"), tuple(table), where)),
            residual_sds=top.reader("residual_sd").numbers(),
            source="measured",
        ),
        samples=tuple(row.table for row in top.readers("samples")),
    )


def _covariance(
    rows: object, names: Sequence[str], where: str
) -> Iterator[tuple[tuple[str, str], float]]:
    if not isinstance(rows, list) or len(rows) != len(names):
        raise UsageError(f"{where}: covariance is not one row for each coefficient; {_HINT}")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != i + 1 or not all(map(_is_number, row)):
            raise UsageError(f"{where}: row {i} of covariance is not {i + 1} numbers; {_HINT}")
        yield from (((names[i], names[j]), float(value)) for j, value in enumerate(row[:-1]))


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


class _Reader:
    """One JSON object whose values must be there and of the right kind."""

    def __init__(self, table: object, where: str) -> None:
        if not isinstance(table, dict):
            raise UsageError(f"{where} is not a JSON object; {_HINT}")
        self.table: dict[str, Any] = table
        self._where = where

    def get(self, key: str) -> Any:
        return self.table.get(key)

    def _wrong(self, key: str, kind: str) -> UsageError:
        return UsageError(f"{self._where}: {key} is not {kind}; {_HINT}")

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        if not _is_number(value) or value < 0:
            raise self._wrong(key, "a number of 0 or more")
        return float(value)

    def whole(self, key: str) -> int | None:
        value = self.get(key)
        if value is not None and (type(value) is not int or not 0 <= value < 1 << 62):
            raise self._wrong(key, "a whole number")
        return value

    def numbers(self) -> dict[str, float]:
        return {key: self.number(key) for key in self.table}

    def reader(self, key: str) -> _Reader:
        return _Reader(self.get(key), f"{self._where}: {key}")

    def readers(self, key: str) -> list[_Reader]:
        rows = self.get(key)
        if not isinstance(rows, list):
            raise self._wrong(key, "a list")
        return [_Reader(row, f"{self._where}: {key}[{i}]") for i, row in enumerate(rows)]


def check_target(path: Path) -> None:
    """Refuse to write over what is no profile; raises UsageError.

    A profile of another version of offload is one all the same, and may be renewed.
    """
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise UsageError(f"{path}: a folder or a device, not a file; give another --profile")
        if not path.exists():
            return
        with open(path, encoding="utf-8") as file:
            data = json.loads(file.read(_BYTES_MAX))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give another --profile") from None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not data.keys() >= _PROFILE_KEYS:
        raise UsageError(
            f"{path}: there is such a file, which is no profile, and it is kept;"
            " give another --profile"
        )


def write_profile(profile: Profile, path: Path) -> None:
    """Write the whole file or leave what was there; raises UsageError where it cannot.

    What is there already and no profile is never written over.
    """
    import tempfile  # reading, which offload plan does, must not pay for it

    check_target(path)
    text = json.dumps(profile_to_json(profile), indent=1, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give another --profile") from None


def read_profile(path: Path) -> Profile:
    """The profile at `path`; raises UsageError where it cannot be read or is none."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.loads(file.read(_BYTES_MAX))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; {_HINT}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not JSON; {_HINT}") from None
    return profile_from_json(data, str(path))


def newest_profile(devices: Sequence[Device], folder: Path) -> Profile | None:
    """The newest readable profile in `folder` that is about all of these cards.

    Cards described by hand have no description and are no machine's in particular.
    """
    if not devices or not all(device.description for device in devices):
        return None
    found = find_profile(devices, folder)
    return None if found is None else found[1]


def find_profile(devices: Sequence[Device], folder: Path) -> tuple[Path, Profile] | None:
    """The newest readable profile in `folder` that knows every one of `devices`, and its file."""
    try:
        files = sorted(folder.glob("*.json"), key=lambda file: -file.stat().st_mtime)
    except OSError:
        return None
    for file in files:
        try:
            profile = read_profile(file)
        except UsageError:
            continue
        if all(_has_card(profile.hardware, device) for device in devices):
            return file, profile
    return None


def _has_card(hardware: Hardware, device: Device) -> bool:
    return any(card.description == device.description for card in hardware.cards)


def match_cards(hardware: Hardware, devices: Sequence[Device]) -> dict[str, str]:
    """Which card of the profile speaks for each device, by name; devices without one are left out.

    The same name and description first, then any card of the same description, then (for
    cards described by hand) the same name.
    """
    found = {}
    for device in devices:
        alike = [c for c in hardware.cards if c.description and c.description == device.description]
        named = [c for c in hardware.cards if c.name == device.name]
        both = [c for c in named if c in alike]
        by_name = [] if device.description else named
        card = next(iter((*both, *alike, *by_name)), None)
        if card is not None:
            found[device.name] = card.name
    return found
