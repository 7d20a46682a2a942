"""Cards and machines survive being written down."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from offload.device import Device, device_by_name, devices_from_flags, format_device, parse_device
from offload.errors import OffloadError
from offload.machine import Host, Machine, parse_machine, render_machine

SIZES = st.integers(1, 1 << 52)
MAYBE = st.none() | SIZES
TEXT = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=20)


@st.composite
def cards(draw: st.DrawFn, i: int = 0) -> Device:
    """A card with any facts, RPC or not."""
    is_rpc = draw(st.booleans())
    name = f"RPC{i}" if is_rpc else f"{draw(st.sampled_from(['CUDA', 'ROCm', 'Vulkan']))}{i}"
    endpoint = draw(st.none() | st.just("10.0.0.2:50052")) if is_rpc else None
    served = draw(st.none() | st.sampled_from(["CUDA", "Vulkan", "CPU"])) if is_rpc else None
    return replace(
        device_by_name(name, draw(SIZES), endpoint=endpoint, served=served),
        memory_total_bytes=draw(MAYBE),
        bandwidth_bytes_per_s=draw(MAYBE),
        link_bytes_per_s=draw(MAYBE),
        margin_bytes=draw(st.none() | st.integers(0, 1 << 40)),
        drives_display=draw(st.none() | st.booleans()),
        description=draw(TEXT),
    )


@given(cards())
def test_gpu_text_round_trip(card: Device) -> None:
    """parse_device reads what format_device prints: same name, memory and rates."""
    again = parse_device(format_device(card))
    for fact in ("name", "memory_free_bytes", "bandwidth_bytes_per_s", "link_bytes_per_s"):
        assert getattr(again, fact) == getattr(card, fact)
    assert again.endpoint == card.endpoint


@given(
    st.integers(0, 4).flatmap(lambda n: st.tuples(*(cards(i) for i in range(n)))),
    st.builds(
        Host,
        memory_available_bytes=MAYBE,
        memory_total_bytes=MAYBE,
        bandwidth_bytes_per_s=MAYBE,
        n_cores_physical=st.none() | st.integers(1, 512),
    ),
)
def test_machine_round_trip(devices: tuple[Device, ...], host: Host) -> None:
    """devices.toml loses nothing, except that RPC cards are numbered per server."""
    machine = parse_machine(render_machine(Machine(devices=devices, host=host)))
    assert parse_machine(render_machine(machine)) == machine
    assert machine.host == host
    unnumbered = [replace(d, buffer_type="") for d in devices]
    assert [replace(d, buffer_type="") for d in machine.devices] == unnumbered


@given(st.text(max_size=60) | st.from_regex(r"(CUDA|RPC)\d[\[\]:.\dGiB/s]{0,20}", fullmatch=True))
def test_any_text_is_a_card_or_one_clear_error(text: str) -> None:
    """No text makes parse_device or parse_machine raise anything but our own errors."""
    for parse in (parse_device, parse_machine):
        try:
            parse(text)
        except OffloadError as error:
            assert str(error)


@given(
    st.none() | st.integers(-2, 20),
    st.none() | st.lists(st.integers(-1, 1 << 40), max_size=18).map(tuple),
)
def test_any_flags_are_cards_or_one_clear_error(
    gpus: int | None, vram: tuple[int, ...] | None
) -> None:
    """--gpus and --vram give as many cards as they say, with their sizes, or a clear error."""
    try:
        devices = devices_from_flags(gpus, vram)
    except OffloadError as error:
        assert str(error)
        return
    assert gpus is None or len(devices) == gpus
    if vram is not None:
        assert {device.memory_free_bytes for device in devices} == set(vram)
    assert len({device.name for device in devices}) == len(devices)
