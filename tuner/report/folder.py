"""How does a report come into a folder without harm to what is there already? [edge]

Every file is ours by a mark in it: a comment in Markdown, a text chunk in PNG. What bears the
name of one of our files and not the mark is the user's, and then nothing is written at all.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from offload.errors import UsageError
from tuner.history import draw_history, history_markdown, read_history
from tuner.history.drawing import SOFTWARE
from tuner.report.report import Report
from tuner.report.text import MARK, NO_PICTURES, render_markdown

REPORT_FILE: Final = "report.md"
HISTORY_FILE: Final = "history.md"
_MARKS: Final = (MARK.encode(), b"Software\0" + SOFTWARE.encode())
_HEAD_BYTES: Final = 4096


def write_report(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write `report.md` and its pictures; the files written, the text first.

    Without matplotlib there are no pictures, and the text says so. Raises UsageError where the
    folder cannot be written to or a file of another origin is in the way.
    """
    from tuner.report.pictures import draw_report  # only who draws waits for it

    pictures = draw_report(report)
    text = render_markdown(report, tuple(pictures or ()), has_pictures=pictures is not None)
    return _write(folder, {REPORT_FILE: text.encode(), **(pictures or {})})


def write_history(history: Path, folder: Path) -> tuple[Path, ...]:
    """Write `history.md` and a picture for each name and machine in the file.

    Raises UsageError where the history cannot be read, and as `write_report` does.
    """
    text = history_markdown(history)
    pictures, note = _history_pictures(history)
    links = "\n\n".join(f"![Results by build]({name})" for name in pictures)
    parts = (MARK, "# Results by build", note, text.strip(), links)
    whole = "\n\n".join(part for part in parts if part) + "\n"
    return _write(folder, {HISTORY_FILE: whole.encode(), **pictures})


def _history_pictures(history: Path) -> tuple[dict[str, bytes], str]:
    """Pictures by the name of their file, and what is said where there are none."""
    if not read_history(history):
        return {}, ""
    if find_spec("matplotlib") is None:
        return {}, NO_PICTURES
    with tempfile.TemporaryDirectory(prefix="offload-report-") as scratch:
        drawn = draw_history(history, scratch)
        return {f"history-{path.name}": path.read_bytes() for path in drawn}, ""


def _write(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """All of them or, where it can be known beforehand, none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            _check_ours(folder / name)
        scraps: dict[Path, str] = {}
        try:
            for name, content in files.items():
                scraps[folder / name] = _write_scrap(folder, name, content)
            for path, scrap in scraps.items():
                os.replace(scrap, path)
        finally:
            for scrap in scraps.values():
                with contextlib.suppress(OSError):
                    os.unlink(scrap)
    except FileExistsError:
        raise UsageError(f"{folder}: a file, not a folder; give another --out") from None
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}; give another --out") from None
    return tuple(folder / name for name in files)


def _check_ours(path: Path) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if path.is_file():
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
        if any(mark in head for mark in _MARKS):
            return
    raise UsageError(
        f"{path}: not made by offload report, and it is kept; move it away or give another --out"
    )


def _write_scrap(folder: Path, name: str, content: bytes) -> str:
    """A finished file under another name."""
    descriptor, scrap = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(scrap, 0o666 & ~_umask())
    except BaseException:
        os.unlink(scrap)
        raise
    return scrap


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
