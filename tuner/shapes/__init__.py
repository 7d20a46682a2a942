"""A catalogue of real models: their figures, tensors, keys and quantisation recipes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tuner.shapes.models import SHAPES_ALL
from tuner.shapes.shape import MLA, DeltaNet, Indexer, Shape, SlidingWindow

SHAPES: Final[Mapping[str, Shape]] = MappingProxyType({s.name: s for s in SHAPES_ALL})

__all__ = ["MLA", "SHAPES", "DeltaNet", "Indexer", "Shape", "SlidingWindow"]
