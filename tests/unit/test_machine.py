"""devices.toml: reading, writing, refusing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload.device import BACKENDS
from offload.errors import DeviceError
from offload.machine import Host, Machine, parse_machine, render_machine
from offload.units import GIB

EXAMPLE = """
[[card]]
name = "CUDA0"
description = "NVIDIA GeForce RTX 2080 Ti"
memory = "22GiB"
memory_total = "22.5GiB"
bandwidth = "616GB/s"
link = "15.75GB/s"
margin = "512MiB"
display = true

[[card]]
name = "RPC0"
endpoint = "127.0.0.1:50052"
serves = "CUDA"
memory = 12884901888

[host]
memory = "120GiB"
memory_total = "128GiB"
bandwidth = "105GB/s"
cores = 16
"""


def test_parse_every_key() -> None:
    """All documented keys arrive with their units."""
    machine = parse_machine(EXAMPLE)
    cuda, rpc = machine.devices
    assert (cuda.memory_free_bytes, cuda.memory_total_bytes) == (22 * GIB, 45 * GIB // 2)
    assert (cuda.bandwidth_bytes_per_s, cuda.link_bytes_per_s) == (616 * 10**9, 15_750_000_000)
    assert (cuda.margin_bytes, cuda.drives_display) == (GIB // 2, True)
    assert cuda.description == "NVIDIA GeForce RTX 2080 Ti"
    assert (rpc.buffer_type, rpc.memory_free_bytes) == ("RPC0[127.0.0.1:50052]", 12 * GIB)
    assert rpc.backend.alignment_bytes == BACKENDS["CUDA"].alignment_bytes
    assert machine.host == Host(
        memory_available_bytes=120 * GIB,
        memory_total_bytes=128 * GIB,
        bandwidth_bytes_per_s=105 * 10**9,
        n_cores_physical=16,
    )


def test_round_trip() -> None:
    """What is rendered reads back as the same machine."""
    machine = parse_machine(EXAMPLE)
    assert parse_machine(render_machine(machine)) == machine
    assert parse_machine(render_machine(Machine())) == Machine()
    assert parse_machine("") == Machine()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[card]]\n", "card 1: name is missing"),
        ('[[card]]\nname = "CUDA0"\n', "card 1: memory is missing"),
        ('[[card]]\nname = "CUDA0"\nmemory = "much"\n', "card 1: memory 'much'"),
        ('[[card]]\nname = "CUDA0"\nmemory = 0\n', "memory must be more than zero"),
        ('[[card]]\nname = "CUDA0"\nmemory = 1.5\n', "memory must be a size in quotes"),
        ('[[card]]\nname = "CUDA0"\nmemory = true\n', "memory must be a size in quotes"),
        ('[[card]]\nname = 7\nmemory = "1GiB"\n', "name must be text"),
        ('[[card]]\nname = "TPU0"\nmemory = "1GiB"\n', "card 1: 'TPU0' is not"),
        ('[[card]]\nname = "CUDA0"\nmemory = "1GiB"\ndisplay = "yes"\n', "true or false"),
        ('[[card]]\nname = "CUDA0"\nmemory = "1GiB"\nvram = 1\n', "unknown key 'vram'"),
        ('[[card]]\nname = "RPC0"\nmemory = "1GiB"\nendpoint = "x"\n', "host:port"),
        ('[[card]]\nname = "RPC0"\nmemory = "1GiB"\nserves = "TPU"\n', "serve"),
        ('[[card]]\nname = "CUDA0"\nmemory = "1GiB"\nserves = "CUDA"\n', "no endpoint"),
        ('[[card]]\nname="CUDA0"\nmemory=1\n[[card]]\nname="CUDA0"\nmemory=1\n', "given twice"),
        ("[card]\n", r"\[\[card\]\]"),
        ("card = [1]\n", "card 1 must be a table"),
        ("host = 3\n", "host must be a table"),
        ("[host]\ncores = 0\n", "cores must be a whole number"),
        ("[host]\ncores = true\n", "cores must be a whole number"),
        ("[host]\nram = 0\n", "unknown key 'ram'"),
        ("[gpu]\n", "unknown table 'gpu'"),
        ("[[card]\n", "not TOML"),
        ("x = " + "[" * 5000, "not TOML"),
        ("[host]\nmemory = " + "9" * 5000, "not TOML"),
        ("[host]\nmemory = 0x" + "f" * 5000, "larger than any"),
        ("#" * (1 << 21), "larger than any"),
    ],
)
def test_parse_refuses(text: str, complaint: str) -> None:
    """Errors name the file, the table and the key."""
    with pytest.raises(DeviceError, match=complaint) as caught:
        parse_machine(text, "cards.toml")
    assert str(caught.value).startswith("cards.toml: ")


def test_descriptions_cannot_break_the_file() -> None:
    """Quotes, backslashes and control characters of a description stay inside their string."""
    device = parse_machine(EXAMPLE).devices[0]
    nasty = replace(device, description='a "b" \\ c')
    assert parse_machine(render_machine(Machine(devices=(nasty,)))).devices == (nasty,)
    control = replace(device, description="a\x1b[31m\nb\x7f")
    text = render_machine(Machine(devices=(control,)))
    assert parse_machine(text).devices[0].description == "a [31m b "
