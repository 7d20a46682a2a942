"""`offload report`: what does a profile, or a history, say to people?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offload.cli.app import command, notify, print_answer
from offload.errors import OffloadError, UsageError

if TYPE_CHECKING:
    from tuner.profile import Profile


@command()
def report(
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROFILE]", help="What offload bench wrote [the one of this machine]."
        ),
    ] = None,
    out: Annotated[
        str, typer.Option("--out", metavar="FOLDER", help="Where report.md and pictures go.")
    ] = "offload-report",
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            metavar="FILE",
            help="Draw what offload check --history kept, build by build.",
        ),
    ] = None,
) -> int:
    """Write what was measured of a machine, or build after build, as Markdown and pictures."""
    _prepare_numpy()
    folder = Path(out)
    written: list[Path] = []
    if history is not None:
        from tuner.report import write_history

        written += write_history(Path(history), folder)
    if profile is not None or history is None:
        from tuner.report import make_report, render_glance, write_report

        found = make_report(_read(profile))
        written += write_report(found, folder)
        print_answer(render_glance(found) + "\n")
    texts = [path for path in written if path.suffix == ".md"]
    print_answer("\n".join(f"report: {path}" for path in texts))
    _tell_of_pictures()
    return 0


def _read(path: str | None) -> Profile:
    """The named profile, else the one a plan here would use, else the newest there is."""
    import os

    from tuner.profile import find_profile, profiles_dir, read_profile

    if path is not None:
        return read_profile(Path(path))
    from offload.probe import probe_machine

    folder = profiles_dir(os.environ)
    devices = probe_machine(None, ()).devices
    described = all(device.description for device in devices)
    found = find_profile(devices, folder) if devices and described else None
    if found is None:
        found = find_profile((), folder)  # that of virtual cards, or of another time
        if found is not None:
            notify("no profile knows the cards of this machine; this is the newest there is")
    if found is None:
        raise UsageError(f"{folder}: no profile there; offload bench makes one, or name a file")
    notify(f"profile: {found[0]}")
    return found[1]


def _prepare_numpy() -> None:
    """Matrices here are small: threads would only wait for each other, and sum in any order."""
    import os
    from importlib.util import find_spec

    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if find_spec("numpy") is None:
        raise OffloadError("fitting needs numpy: pip install 'offload[tuner]', or numpy itself")


def _tell_of_pictures() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        notify("no pictures: matplotlib is not installed (pip install 'offload[tuner]')")
