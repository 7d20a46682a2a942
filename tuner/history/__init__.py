"""What was measured build after build: kept, told where it changed, and drawn."""

from tuner.history.change_points import ChangePoint, change_points
from tuner.history.drawing import draw_history
from tuner.history.log import HistoryEntry, append_history, read_history
from tuner.history.text import history_markdown

__all__ = [
    "ChangePoint",
    "HistoryEntry",
    "append_history",
    "change_points",
    "draw_history",
    "history_markdown",
    "read_history",
]
