"""The figures of real models, as published; each names its source.

Sizes are the tensor bytes that llama.cpp's own tools print for public files.
Nothing here is measured by us.
"""

from __future__ import annotations

from typing import Final

from tuner.shapes.models import deepseek, dense, others, qwen, small

SHAPES_ALL: Final = (*deepseek.MODELS, *qwen.MODELS, *others.MODELS, *small.MODELS, *dense.MODELS)
