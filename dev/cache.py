"""How do several clones share what takes minutes to build, without ever seeing half of it?"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dev.environment import say
from dev.progress import clock

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offload"


def cached(name: str, key: str, build: Callable[[Path, Path], None]) -> Path:
    """The folder that `build(work, log)` leaves as `work`/product, built where it is not there."""
    place = CACHE / f"{name}-{key}"
    if place.is_dir():
        return place
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / f".{place.name}.lock", f"{name}: another process builds it; waiting"):
        if place.is_dir():
            return place
        for left_over in CACHE.glob(f".{place.name}-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        start_s, log = time.monotonic(), CACHE / f"{place.name}.log"
        log.unlink(missing_ok=True)
        # what cannot be deleted under a dying compiler is deleted by the next build
        with tempfile.TemporaryDirectory(
            prefix=f".{place.name}-", dir=CACHE, ignore_cleanup_errors=True
        ) as work:
            build(Path(work), log)
            (Path(work) / "product").rename(place)
        say(f"{name}: built in {clock(time.monotonic() - start_s)}, kept in {place}")
    return place


@contextlib.contextmanager
def locked(path: Path, if_taken: str) -> Iterator[None]:
    """Hold a lock that the system gives back however this process ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(if_taken)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
