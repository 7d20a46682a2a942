"""How are tables and quantities written, in Markdown and for a terminal?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, markdown: bool = True) -> str:
    """Columns of equal width, figures to the right and words to the left."""
    lines = [tuple(map(cell if markdown else str, line)) for line in (head, *rows)]
    columns = tuple(zip(*lines, strict=True))
    to_right = [i > 0 and _are_figures(column[1:]) for i, column in enumerate(columns)]
    widths = [max(3, *map(len, column)) for column in columns]
    padded = [
        [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, to_right, strict=True)
        ]
        for line in lines
    ]
    if not markdown:
        return "\n".join("  ".join(row).rstrip() for row in padded)
    rule = [
        "-" * (w - 1) + ":" if right else "-" * w for w, right in zip(widths, to_right, strict=True)
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (padded[0], rule, *padded[1:]))


def _are_figures(texts: Sequence[str]) -> bool:
    """Whether a column is one of numbers, some of which may be missing."""
    known = [text for text in texts if text]
    return bool(known) and sum(text.lstrip("+-")[:1].isdigit() for text in known) * 2 > len(known)


def cell(text: str) -> str:
    """Without what would end a cell or a line, or begin markup of its own."""
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "'")):
        text = text.replace(sign, name)
    return " ".join(text.split())


def significant(value: float, digits: int = 3) -> str:
    """`value` with so many significant digits, whole numbers as they are, never an exponent."""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text or abs(value) >= 10**digits else text


def duration(seconds: float) -> str:
    """Seconds, milliseconds or microseconds."""
    if seconds >= 1:
        return f"{significant(seconds)} s"
    if seconds >= 1e-3:
        return f"{significant(seconds * 1e3)} ms"
    return f"{significant(seconds * 1e6)} us"
