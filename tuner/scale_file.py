"""How does a scale model get onto the disk, and off it again?

It is written whole or not at all, never over a file that is there, and a temporary one
is gone when its `with` block ends. What a killed run left behind is removed by the next:
a lock that dies with its process tells the two apart. [edge]
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from offload.errors import InfeasibleError, OffloadError, UsageError
from offload.units import MIB, format_gib
from tuner.scale_model import ScaleModel
from tuner.synth.blocks import RandomData
from tuner.synth.container import write_gguf

DISK_RESERVE_BYTES: Final = 512 * MIB
"""What is left free on the disk: others need some too."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PREFIX: Final = "scale-"
_NUMBERS: Final = itertools.count()


def scratch_folder() -> Path:
    """Where temporary models go: a disk, unlike /tmp, which may be memory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "offload" / "scale"


def disk_free_bytes(folder: Path) -> int:
    """What a model may take there; the folder need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return max(0, shutil.disk_usage(folder).free - DISK_RESERVE_BYTES)


def write_scale_model(scale: ScaleModel, path: str | os.PathLike[str], *, seed: int = 0) -> Path:
    """Write the model to a new file at `path`.

    Raises UsageError where something is there already, InfeasibleError where the disk is
    too small or fills up; nothing half-written stays.
    """
    target = Path(path)
    free_bytes = disk_free_bytes(target.parent)
    if scale.n_bytes > free_bytes:
        raise _full(scale, target, scale.n_bytes - free_bytes)
    try:
        # takes the name, so that nobody's file is written over
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise UsageError(
            f"{target}: there is such a file already, and it is kept; give another name"
        ) from None
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from None
    data = RandomData(seed, embedding_std=1.0, n_expert=scale.model.n_expert)
    try:
        return write_gguf(target, scale.metadata, scale.tensors, fill=data)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, OSError):
            if error.errno in _FULL:
                raise _full(scale, target, 0) from None
            raise OffloadError(f"{target}: cannot be written: {error.strerror}") from None
        raise


@contextlib.contextmanager
def temporary_scale_model(
    scale: ScaleModel, *, folder: Path | None = None, seed: int = 0
) -> Iterator[Path]:
    """The model's file for the length of the `with` block.

    Raises what `write_scale_model` raises, OffloadError where the folder cannot be made.
    """
    where = scratch_folder() if folder is None else folder
    try:
        where.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_orphans(where)
        lock_path = where / f"{_PREFIX}{os.getpid()}-{next(_NUMBERS)}.lock"
        lock = lock_path.open("w")
    except OSError as error:
        raise OffloadError(
            f"{where}: no place for a temporary model: {error.strerror};"
            " set XDG_CACHE_HOME to a folder on a disk with room"
        ) from None
    path = lock_path.with_suffix(".gguf")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield write_scale_model(scale, path, seed=seed)
        finally:
            path.unlink(missing_ok=True)
            lock_path.unlink(missing_ok=True)


def _remove_orphans(folder: Path) -> None:
    """Remove models whose process is gone; one that lives holds its lock."""
    for lock_path in folder.glob(f"{_PREFIX}*.lock"):
        with contextlib.suppress(OSError), lock_path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in (lock_path.with_suffix(".gguf"), *folder.glob(_draft_of(lock_path))):
                left.unlink(missing_ok=True)
            lock_path.unlink(missing_ok=True)


def _draft_of(lock_path: Path) -> str:
    """`write_gguf` writes under a hidden name first."""
    return f".{lock_path.stem}.gguf.*.tmp"


def _full(scale: ScaleModel, target: Path, short_bytes: int) -> InfeasibleError:
    by_how_much = f", {format_gib(short_bytes)} more than there is room for" if short_bytes else ""
    return InfeasibleError(
        f"{target.parent}: the disk is too full for a scale model of"
        f" {format_gib(scale.n_bytes)}{by_how_much}; free some space, or set XDG_CACHE_HOME"
        " to a folder on another disk",
        short_bytes={"disk": short_bytes},
    )
