"""What llama.cpp said last leads to advice that fits, and to none where nothing fits."""

from __future__ import annotations

import signal

import pytest

from offload.engine.remedy import remedy


@pytest.mark.parametrize(
    ("exit_code", "line", "advice"),
    [
        (
            3,
            "failed to allocate RPC0[127.0.0.1:5] buffer of size 83215360",
            "RPC0[127.0.0.1:5] has",
        ),
        (
            3,
            "allocating 90.5 MiB on device 1: cudaMalloc failed: out of memory",
            "device 1 has too",
        ),
        (-6, "ggml-rpc.cpp:566: Remote RPC server crashed or returned", "RPC server was lost"),
        (-6, "Failed to connect to 127.0.0.1:5", "start the RPC server"),
        (3, "tensor 'a' data is not within the file bounds, model is corrupted", "copy it again"),
        (3, "llama-cpp-python has no CUDA0 (it sees the CPU only)", "--virtual"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", "host is short"),
        (-signal.SIGKILL, "", "out of memory"),
        (-signal.SIGILL, "", "another processor"),
        (1, "srv start: couldn't bind HTTP server socket, port: 8080", "took the port"),
        (1, "something nobody foresaw", ""),
    ],
)
def test_advice(exit_code: int, line: str, advice: str) -> None:
    """Each way to end has its own remedy."""
    assert (advice in remedy(exit_code, [line])) if advice else not remedy(exit_code, [line])


def test_the_program_that_ended_is_named() -> None:
    """A user of llama-server has no use for a newer llama-cpp-python."""
    for exit_code, line in ((1, "unknown model architecture: 'x'"), (-signal.SIGILL, "")):
        assert "llama-cpp-python" in remedy(exit_code, [line])
        assert "llama-server" in remedy(exit_code, [line], "llama-server")
