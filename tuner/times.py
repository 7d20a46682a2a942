"""From a model and a machine to a profile on the disk: the whole of `offload bench`. [edge]"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from offload.device import Device
from offload.engine.targets import n_cores
from offload.errors import LlamaCppError, OffloadError, UsageError
from offload.host import probe_host
from tuner.bench import Progress, Sweep, Tell, run_sweep, sweep_key, usable
from tuner.learn import Learned, default_path, hardware_of, known_profile, learn
from tuner.profile import check_target, profiles_dir, write_profile
from tuner.runners import Runner
from tuner.store import SampleLog
from tuner.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out; `error` is why there is no profile at `path`, if there is none."""

    learned: Learned
    sweep: Sweep
    path: Path | None
    error: UsageError | None = None


def time_machine(
    subject: Subject,
    devices: Sequence[Device],
    *,
    runner: Runner,
    time_s: float,
    n_threads: int | None = None,
    virtual: bool = False,
    profile: Path | None = None,
    tell: Tell = lambda text: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Time the machine, fit, and write the profile.

    Samples are kept beside the profiles until it is written. Raises LlamaCppError where no
    run could be made, UsageError where a profile cannot be, and what `run_sweep` raises.
    """
    if profile is not None:
        check_target(profile)
    threads = n_threads or (1 if virtual else n_cores())
    key = sweep_key(subject, devices, runner, threads)
    folder = profiles_dir().parent / "sweeps" if profile is None else profile.parent
    with SampleLog(folder / f"sweep-{key}.jsonl") as log:
        sweep = run_sweep(
            subject,
            devices,
            runner=runner,
            log=log,
            time_s=time_s,
            n_threads=threads,
            virtual=virtual,
            tell=tell,
            on_progress=on_progress,
            clock=clock,
        )
        if not usable(sweep):
            raise _nothing(sweep)
        hardware = hardware_of(
            devices, n_threads=threads, memory_total_bytes=probe_host().memory_total_bytes
        )
        build = sweep.samples[0].get("build_number")
        path = profile or default_path(hardware, build)
        learned = learn(sweep.samples, hardware, known=known_profile(path, hardware))
        try:
            write_profile(learned.profile, path)
        except UsageError as error:
            return Outcome(learned=learned, sweep=sweep, path=None, error=error)
        log.remove()
        return Outcome(learned=learned, sweep=sweep, path=path)


def _nothing(sweep: Sweep) -> OffloadError:
    if sweep.failures:
        last = sweep.failures[-1]
        return LlamaCppError(
            f"no run with everything on the cards came to an end: {last['error']}",
            exit_code=last["exit_code"],
        )
    return UsageError("there was no time for a single run; give a longer --time")
