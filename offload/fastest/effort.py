"""How much searching is still allowed? Counted in steps, so that no answer depends on a clock."""

from __future__ import annotations


class Effort:
    """Steps left, each of about a microsecond on a desktop of the 2020s."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Count what was done."""
        self.left -= steps

    @property
    def is_left(self) -> bool:
        """Whether more may be done."""
        return self.left > 0
