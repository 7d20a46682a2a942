"""What do the samples of a sweep say about the machine, as a profile?

One profile for each machine and build. Samples of other models that the profile has
already stay in it and in the fit: each model knows some tensor types that others lack.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from offload.device import Device
from offload.errors import UsageError
from offload.units import GIB
from tuner.fit import Fit, fit
from tuner.profile import Card, Hardware, Profile, profiles_dir, read_profile
from tuner.samples import make_runs

_OLD_SAMPLES_MAX: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A profile with the fit it comes from, and how many samples were there before."""

    profile: Profile
    fit: Fit
    n_old: int


def learn(
    samples: Sequence[Mapping[str, Any]], hardware: Hardware, *, known: Profile | None = None
) -> Learned:
    """Fit `samples` together with those of other models in `known`."""
    old = [] if known is None else _samples_of_other_models(known, samples)
    everything = [*old, *samples]
    found = fit(make_runs(everything), card_models=hardware.card_models)
    first = samples[0]
    return Learned(
        profile=Profile(
            hardware=hardware,
            build_number=_number(first.get("build_number")),
            build_commit=str(first.get("build_commit", "")),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            coefficients=found.coefficients,
            samples=tuple(everything),
        ),
        fit=found,
        n_old=len(old),
    )


def hardware_of(
    devices: Sequence[Device], *, n_threads: int, memory_total_bytes: int | None
) -> Hardware:
    """The machine in a profile's words."""
    return Hardware(
        cards=tuple(
            Card(name=d.name, description=d.description, memory_total_bytes=d.memory_total_bytes)
            for d in devices
        ),
        cpu=cpu_name(),
        n_threads=n_threads,
        memory_total_bytes=memory_total_bytes,
    )


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself."""
    try:
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def default_path(hardware: Hardware, build_number: int | None) -> Path:
    """One file for each machine and build."""
    names = [_slug(card.description or card.name) for card in hardware.cards]
    counted = [f"{names.count(name)}x-{name}" for name in dict.fromkeys(names)]
    memory = hardware.memory_total_bytes
    host = [_slug(hardware.cpu), *([f"{round(memory / GIB)}gib"] if memory else [])]
    build = [f"b{build_number}"] if build_number else []
    return profiles_dir() / ("_".join([*counted, *host, *build])[:200] + ".json")


def known_profile(path: Path, hardware: Hardware) -> Profile | None:
    """What the file says already, if it is of this very machine."""
    if not path.exists():
        return None
    try:
        found = read_profile(path)
    except UsageError:
        return None
    return found if found.hardware == hardware else None


def _samples_of_other_models(
    known: Profile, samples: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    digests = {sample["model"]["digest"] for sample in samples}
    builds = {sample.get("build_number") for sample in samples}
    return [
        sample
        for sample in known.samples
        if _is_sample(sample)
        and sample["model"].get("digest") not in digests
        and sample.get("build_number") in builds
    ][-_OLD_SAMPLES_MAX:]


def _is_sample(sample: Mapping[str, Any]) -> bool:
    needed = {"label", "n_prompt", "n_gen", "samples_ns", "work", "model"}
    return needed <= sample.keys() and isinstance(sample["model"], dict)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _slug(text: str) -> str:
    words = "".join(c if c.isascii() and c.isalnum() else " " for c in text.lower()).split()
    return "-".join(words)[:60]
