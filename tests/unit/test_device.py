"""Cards in words: --gpu, --gpus, --vram and --rpc."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload.device import (
    BACKENDS,
    Device,
    check_devices,
    device_by_name,
    devices_from_flags,
    format_device,
    parse_device,
)
from offload.errors import DeviceError, UsageError
from offload.units import GIB, MIB


def found_card(name: str, gib: int) -> Device:
    """A card as the probe would report it."""
    return replace(
        device_by_name(name, gib * GIB - 512 * MIB),
        memory_total_bytes=gib * GIB,
        bandwidth_bytes_per_s=936 * 10**9,
        description="a card",
    )


FOUND = (found_card("CUDA0", 24), found_card("CUDA1", 12))


def test_parse_the_contract_example() -> None:
    """The example of the contract gives its four parts."""
    card = parse_device("CUDA0:24GiB:936GB/s:25GB/s")
    assert (card.name, card.buffer_type, card.backend.name) == ("CUDA0", "CUDA0", "CUDA")
    assert card.memory_free_bytes == 24 * GIB
    assert card.bandwidth_bytes_per_s == 936 * 10**9
    assert card.link_bytes_per_s == 25 * 10**9


@pytest.mark.parametrize(
    ("text", "memory", "bandwidth", "link"),
    [
        ("CUDA1:24576MiB", 24 * GIB, None, None),
        ("CUDA1:24GB:360GB/s", 24 * 10**9, 360 * 10**9, None),
        (" CUDA1 : 24G :: 12GB/s ", 24 * GIB, None, 12 * 10**9),
    ],
)
def test_parse_parts_left_out(
    text: str, memory: int, bandwidth: int | None, link: int | None
) -> None:
    """Trailing parts may be missing and middle ones empty: they are unknown then."""
    card = parse_device(text)
    assert (card.memory_free_bytes, card.bandwidth_bytes_per_s, card.link_bytes_per_s) == (
        memory,
        bandwidth,
        link,
    )


def test_parse_an_rpc_card() -> None:
    """The colon of an endpoint stands in brackets and gives the buffer type -ot needs."""
    card = parse_device("RPC1[127.0.0.1:50052]:22GiB")
    assert (card.name, card.endpoint) == ("RPC1", "127.0.0.1:50052")
    assert card.buffer_type == "RPC0[127.0.0.1:50052]"
    assert card.memory_free_bytes == 22 * GIB


def test_buffer_types_that_differ_from_the_name() -> None:
    """OpenCL's buffer type lacks the GPU of its device name."""
    assert parse_device("GPUOpenCL:8GiB").buffer_type == "OpenCL"
    assert parse_device("mtl0:96GiB").buffer_type == "MTL0"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "NAME:SIZE"),
        ("24GiB", "CUDA0"),
        ("CUDA0", "size is needed"),
        ("CUDA0:", "size is needed"),
        ("CUDA0:0", "more than zero"),
        ("CUDA0:-1GiB", "24GiB"),
        ("CUDA0:lots", "size of CUDA0 'lots'"),
        ("CUDA0:24GiB:fast", "bandwidth of CUDA0 'fast'"),
        ("CUDA0:24GiB:0GB/s", "bandwidth must be more than zero"),
        ("CUDA0:24GiB:936GB/s:0", "link must be more than zero"),
        ("CUDA0:24GiB:936GB/s:25GB/s:1", "too many parts"),
        ("RPC0:127.0.0.1:50052:22GiB:9GB/s", r"RPC0\[host:port\]:SIZE"),
        ("RPC0[127.0.0.1]:22GiB", "host:port"),
        ("RPC0[127.0.0.1:0]:22GiB", "host:port"),
        ("RPC0[127.0.0.1:70000]:22GiB", "host:port"),
        ("RPC0[::1:50052]:22GiB", "host:port"),
        ("RPC0[a=b:1]:22GiB", "host:port"),
        ("CUDA0[127.0.0.1:1]:22GiB", "no endpoint"),
        ("CUDA0[x:1", "NAME:SIZE"),
        ("TPU0:22GiB", "not a llama.cpp device"),
        ("CUDA0:" + "9" * 400, "size"),
    ],
)
def test_parse_refuses(text: str, complaint: str) -> None:
    """Every unclear card is a usage error that says what to write."""
    with pytest.raises(UsageError, match=complaint):
        parse_device(text)


def test_parse_takes_facts_of_the_found_card() -> None:
    """A card that is here keeps its facts; a size it cannot have means another card."""
    assert parse_device("CUDA1", FOUND) == FOUND[1]
    smaller = parse_device("CUDA1:10GiB", FOUND)
    assert smaller.bandwidth_bytes_per_s == FOUND[1].bandwidth_bytes_per_s
    assert smaller.memory_free_bytes == 10 * GIB
    assert parse_device("CUDA1:80GiB", FOUND).bandwidth_bytes_per_s is None


