"""Writes GGUF files: real models' shapes over a hole, and small random models that run."""

from __future__ import annotations

from tuner.shapes import SHAPES, Shape
from tuner.synth.model import (
    RANDOM_ARCHS,
    find_shape,
    make_like,
    make_small_shape,
    write_random,
    write_random_shape,
    write_shape,
)

__all__ = [
    "RANDOM_ARCHS",
    "SHAPES",
    "Shape",
    "find_shape",
    "make_like",
    "make_small_shape",
    "write_random",
    "write_random_shape",
    "write_shape",
]
