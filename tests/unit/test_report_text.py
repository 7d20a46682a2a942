"""Is the report whole as text, the same twice, and harmless to what is in its folder?"""

from __future__ import annotations

import os
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offload.errors import UsageError
from tests.report_profiles import changed_samples, swept_profile, with_samples
from tuner.history import HistoryEntry, append_history
from tuner.profile import Profile
from tuner.report import (
    Report,
    make_report,
    render_glance,
    render_markdown,
    write_history,
    write_report,
)
from tuner.report.tables import cell, duration, significant, table

PICTURES = ["host-layers-1.png", "machine-card.png", "measured.png", "residuals.png"]


@pytest.fixture(scope="module")
def report() -> Report:
    """Of the planted machine."""
    return make_report(swept_profile())


@pytest.fixture(scope="module")
def small() -> Report:
    """Of its costs alone, with one picture, which is soon drawn."""
    return make_report(with_samples(swept_profile(), []))


def _pixels(path: Path) -> tuple[int, int, bytes]:
    """Width, height and the unpacked bytes of a PNG, its checksums checked."""
    raw = path.read_bytes()
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    at, data, size = 8, b"", (0, 0)
    while at < len(raw):
        length, kind = struct.unpack(">I4s", raw[at : at + 8])
        body = raw[at + 8 : at + 8 + length]
        (crc,) = struct.unpack(">I", raw[at + 8 + length : at + 12 + length])
        assert crc == zlib.crc32(kind + body)
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    return (*size, zlib.decompress(data))


def test_pictures_are_pictures_with_something_on_them(report: Report, tmp_path: Path) -> None:
    """Real PNG files, large enough, of many colours, small on the disk, and linked in the text."""
    pytest.importorskip("matplotlib")
    files = write_report(report, tmp_path / "deep" / "out")
    assert [file.name for file in files] == ["report.md", *PICTURES]
    text = files[0].read_text()
    for file in files[1:]:
        width, height, pixels = _pixels(file)
        assert width >= 500 and height >= 200
        assert len(set(pixels)) > 50
        assert file.stat().st_size < 150_000
        assert f"]({file.name})" in text
    assert (
        text.index("## At a glance")
        < text.index("host-layers-1.png")
        < text.index("## The machine")
    )


def test_the_same_profile_gives_the_same_bytes(report: Report, tmp_path: Path) -> None:
    """No time of today, no name of this host or user, nothing by chance."""
    first, second = (write_report(report, tmp_path / name) for name in ("a", "b"))
    assert [f.read_bytes() for f in first] == [f.read_bytes() for f in second]
    text = first[0].read_text()
    assert os.uname().nodename not in text and str(tmp_path) not in text
    assert re.findall(r"20\d\d-\d\d-\d\d", text) == ["2026-12-01"]  # the profile's own


