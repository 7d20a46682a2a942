"""What is timed: one build with one way to load, and tokens of a repetition."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from offload.emit import Launch
from offload.emit.build import Build
from offload.model import Model, make_model
from offload.source import read_header

LOAD_TIMEOUT_S: Final = 120.0
SLOWEST_LOAD_BYTES_PER_S: Final = 20e6
_SLOWEST_TOKEN_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens of one repetition: the prompt's, and the answer's behind it."""

    n_prompt: int
    n_gen: int

    @property
    def patience_s(self) -> float:
        """How long nobody need answer."""
        return LOAD_TIMEOUT_S + (self.n_prompt + self.n_gen) * _SLOWEST_TOKEN_S


class Loaded(Protocol):
    """A model that is in memory."""

    @property
    def pid(self) -> int | None:
        """The process that computes; None where there is a new one each time."""

    def time(self, sizes: Sizes) -> dict[str, float]:
        """Seconds per token of one repetition, `decode` and `prefill`."""


class Arm(Protocol):
    """One build with one way to load, to be timed."""

    @property
    def name(self) -> str:
        """What runs, without folders: `llama-server b11434`."""

    @property
    def build(self) -> str:
        """`b11434`; "unknown" where it does not say."""

    @property
    def model_bytes(self) -> int:
        """What it takes to have it in memory."""

    @property
    def n_threads(self) -> int | None:
        """Of the host's part; None: the program's own default."""

    @property
    def uses_cards(self) -> bool:
        """Whether some of it lies on cards, which are then assumed to be full with one."""

    def open(self) -> AbstractContextManager[Loaded]:
        """Load it for the length of the `with` block; LlamaCppError with its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchArm:
    """What arms have in common: how the model is loaded, with how many threads."""

    launch: Launch
    n_threads: int | None = None

    @property
    def model_bytes(self) -> int:
        """Of the weights."""
        return self.model.size_bytes

    @property
    def model(self) -> Model:
        """By its header."""
        return _model(self.launch.model_path)

    @property
    def uses_cards(self) -> bool:
        """By `-ngl`."""
        return self.launch.n_gpu_layers != 0

    @property
    def load_timeout_s(self) -> float:
        """How long loading may take."""
        return LOAD_TIMEOUT_S + self.model_bytes / SLOWEST_LOAD_BYTES_PER_S

    def prompt(self, sizes: Sizes) -> list[int]:
        """Tokens that are unlike each other, the same each time."""
        n_vocab = self.model.n_vocab
        return [(i * 7919 + 13) % n_vocab for i in range(sizes.n_prompt)]


@functools.lru_cache(maxsize=8)
def _model(path: str) -> Model:
    return make_model(read_header(path))


def build_name(build: Build) -> str:
    """`b11434`."""
    return "unknown" if build.number is None else f"b{build.number}"
