"""Which arm times a build: its llama-server, its llama-bench, or llama-cpp-python?"""

from __future__ import annotations

from pathlib import Path

from offload.emit import Launch
from offload.engine.binaries import find_binary
from offload.errors import UsageError
from offload.source import read_header
from tuner.paired.arm import Arm
from tuner.paired.others import PYTHON, BenchArm, SessionArm
from tuner.paired.server import ServerArm


def choose_arm(build: str | None, launch: Launch, *, n_threads: int | None = None) -> Arm:
    """The arm for a build: a program of it or their folder, or `llama-cpp-python`.

    None is what is on PATH, else llama-cpp-python. Raises UsageError where nothing is there.
    """
    if build != PYTHON:
        where = None if build is None else Path(build)
        server, bench = (find_binary(name, where) for name in ("llama-server", "llama-bench"))
        if server is not None and _has_words(launch):
            return ServerArm(program=server, launch=launch, n_threads=n_threads)
        if bench is not None:
            return BenchArm(program=bench, launch=launch, n_threads=n_threads)
        if build is not None:
            raise UsageError(f"{build}: no llama-server and no llama-bench there")
    return SessionArm(launch=launch, n_threads=n_threads)


def _has_words(launch: Launch) -> bool:
    """A server answers with text, so its model needs a vocabulary."""
    kind = read_header(launch.model_path).metadata.get("tokenizer.ggml.model")
    return kind not in (None, "none", "no_vocab")