def test_without_matplotlib_the_text_is_whole(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tables, one line that pictures are missing, and no link to one."""
    with_pictures = render_markdown(report, PICTURES)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (file,) = write_report(report, tmp_path)
    text = file.read_text()
    assert text.count("Pictures are missing: matplotlib") == 1 and "![" not in text
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        line for line in with_pictures.splitlines() if line.startswith("|")
    ]


def test_every_section_and_every_table_stands(report: Report) -> None:
    """The first section is the table and one sentence; tables have as many cells as their heads."""
    text = render_markdown(report, ())
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "At a glance", "The machine", "By the number of layers on the host",
        "Measured against predicted", "What to doubt", "Every run",
    ]  # fmt: skip
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(blocks) >= 9
    for block in blocks:
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1
        assert re.fullmatch(r"\|( -+:? \|)+", block.splitlines()[1])


def test_names_cannot_break_the_report(tmp_path: Path) -> None:
    """Pipes, markup, dollars and foreign letters in what a profile calls things are only text."""
    profile = swept_profile()
    cards = tuple(
        replace(card, description="<img src=x> | $x^{$ 卡 `rm`\n# head")
        for card in profile.hardware.cards
    )
    wild = with_samples(
        replace(profile, hardware=replace(profile.hardware, cards=cards)),
        changed_samples(profile, model=lambda s: s["model"] | {"arch": "$\\frac{$ | <b>"}),
    )
    text = write_report(make_report(wild), tmp_path)[0].read_text()
    assert "<img" not in text and "<b>" not in text and "\n# head" not in text


def test_a_profile_without_samples_is_reported(small: Report, tmp_path: Path) -> None:
    """With no samples at all there is still a text, and only what can be drawn is drawn."""
    files = write_report(small, tmp_path)
    assert "cannot say what offloading costs" in files[0].read_text()
    assert {file.name for file in files} <= {"report.md", "machine-card.png"}


def test_foreign_files_in_the_folder_stay(small: Report, tmp_path: Path) -> None:
    """Others' files beside ours stay; one in the place of ours stops everything."""
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("machine-card.png", "report.md"):
        (tmp_path / name).write_text("mine too")
        with pytest.raises(UsageError, match=f"{name}: not made by offload report, and it is kept"):
            write_report(small, tmp_path)
        assert sorted(os.listdir(tmp_path)) == sorted(["notes.txt", name])
        assert (tmp_path / name).read_text() == "mine too"
        (tmp_path / name).unlink()
    (tmp_path / "report.md").symlink_to(tmp_path / "notes.txt")
    with pytest.raises(UsageError, match=r"report\.md"):
        write_report(small, tmp_path)
    (tmp_path / "report.md").unlink()
    write_report(small, tmp_path)
    again = write_report(small, tmp_path)  # ours are written over
    assert set(os.listdir(tmp_path)) == {"notes.txt", *(file.name for file in again)}
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be(small: Report, tmp_path: Path) -> None:
    """A file in its place, and a full disk, are one line; nothing half-written is left."""
    (tmp_path / "file").write_text("mine")
    for where in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(UsageError, match="give another --out"):
            write_report(small, where)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_failed_write_leaves_the_last_report(
    small: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk is full the old files stay as they were, with no scrap beside them."""
    files = write_report(small, tmp_path)
    before = {file: file.read_bytes() for file in files}

    for n_before in (0, 1):  # the first file is the one too many, then the second
        calls = iter(range(10))

        def full(descriptor: int, calls: Iterator[int] = calls, n: int = n_before) -> None:
            if next(calls) == n:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UsageError, match="No space left"):
            write_report(small, tmp_path)
        assert {tmp_path / name for name in os.listdir(tmp_path)} == set(files)
        assert {file: file.read_bytes() for file in files} == before


def _history(path: Path, levels: list[float]) -> Path:
    """One result for each build, with decode, prefill and memory."""
    append_history(
        path,
        [
            HistoryEntry(
                name="moe", build=f"b{11000 + i}", created=f"2026-12-01T10:{i:02d}:00Z",
                values={"decode_t_s": level, "prefill_t_s": 10 * level, "memory_bytes": 1 << 30},
            )
            for i, level in enumerate(levels)
        ],
    )  # fmt: skip
    return path


def test_a_history_is_drawn_with_its_change(tmp_path: Path) -> None:
    """The planted drop of a fifth stands in the text at its build, and a picture is linked."""
    pytest.importorskip("matplotlib")
    levels = [50.0 + 0.1 * (i % 3) for i in range(8)] + [40.0 + 0.1 * (i % 3) for i in range(8)]
    history = _history(tmp_path / "h.jsonl", levels)
    files = write_history(history, tmp_path / "out")
    text = files[0].read_text()
    assert [file.name for file in files] == ["history.md", "history-moe.png"]
    assert "- decode (t/s): -20" in text and "from b11008" in text
    assert "](history-moe.png)" in text and "memory (MiB)" in text
    _, _, pixels = _pixels(files[1])
    assert len(set(pixels)) > 50
    assert [f.read_bytes() for f in write_history(history, tmp_path / "out")] == [
        f.read_bytes() for f in write_history(history, tmp_path / "other")
    ]


def test_an_empty_history_and_names_with_dollars(tmp_path: Path) -> None:
    """Nothing yet is an answer; a name that matplotlib would read as a formula is only a name."""
    (tmp_path / "h.jsonl").write_text("")
    (file,) = write_history(tmp_path / "h.jsonl", tmp_path / "out")
    assert "No results yet." in file.read_text()
    append_history(
        tmp_path / "h.jsonl",
        HistoryEntry(name="$\\frac{$", build="b1", created="2026", values={"decode_t_s": 1.0}),
    )
    assert len(write_history(tmp_path / "h.jsonl", tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (0.001234, "0.00123"), (12.34, "12.3"), (999.6, "1,000"), (123456.0, "123,456")],
)
def test_figures_are_written_for_people(value: float, said: str) -> None:
    """Three digits, and never an exponent that would have to be worked out."""
    assert significant(value) == said


def test_durations_and_cells() -> None:
    """In the unit that has one to three digits before the point; cells stay cells."""
    assert [duration(s) for s in (2.0, 0.0425, 0.000447)] == ["2 s", "42.5 ms", "447 us"]
    assert cell("a|b\nc<d>`") == "a\\|b c&lt;d>'"
    assert table(("a", "n"), [("x", "1"), ("yy", "")]) == (
        "| a   |   n |\n| --- | --: |\n| x   |   1 |\n| yy  |     |"
    )


def test_profiles_of_an_unknown_machine(tmp_path: Path) -> None:
    """Nothing is known of cards, processor or build, and that is no reason to fail."""
    profile = swept_profile()
    bare = replace(
        profile,
        hardware=replace(
            profile.hardware, cards=(), cpu="", n_threads=None, memory_total_bytes=None
        ),
        build_number=None,
        build_commit="",
        samples=(),
    )
    assert isinstance(bare, Profile)
    assert "an unknown build" in write_report(make_report(bare), tmp_path)[0].read_text()


def test_the_example_in_the_docs_is_what_is_said(report: Report) -> None:
    """docs/report.md shows the first section of this very profile, word for word."""
    docs = Path(__file__).parents[2] / "docs" / "report.md"
    assert f"\n{render_glance(report)}\n\nreport: " in docs.read_text()
