"""What comes out of one prompt: pieces of text while it is generated, and numbers at its end.

`for text in stream` yields the text of every token as soon as it is decided ("" where a
token ends inside a character or a stop word may be beginning).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from offload.engine.conversation import Conversation
from offload.engine.report import LoadReport
from offload.errors import LlamaCppError

_CANCEL_TIMEOUT_S: Final = 2.0
"""How long a cancelled generation may take to answer: a batch is never cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen; the defaults of all but `temperature` are llama.cpp's.

    A temperature of 0 takes the likeliest. `seed` None stands for a new one each time.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The tokens, their text ("" without a vocabulary), why they ended, and the seconds.

    `stop` is "end" (an end token, the last of `tokens`), "length" (n_predict), "stop" (a
    stop word, no part of `text`), "context" (it is full) or "cancelled". `n_reused` tokens
    of the prompt were in the context already. `report` is the memory after loading.
    """

    tokens: tuple[int, ...]
    text: str
    stop: str
    n_prompt: int
    n_reused: int
    seed: int
    load_s: float
    prompt_s: float
    decode_s: float
    report: LoadReport

    @property
    def prompt_t_s(self) -> float | None:
        """Prompt tokens per second, the first sampled token's time included."""
        n = self.n_prompt - self.n_reused
        return n / self.prompt_s if n > 0 and self.prompt_s else None

    @property
    def decode_t_s(self) -> float | None:
        """Tokens per second after the first; None where there was none."""
        n = len(self.tokens) - 1
        return n / self.decode_s if n > 0 and self.decode_s else None


class Stream(Iterator[str]):
    """The text of one generation as it comes; `result` is the whole, so far or at the end.

    Ctrl-C while waiting ends the generation, keeps what there is, and goes on as
    KeyboardInterrupt; the session stays usable.
    """

    def __init__(
        self,
        conversation: Conversation,
        request: dict[str, Any],
        *,
        silence_s: float,
        load_s: float,
        report: LoadReport,
    ) -> None:
        self._conversation = conversation
        self._silence_s, self._load_s, self._report = silence_s, load_s, report
        self._seed: int = request["sampling"]["seed"]
        self._pieces: list[str] = []
        self._done: dict[str, Any] | None = None
        self._failed = False
        self.tokens: list[int] = []
        self._clock_s = [time.monotonic()] * 3
        conversation.what = "generating"
        conversation.say({"generate": request})

    def __next__(self) -> str:
        while not self.is_finished:
            try:
                message = self._conversation.hear(self._silence_s)
            except KeyboardInterrupt:
                self.cancel()
                raise
            except BaseException:
                self._failed = True
                raise
            if (text := self._take(message)) is not None:
                return text
        raise StopIteration

    @property
    def is_finished(self) -> bool:
        """Nothing more will come."""
        return self._done is not None or self._failed

    @property
    def result(self) -> Generation:
        """All of it, or what there is until now (as "cancelled", with our own clock's seconds)."""
        start_s, first_s, last_s = self._clock_s
        done = self._done or {
            "stop": "cancelled",
            "n_prompt": 0,
            "n_reused": 0,
            "prompt_s": first_s - start_s,
            "decode_s": last_s - first_s,
        }
        return Generation(
            tokens=tuple(self.tokens),
            text="".join(self._pieces),
            stop=done["stop"],
            n_prompt=done["n_prompt"],
            n_reused=done["n_reused"],
            seed=self._seed,
            load_s=self._load_s,
            prompt_s=done["prompt_s"],
            decode_s=done["decode_s"],
            report=self._report,
        )

    def cancel(self, timeout_s: float = _CANCEL_TIMEOUT_S) -> bool:
        """End the generation; True once the child has said so, False if that takes longer."""
        if self.is_finished:
            return True
        self._conversation.say({"cancel": True})
        deadline_s = time.monotonic() + timeout_s
        while not self.is_finished:
            try:
                message = self._conversation.hear_within(max(deadline_s - time.monotonic(), 0.0))
            except LlamaCppError:
                self._failed = True
                break
            if message is None:
                return False
            self._take(message)
        return True

    def _take(self, message: dict[str, Any]) -> str | None:
        """Note what the child said; the text to show, if this was text."""
        if "token" in message:
            now_s = time.monotonic()
            if not self.tokens:
                self._clock_s[1] = now_s
            self._clock_s[2] = now_s
            self.tokens.append(message["token"])
            self._pieces.append(message["text"])
            return str(message["text"])
        if "done" in message:
            self._done = message["done"]
            self._pieces.append(message["done"]["text"])
            return self._pieces[-1] or None
        self._failed = "error" in message
        return None
