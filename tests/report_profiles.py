"""Profiles for the tests of reports: from the planted machine of tests/bench_fakes.py."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench_fakes import FakeRunner, cards, subject
from tuner.bench import run_sweep
from tuner.learn import hardware_of, learn
from tuner.profile import Profile
from tuner.store import SampleLog

CREATED = "2026-12-01T10:00:00Z"


@functools.cache
def swept_profile(noise: float = 0.0, time_s: float = 400.0) -> Profile:
    """What `offload bench` makes of the planted machine, its neighbours quiet."""
    runner = FakeRunner(noise=noise)
    with tempfile.TemporaryDirectory() as folder, SampleLog(Path(folder) / "log") as log:
        sweep = run_sweep(
            subject(), cards(), runner=runner, log=log, time_s=time_s, n_threads=1,
            clock=runner.clock,
        )  # fmt: skip
    hardware = hardware_of(
        tuple(replace(card, description="NVIDIA GeForce RTX 3090") for card in cards()),
        n_threads=8,
        memory_total_bytes=64 << 30,
    )
    quiet = [sample | {"load": 0.0, "cpu_mhz": 3000.0, "throttled": []} for sample in sweep.samples]
    return replace(learn(quiet, hardware).profile, created=CREATED)


def with_samples(profile: Profile, samples: list[dict[str, Any]]) -> Profile:
    """The same machine with other samples."""
    return replace(profile, samples=tuple(samples))


def changed_samples(profile: Profile, **changes: Any) -> list[dict[str, Any]]:
    """Every sample with these keys set anew; a callable is given the sample."""
    return [
        dict(s) | {k: v(s) if callable(v) else v for k, v in changes.items()}
        for s in profile.samples
    ]