def test_flags_number_the_cards() -> None:
    """--gpus 3 --vram 22GiB are CUDA0..2 of 22 GiB each; several sizes count themselves."""
    cards = devices_from_flags(3, (22 * GIB,))
    assert [card.name for card in cards] == ["CUDA0", "CUDA1", "CUDA2"]
    assert {card.memory_free_bytes for card in cards} == {22 * GIB}
    assert [c.memory_free_bytes for c in devices_from_flags(None, (GIB, 2 * GIB))] == [GIB, 2 * GIB]
    assert len(devices_from_flags(None, (GIB,))) == 1


def test_flags_with_rpc_servers() -> None:
    """With --rpc the described cards are the servers, in their order."""
    cards = devices_from_flags(None, (GIB,), rpc=("a:1", "b:2"))
    assert [card.name for card in cards] == ["RPC0", "RPC1"]
    assert [card.buffer_type for card in cards] == ["RPC0[a:1]", "RPC0[b:2]"]


def test_flags_describe_each_card() -> None:
    """--gpu is repeatable, and --gpus may repeat its number."""
    cards = devices_from_flags(2, None, ("Vulkan0:8GiB", "ROCm0:16GiB"))
    assert [card.name for card in cards] == ["Vulkan0", "ROCm0"]


def test_flags_use_what_is_found() -> None:
    """Without flags all found cards count, --gpus takes the first, --vram limits them."""
    assert devices_from_flags(None, None, found=FOUND) == FOUND
    assert devices_from_flags(1, None, found=FOUND) == FOUND[:1]
    limited = devices_from_flags(None, (8 * GIB,), found=FOUND)
    assert [card.memory_free_bytes for card in limited] == [8 * GIB, 8 * GIB]
    assert limited[0].description == "a card"
    assert devices_from_flags(None, None) == ()


def test_flags_for_another_machine() -> None:
    """Sizes the found cards cannot have describe other cards, about which nothing is known."""
    cards = devices_from_flags(2, (22 * GIB,), found=FOUND)
    assert [card.description for card in cards] == ["", ""]
    assert len(devices_from_flags(4, (8 * GIB,), found=FOUND)) == 4


@pytest.mark.parametrize(
    ("gpus", "vram", "gpu", "rpc", "complaint"),
    [
        (0, (GIB,), (), (), "-ngl 0"),
        (-2, (GIB,), (), (), "--gpus -2"),
        (17, (GIB,), (), (), "1 to 16"),
        (2, (GIB, GIB, GIB), (), (), "--gpus means 2, --vram means 3"),
        (2, (GIB,), (), ("a:1",), "--rpc means 1"),
        (None, (GIB, 0), (), (), "above zero"),
        (None, (), (), (), "above zero"),
        (None, (-1,), (), (), "above zero"),
        (None, (GIB,) * 17, (), (), "16"),
        (2, None, (), (), "add --vram"),
        (None, None, (), ("a:1",), "--llama-server"),
        (None, (GIB,), (), ("a",), "host:port"),
        (3, None, ("CUDA0:1GiB",), (), "leave --gpus"),
        (None, (GIB,), ("CUDA0:1GiB",), (), "leave --gpus"),
        (None, None, ("CUDA0:1GiB", "cuda0:2GiB"), (), "given twice"),
        (None, None, tuple(f"CUDA{i}:1GiB" for i in range(17)), (), "at most 16"),
    ],
)
def test_flags_that_disagree(
    gpus: int | None,
    vram: tuple[int, ...] | None,
    gpu: tuple[str, ...],
    rpc: tuple[str, ...],
    complaint: str,
) -> None:
    """Contradictions are usage errors naming the flag to change."""
    with pytest.raises(UsageError, match=complaint):
        devices_from_flags(gpus, vram, gpu, rpc=rpc)


def test_check_numbers_the_devices_of_one_server() -> None:
    """RPC device numbers run over all servers, buffer types over the devices of one server."""
    names = ("RPC0[a:1]:1GiB", "RPC1[a:1]:1GiB", "RPC2[b:1]:1GiB")
    cards = check_devices([parse_device(name) for name in names])
    assert [card.buffer_type for card in cards] == ["RPC0[a:1]", "RPC1[a:1]", "RPC0[b:1]"]


def test_served_backend() -> None:
    """What is behind an RPC server decides its padding; nonsense is refused."""
    card = device_by_name("RPC0", GIB, endpoint="a:1", served="CUDA")
    assert card.backend.alignment_bytes == BACKENDS["CUDA"].alignment_bytes
    for served in ("RPC", "TPU"):
        with pytest.raises(DeviceError, match="serve"):
            device_by_name("RPC0", GIB, endpoint="a:1", served=served)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA0:24GiB:936GB/s:25GB/s",
        "CUDA0:22500MiB",
        "CUDA0:12345678901:360GB/s",
        "CUDA0:1GiB::15754MB/s",
        "RPC1[127.0.0.1:50052]:22GiB",
        "GPUOpenCL:8GiB",
    ],
)
def test_format_is_what_parse_reads(text: str) -> None:
    """A card printed as --gpu text is the same card when read."""
    assert format_device(parse_device(text)) == text
