"""What is one turn of a user's conversation, and how long does it take?

Decode and prefill pull a placement in different directions; a turn, so many prompt tokens
read and so many written at some depth of context, weighs them against each other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from offload.errors import UsageError

_KEYS: Final = {"prompt": "n_prompt", "generate": "n_generate", "depth": "n_depth"}
_TOKENS_MAX: Final = 1 << 30


class Turn(NamedTuple):
    """Tokens read, tokens written, and tokens of context that are there before both.

    A depth of None stands for half the context.
    """

    n_prompt: int = 2048
    n_generate: int = 512
    n_depth: int | None = None

    def depth_in(self, n_ctx: int) -> int:
        """Tokens of context before the turn, such that the turn still fits."""
        wanted = n_ctx // 2 if self.n_depth is None else self.n_depth
        return max(0, min(wanted, n_ctx - self.n_prompt - self.n_generate))

    def seconds(self, *, prompt_s: float, token_s: float) -> float:
        """Seconds of the turn: its whole prompt, and `token_s` for each token written."""
        return prompt_s + self.n_generate * token_s


def parse_turn(text: str) -> Turn:
    """`prompt=2048,generate=512,depth=0`, in any order; what is left out keeps its default.

    Raises UsageError that says which part is wrong.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        name = _KEYS.get(key.strip())
        if name is None or not equals:
            raise UsageError(f"--turn {part!r}: expected one of {', '.join(_KEYS)} with =TOKENS")
        if name in found:
            raise UsageError(f"--turn names {key.strip()} twice")
        digits = value.strip()
        if not (digits.isascii() and digits.isdigit()) or int(digits) > _TOKENS_MAX:
            raise UsageError(f"--turn {part!r}: expected a whole number of tokens")
        found[name] = int(digits)
    return Turn(**found)
