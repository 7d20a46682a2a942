"""llama.cpp's own device list: parsing it, and asking binaries that misbehave."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from offload.device_list import ListedDevice, parse_device_list, read_device_list
from offload.errors import LlamaCppError
from offload.units import MIB

AMD = """ggml_vulkan: 0 = AMD Radeon RX 7900 XTX (RADV NAVI31) (radv) | uma: 0 | fp16: 1
Available devices:
  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 23975 MiB free)
  RPC0: 127.0.0.1:50052 (24105 MiB, 24000 MiB free)
"""


def fake_server(directory: Path, body: str) -> str:
    """An executable shell script in the role of llama-server."""
    path = directory / "llama-server"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_parse() -> None:
    """Names, descriptions with brackets, and both sizes; chatter before the list is skipped."""
    assert parse_device_list(AMD) == (
        ListedDevice(
            name="Vulkan0",
            description="AMD Radeon RX 7900 XTX (RADV NAVI31)",
            memory_total_bytes=24560 * MIB,
            memory_free_bytes=23975 * MIB,
        ),
        ListedDevice(
            name="RPC0",
            description="127.0.0.1:50052",
            memory_total_bytes=24105 * MIB,
            memory_free_bytes=24000 * MIB,
        ),
    )


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("Available devices:\n  (none)\n", 0),
        ("Available devices:\n", 0),
        ("Available devices:\r\n  CUDA0: A card (1 MiB, 1 MiB free)\r\n", 1),
        ("Available devices:\n  HTP0:1: Hexagon (2048 MiB, 2048 MiB free)\n", 1),
        ("Available devices:\n  CUDA0:  (1 MiB, 1 MiB free)\n", 1),
        ("Available devices:\n  CUDA0: A (x MiB, 1 MiB free)\n  chatter\n", 0),
        ("Available devices:\n" + "  CUDA0: A (1 MiB, 1 MiB free)\n" * 1000, 64),
    ],
)
def test_parse_counts(text: str, n: int) -> None:
    """Only well-formed lines after the header are devices, and not endlessly many."""
    devices = parse_device_list(text)
    assert devices is not None
    assert len(devices) == n


@pytest.mark.parametrize("text", ["", "error: unknown argument", "\x00\xff", "available devices:"])
def test_parse_without_a_list(text: str) -> None:
    """An output without the header is no device list."""
    assert parse_device_list(text) is None


def test_parse_cleans_descriptions() -> None:
    """Control characters of a description do not reach the terminal."""
    devices = parse_device_list("Available devices:\n  CUDA0: a\x1b[2Jb\tc (1 MiB, 1 MiB free)\n")
    assert devices is not None
    assert devices[0].description == "a [2Jb c"


def test_read_passes_rpc_before_the_list(tmp_path: Path) -> None:
    """--list-devices exits where it stands, so --rpc comes first; LC_ALL is plain."""
    server = fake_server(
        tmp_path,
        'echo "Available devices:"; echo "  CUDA0: $* $LC_ALL (2 MiB, 1 MiB free)"; echo x >&2',
    )
    listed = read_device_list(server, ["127.0.0.1:1", "127.0.0.1:2"])
    assert listed[0].description == "--rpc 127.0.0.1:1,127.0.0.1:2 --list-devices C"
    assert read_device_list(server)[0].description == "--list-devices C"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("echo 'error: invalid argument: --list-devices' >&2; exit 1", "exit code 1: error: inv"),
        ("exit 3", "exit code 3"),
        ("kill -ABRT $$", "exit code -6"),
        ("echo hello", "printed no device list"),
        ("head -c 4096 /dev/urandom", "printed no device list"),
        ("exit 0", "printed no device list"),
        ("yes", "without end"),
        ("yes >&2", "without end"),
    ],
)
def test_read_refuses(tmp_path: Path, body: str, complaint: str) -> None:
    """A binary that fails, prints garbage or never stops printing is one clear error."""
    with pytest.raises(LlamaCppError, match=complaint) as caught:
        read_device_list(fake_server(tmp_path, body))
    assert caught.value.argv[1:] == ("--list-devices",)
    assert "\n" not in str(caught.value)


def test_read_names_rpc_servers_that_do_not_answer(tmp_path: Path) -> None:
    """llama.cpp aborts on an unreachable RPC server: the message asks whether it runs."""
    with pytest.raises(LlamaCppError, match=r"127\.0\.0\.1:1 running\?"):
        read_device_list(fake_server(tmp_path, "exit 134"), ["127.0.0.1:1"])


@pytest.mark.parametrize("body", ["sleep 60", "sleep 60 & exit 0", "trap '' TERM; sleep 60"])
def test_read_does_not_hang(tmp_path: Path, body: str) -> None:
    """A binary that hangs, or leaves a child holding its output, costs no more than its time."""
    start = time.monotonic()
    with pytest.raises(LlamaCppError, match=r"did not answer within 0\.5 s|no device list"):
        read_device_list(fake_server(tmp_path, body), timeout_s=0.5)
    assert time.monotonic() - start < 10


def test_read_what_cannot_run(tmp_path: Path) -> None:
    """A missing file, a directory, a file without permission, no program: say which flag."""
    plain = tmp_path / "plain"
    plain.write_text("no program")
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF garbage")
    program.chmod(0o700)
    for path in (tmp_path / "missing", tmp_path, plain, program, Path("a\0b")):
        with pytest.raises(LlamaCppError, match="--llama-server"):
            read_device_list(str(path))
