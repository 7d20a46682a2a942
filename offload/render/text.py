"""Small text pieces that several tables share."""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str) -> str:
    """Text from a file with control characters escaped: a header must not drive the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def ranges(numbers: Sequence[int]) -> str:
    """`(0, 1, 2, 5)` as `0-2,5`."""
    parts: list[str] = []
    start = previous = None
    for n in (*numbers, None):
        if previous is not None and n == previous + 1:
            previous = n
            continue
        if start is not None:
            parts.append(f"{start}" if start == previous else f"{start}-{previous}")
        start = previous = n
    return ",".join(parts)


def render_columns(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Rows as padded lines; `align` has `<` or `>` per column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    return [
        "  ".join(f"{cell:{a}{w}}" for cell, a, w in zip(row, align, widths, strict=True)).rstrip()
        for row in rows
    ]


def seconds_text(seconds: float) -> str:
    """Three digits, or all before the point: `0.84`, `14.2`, `1540`."""
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"
