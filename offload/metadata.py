"""How are hyper-parameters read from a file's metadata, and when is a value refused?

Mirrors `get_key`, `get_arr` and `get_key_or_arr` of src/llama-model-loader.cpp
(b11434): wrong types and lengths are errors that name the key. Sizes beyond
what llama.cpp's 32-bit fields or any real model can hold are refused too, so
that nothing downstream multiplies nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offload.errors import GGUFError
from offload.gguf import SkippedArray, Value

MAX_LAYERS: Final = 512
"""`LLAMA_MAX_LAYERS` of src/llama-hparams.h."""

_UINT_MAX: Final = (1 << 31) - 1
_REPAIR: Final = "the file is damaged or was made by a faulty converter; get another"


class Metadata:
    """The keys of one architecture; `path` names the file in errors."""

    __slots__ = ("_arch", "_path", "_values")

    def __init__(self, values: Mapping[str, Value], arch: str, path: str) -> None:
        self._values = values
        self._arch = arch
        self._path = path

    def error(self, name: str, message: str) -> GGUFError:
        """An error about `<arch>.<name>`."""
        return GGUFError(f"{message}; {_REPAIR}", path=self._path, key=f"{self._arch}.{name}")

    def get(self, name: str) -> Value | None:
        """The raw value of `<arch>.<name>`."""
        return self._values.get(f"{self._arch}.{name}")

    def uint(self, name: str, default: int | None = None, *, at_most: int = _UINT_MAX) -> int:
        """A scalar of 0 or more; without a default the key is required."""
        value = self.get(name)
        if value is None:
            if default is None:
                raise self.error(name, "the key is missing")
            return default
        return self._checked(name, value, at_most)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"{_shown(value)} is not true or false")
        return value

    def number(self, name: str, default: float) -> float:
        """A floating-point scalar."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, f"{_shown(value)} is not a number")
        return float(value)

    def uints(
        self, name: str, n: int, default: tuple[int, ...] | None = None, *, at_most: int = _UINT_MAX
    ) -> tuple[int, ...]:
        """One value per layer: an array of exactly `n`, or a scalar for all."""
        value = self.get(name)
        if value is None:
            if default is None:
                raise self.error(name, "the key is missing")
            return default
        if isinstance(value, tuple):
            if len(value) != n:
                raise self.error(name, f"{len(value)} values where {n} are needed")
            return tuple(self._checked(name, item, at_most, flags=True) for item in value)
        return (self._checked(name, value, at_most),) * n

    def array(self, name: str, n: int) -> tuple[int, ...] | None:
        """An array of at most MAX_LAYERS, cut or zero-filled to `n`; None where there is none."""
        value = self.get(name)
        if isinstance(value, SkippedArray) or (
            isinstance(value, tuple) and len(value) > MAX_LAYERS
        ):
            raise self.error(name, "not an array of one number for each layer")
        if not isinstance(value, tuple):
            return None
        values = tuple(self._checked(name, item, _UINT_MAX, flags=True) for item in value)
        return (*values, *(0,) * n)[:n]

    def length(self, name: str) -> int | None:
        """Number of elements of an array, None where there is none."""
        value = self.get(name)
        if isinstance(value, tuple):
            return len(value)
        return value.length if isinstance(value, SkippedArray) else None

    def _checked(self, name: str, value: Value, at_most: int, *, flags: bool = False) -> int:
        if isinstance(value, bool) and flags:
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"{_shown(value)} is not a whole number")
        if not 0 <= value <= at_most:
            raise self.error(name, f"{value} is not between 0 and {at_most}")
        return value


def _shown(value: Value) -> str:
    if isinstance(value, SkippedArray):
        return f"an array of {value.length}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
