"""Hyper-parameters as llama.cpp resolves them from a file: `HParams`, made by `make_hparams`."""

from offload.hparams.reading import make_hparams
from offload.hparams.values import HParams

__all__ = ["HParams", "make_hparams"]
