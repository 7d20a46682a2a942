"""`offload bench`: what does each kind of work cost on this machine?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.app import command, notify, print_answer, print_json
from offload.cli.flags import MachineFlags
from offload.errors import OffloadError, UsageError

if TYPE_CHECKING:
    from offload.device import Device
    from tuner.bench import Progress
    from tuner.subject import Subject

_VIRTUAL_CARDS = 2
_DURATION_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class BenchOutput(StrEnum):
    """What stdout carries."""

    TABLE = "table"
    JSON = "json"
    MD = "md"


@command()
def bench(
    flags: MachineFlags,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A small GGUF to time [built-in].")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option("--like", metavar="BIG", help="Time a few layers of this model's shape."),
    ] = None,
    time: Annotated[
        str, typer.Option("--time", metavar="TIME", help="About how long: 90s, 3m, 1h.")
    ] = "3m",
    n_layer: Annotated[
        int | None,
        typer.Option(
            "--layers", metavar="N", help="Of the cut [what time and memory allow].", min=1
        ),
    ] = None,
    virtual: Annotated[
        int | None,
        typer.Option(
            "--virtual", metavar="N", help="Play N cards on this machine's CPU [2 without cards]."
        ),
    ] = None,
    n_threads: Annotated[
        int | None, typer.Option("-t", "--threads", help="Of the host's part [all cores].")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="FILE", help="Where to write [by machine].")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the model that was made, in this folder.")
    ] = False,
    output: Annotated[
        BenchOutput, typer.Option("-o", "--output", help="What to print.")
    ] = BenchOutput.TABLE,
) -> int:
    """Time placements on this machine; what a plan needs to predict speed goes into a profile."""
    need_numpy()
    from tuner.bench import choose_runner
    from tuner.bench_text import bench_to_json, render_bench
    from tuner.times import time_machine

    if model is not None and like is not None:
        raise UsageError("give a model to time, or --like and a model to cut, not both")
    if keep and model is not None:
        raise UsageError(f"{model} is yours and stays anyway; --keep is for what --like makes")
    if n_layer is not None and model is not None:
        raise UsageError(f"{model} is timed as it is; --layers is for what --like cuts")
    time_s = parse_duration_s(time)
    start_s = monotonic()
    devices, is_virtual, host_bytes = _machine(flags, virtual)
    with (
        _telling_of_interruption(),
        _subject(model, like, keep, n_layer, devices, host_bytes, time_s, is_virtual) as subject,
    ):
        result = time_machine(
            subject,
            devices,
            runner=choose_runner(flags.llama_server),
            time_s=time_s - (monotonic() - start_s),
            n_threads=n_threads,
            virtual=is_virtual,
            profile=None if profile is None else Path(profile),
            tell=notify,
            on_progress=show_progress,
        )
    if output is BenchOutput.JSON:
        print_json(bench_to_json(result.learned, result.sweep, result.path))
    else:
        is_md = output is BenchOutput.MD
        print_answer(render_bench(result.learned, result.sweep, result.path, markdown=is_md))
    if result.error is not None:
        raise result.error
    return 0


def parse_duration_s(text: str) -> float:
    """`90s`, `3m`, `1.5h` as seconds; a bare number is seconds."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :]
    try:
        seconds = float(number) * _DURATION_UNITS[unit]
    except (ValueError, KeyError):
        raise UsageError(f"--time {text!r}: write it like 90s, 3m or 1h") from None
    if not 1 <= seconds <= 7 * 24 * 3600:
        raise UsageError(f"--time {text}: from a second to a week")
    return seconds


@contextmanager
def _telling_of_interruption() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        notify("interrupted; what was timed is kept, and the same command goes on from there")
        raise typer.Exit(130) from None


def need_numpy() -> None:
    """Raise OffloadError where there is no numpy; timing and fitting cannot do without."""
    from importlib.util import find_spec

    if find_spec("numpy") is None:
        raise OffloadError("timing needs numpy: pip install 'offload[tuner]', or numpy itself")


def _machine(
    flags: MachineFlags, virtual: int | None
) -> tuple[tuple[Device, ...], bool, int | None]:
    """The cards to time, whether they are virtual, and the host's free memory."""
    from offload.machine import Machine
    from tuner.bench import virtual_devices

    found = Machine() if virtual else flags.machine()
    for notice in found.warnings:
        notify(notice.text)
    host_bytes = flags.host_free_bytes(found)
    n_cards = virtual
    if virtual is None and not found.devices and flags.gpus is None:
        n_cards = _VIRTUAL_CARDS
        notify(f"no cards here: timing {n_cards} virtual ones, a thread of the processor each")
    if n_cards:
        return virtual_devices(n_cards, host_bytes or 1 << 40), True, host_bytes
    return found.devices, False, host_bytes


@contextmanager
def _subject(
    model: str | None,
    like: str | None,
    keep: bool,
    n_layer: int | None,
    devices: tuple[Device, ...],
    host_bytes: int | None,
    time_s: float,
    is_virtual: bool,
) -> Iterator[Subject]:
    from offload.units import format_gib
    from tuner.subject import cut_model, kept_path, own_model, room_bytes

    budget_bytes = room_bytes(devices, host_bytes, virtual=is_virtual)
    if model is not None:
        with own_model(model, budget_bytes) as subject:
            yield subject
        return
    kept = kept_path(like) if keep else None
    with cut_model(
        like, budget_bytes, time_s=time_s, virtual=is_virtual, keep=kept, n_layer=n_layer
    ) as subject:
        source = like or "a built-in shape"
        notify(
            f"timing {subject.model.n_layer} of {subject.n_layer_source} layers of {source},"
            f" {format_gib(subject.model.size_bytes)}" + (f", kept as {kept}" if kept else "")
        )
        if subject.types_missing:
            notify(f"tensor types in no layer of it: {', '.join(subject.types_missing)}")
        yield subject


def show_progress(progress: Progress) -> None:
    """One line that is written over on a terminal, a line now and then elsewhere."""
    if sys.stderr is None:
        return
    failed = f", {progress.n_failed} failed" if progress.n_failed else ""
    text = (
        f"offload: {progress.n_done} samples{failed}, {progress.left_s:.0f} s left"
        f" (last: {progress.label})"
    )
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}\x1b[K")
        if not progress.left_s:
            sys.stderr.write("\n")
    else:
        sys.stderr.write(text + "\n")
    sys.stderr.flush()
