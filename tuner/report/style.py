"""Which colours and axes do all pictures of a report share?

Colours are those of Okabe and Ito, which people tell apart who see fewer of them.
"""

from __future__ import annotations

from typing import Any, Final

from tuner.report.tables import significant

BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
GREEN: Final = "#009E73"
ORANGE: Final = "#E69F00"
PURPLE: Final = "#CC79A7"
GREY: Final = "#666666"
Z: Final = 1.645
"""Standard deviations either side that hold 90 %."""

STYLE: Final[dict[Any, Any]] = {"text.parse_math": False, "font.size": 9}


def readable_log(axis: Any) -> None:
    """1, 2, 5, 10 … in figures that people write."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: significant(value)))
    axis.set_minor_formatter(NullFormatter())
