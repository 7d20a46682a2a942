"""What is believed of a machine that nobody measured?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload.cost import PRIOR, Work, predict
from offload.device import Device, device_by_name, parse_device
from offload.machine import Host
from offload.priors import find_card, make_priors

READ = "decode.read.CUDA0.Q4_K"
HOST_READ = "decode.read.CPU.Q4_K"
NO_HOST = Host()


@pytest.mark.parametrize(
    ("description", "bandwidth"),
    [
        ("NVIDIA GeForce RTX 3090", 936),
        ("NVIDIA GeForce RTX 3090 Ti", 1008),
        ("NVIDIA GeForce RTX 2060 SUPER", 448),
        ("NVIDIA GeForce RTX 2080 Ti", 616),
        ("AMD Radeon AI PRO R9700 (RADV GFX1201)", 640),
        ("AMD Radeon RX 7900 XTX", 960),
        ("Apple M4 Max", 546),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA L4", 300),
        ("NVIDIA L40S", 864),
    ],
)
def test_cards_are_found_by_llama_cpp_descriptions(description: str, bandwidth: float) -> None:
    """The longest data-sheet name inside the description decides."""
    sheet = find_card(description)
    assert sheet is not None and sheet.bandwidth_gb_per_s == bandwidth


@pytest.mark.parametrize("description", ["", "CUDA0", "Some New Card 9000", "GTX 10601"])
def test_unknown_cards_are_not_mistaken(description: str) -> None:
    """Parts of words do not count."""
    assert find_card(description) is None


def card(description: str = "") -> Device:
    """CUDA0, described like this."""
    return replace(device_by_name("CUDA0", 1 << 34), description=description)


def seconds(device: Device, host: Host = NO_HOST, name: str = READ) -> tuple[float, float]:
    """Seconds for a gigabyte and how wide that is, high over low."""
    known = make_priors([name], [device], host)
    assert known.table[name].source == PRIOR
    found = predict(Work(amounts={name: 1e9}), known)
    assert found is not None
    return found.seconds, found.high_s / found.low_s


def test_faster_memory_reads_faster() -> None:
    """Seconds per byte go with one over the data sheet's bandwidth."""
    fast, slow = seconds(card("RTX 4090")), seconds(card("RTX 4060"))
    assert slow[0] / fast[0] == pytest.approx(1008 / 272)


def test_what_the_user_says_of_a_card_counts_more() -> None:
    """A bandwidth given with --gpu is taken for the data sheet's, and narrows the interval."""
    said = parse_device("CUDA0:16GiB:504GB/s")
    assert seconds(said)[0] == seconds(card("RTX 4070"))[0]
    assert seconds(said)[1] < seconds(card())[1]


def test_a_known_host_is_surer() -> None:
    """The host's bandwidth is guessed from the size of its memory where it is not given."""
    known = seconds(card(), Host(bandwidth_bytes_per_s=60 * 10**9), HOST_READ)
    guess = seconds(card(), Host(), HOST_READ)
    server = seconds(card(), Host(memory_total_bytes=512 << 30), HOST_READ)
    assert known[0] == guess[0] > server[0]
    assert known[1] < guess[1]


def test_types_of_one_card_are_wrong_together() -> None:
    """Two tensor types of a card share the doubt about its bandwidth, so it does not average."""
    names = [READ, "decode.read.CUDA0.Q6_K"]
    known = make_priors(names, [card("RTX 3090")], Host())
    one = predict(Work(amounts={READ: 2e9}), known)
    both = predict(Work(amounts=dict.fromkeys(names, 1e9)), known)
    assert one is not None and both is not None
    assert both.high_s / both.seconds == pytest.approx(one.high_s / one.seconds, rel=0.05)


def test_every_feature_of_a_known_kind_has_a_prior() -> None:
    """All that work is made of can be guessed for cards and the host; names unknown are left."""
    names = [
        "decode.const", "decode.hop", "decode.layer.CUDA0", "decode.layer.CPU", READ, HOST_READ,
        "decode.read.CPU_REPACK.Q4_K", "decode.context.CUDA0", "decode.context.CPU",
        "prefill.const", "prefill.ubatch", "prefill.hop", "prefill.carry", "prefill.layer.CUDA0",
        "prefill.layer.CPU", "prefill.read.CUDA0", "prefill.read.CPU", "prefill.flops.CUDA0.F16",
        "prefill.flops.CPU.F16", "prefill.flops.CPU_REPACK.F16", "prefill.attention.CUDA0",
        "prefill.attention.CPU", "prefill.stream.CUDA0", "prefill.stream_mmap.CUDA0",
        "prefill.read.CPU_REPACK",
    ]  # fmt: skip
    strange = ["decode.read.CUDA7.Q4_K", "decode.magic", "decode.stream.CPU"]
    known = make_priors([*names, *strange], [card()], Host())
    assert set(known.table) == set(names)
    assert all(c.value > 0 and c.standard_error > 0 for c in known.table.values())
