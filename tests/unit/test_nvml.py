"""NVML through nvidia-ml-py, answered by a stub of NVIDIA's library."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload.nvml import Card, clean_name, cuda_order
from tests.nvml_stub import (
    MIB,
    RTX_2080_TI,
    RTX_3060,
    RTX_3090,
    UNEQUAL,
    build_stub,
    describe,
    read_stub_cards,
)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled stub's directory."""
    return build_stub(tmp_path_factory.mktemp("nvml"))


def test_three_unequal_cards(stub: Path) -> None:
    """Memory without the reserve, data-sheet bandwidth, the lanes in use, and the display."""
    answer = read_stub_cards(stub, NVML_STUB_CARDS=describe(*UNEQUAL))
    small, big, old = answer["cards"]
    assert small["memory_total_bytes"] == (12288 - 228) * MIB
    assert big["memory_free_bytes"] == 24258 * MIB
    assert [round(c["bandwidth_bytes_per_s"] / 1e9) for c in (small, big, old)] == [360, 936, 616]
    assert [round(c["link_bytes_per_s"] / 1e9, 1) for c in (small, big, old)] == [7.9, 31.5, 15.8]
    assert [c["drives_display"] for c in (small, big, old)] == [True, False, False]


def test_cards_come_by_pci_address(stub: Path) -> None:
    """NVML promises no order; ours is that of the slots."""
    answer = read_stub_cards(stub, NVML_STUB_CARDS=describe(*reversed(UNEQUAL)))
    assert [card["pci_address"][1] for card in answer["cards"]] == [1, 33, 65]


def test_an_old_driver(tmp_path: Path) -> None:
    """Queries that old libraries lack leave facts unknown; memory comes from version 1."""
    old = build_stub(tmp_path, is_old=True)
    card = read_stub_cards(old, NVML_STUB_CARDS=describe(RTX_3090))["cards"][0]
    assert card["memory_total_bytes"] == 24576 * MIB
    assert card["memory_free_bytes"] == 24258 * MIB
    assert card["bandwidth_bytes_per_s"] is None
    assert card["link_bytes_per_s"] is not None


def test_no_library() -> None:
    """A machine without NVIDIA's library has no cards and nothing to complain about."""
    answer = read_stub_cards(None)
    assert (answer["cards"], answer["codes"]) == ([], [])


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (1, "Uninitialized"),
        (4, "no permission"),
        (9, "driver is not loaded"),
        (13, "Function Not Found"),
        (15, "fallen off the bus"),
        (18, "reboot"),
        (999, "nvidia-smi"),
        (12345, "an error only the stub knows"),
    ],
)
def test_init_errors(stub: Path, code: int, advice: str) -> None:
    """A library that cannot start gives one notice with what to do, and no card."""
    answer = read_stub_cards(stub, NVML_STUB_CARDS=describe(RTX_3090), NVML_STUB_INIT=str(code))
    assert answer["cards"] == []
    assert answer["codes"] == ["nvml"]
    assert advice in answer["texts"][0]


@pytest.mark.parametrize("code", [1, 4, 15, 999])
def test_count_errors(stub: Path, code: int) -> None:
    """A library that does not count its cards is reported once."""
    answer = read_stub_cards(stub, NVML_STUB_CARDS=describe(RTX_3090), NVML_STUB_COUNT=str(code))
    assert (answer["cards"], answer["codes"]) == ([], ["nvml"])


@pytest.mark.parametrize("code", [4, 15, 16])
def test_a_lost_card_leaves_the_others(stub: Path, code: int) -> None:
    """A card that refuses its handle is named by number and left out."""
    cards = describe(RTX_3090, {**RTX_3060, "handle": code}, RTX_2080_TI)
    answer = read_stub_cards(stub, NVML_STUB_CARDS=cards)
    assert [c["name"][-4:] for c in answer["cards"]] == ["3090", "0 Ti"]
    assert answer["codes"][0] == "nvml-card"
    assert "card 1 does not answer" in answer["texts"][0]


@pytest.mark.parametrize("key", ["bus", "mem", "gen", "width", "display", "cores", "pci", "uuid"])
@pytest.mark.parametrize("code", [2, 3, 4, 7, 15, 999])
def test_a_failing_query_only_hides_its_fact(stub: Path, key: str, code: int) -> None:
    """No permission, not supported, insufficient size …: the card stays, one fact is missing."""
    card = {**RTX_3090, f"err_{key}": code}
    answer = read_stub_cards(stub, NVML_STUB_CARDS=describe(card))
    assert answer["codes"] == []
    read = answer["cards"][0]
    assert read["memory_free_bytes"] == 24258 * MIB
    assert (read["bandwidth_bytes_per_s"] is None) == (key in ("bus", "mem"))
    assert (read["link_bytes_per_s"] is None) == (key == "gen")
    assert read["drives_display"] is False  # display mode still answers


def test_memory_that_cannot_be_read(stub: Path) -> None:
    """Without its memory a card cannot be planned for, and the notice says how to help."""
    answer = read_stub_cards(stub, NVML_STUB_CARDS=describe({**RTX_3090, "err_total": 3}))
    assert (answer["cards"], answer["codes"]) == ([], ["nvml-memory"])
    assert "--gpu CUDA0:SIZE" in answer["texts"][0]


def test_reserve_that_cannot_be_read(stub: Path) -> None:
    """Without the reserve the total is the physical one, as version 1 tells it."""
    answer = read_stub_cards(stub, NVML_STUB_CARDS=describe({**RTX_3090, "err_reserved": 3}))
    assert answer["cards"][0]["memory_total_bytes"] == 24576 * MIB


def test_a_sliced_card(stub: Path) -> None:
    """A card in MIG mode is no CUDA device as a whole."""
    answer = read_stub_cards(stub, NVML_STUB_CARDS=describe({**RTX_3090, "mig": 1}))
    assert (answer["cards"], answer["codes"]) == ([], ["nvml-mig"])


@pytest.mark.parametrize("name", ["", "x" * 2000, "caf\udce9", "evil\x1b[2J\rname"])
def test_odd_names(stub: Path, name: str) -> None:
    """A name that is missing, too long, not UTF-8 or full of controls harms nothing."""
    answer = read_stub_cards(stub, NVML_STUB_CARDS=describe({**RTX_3090, "name": name}))
    read = answer["cards"][0]["name"]
    assert read.isprintable()
    assert 0 < len(read) <= 80


def card(name: str, i: int, speed: int = 0) -> Card:
    """A card for the pure part."""
    return Card(
        name=name,
        memory_free_bytes=1,
        memory_total_bytes=1,
        speed=speed,
        pci_address=(0, i, 0),
        uuid=f"GPU-{i}{i}aa-bb",
    )


SLOW, FAST, MEDIUM = card("slow", 1, 10), card("fast", 2, 30), card("medium", 3, 20)


def order(**environ: str) -> list[str]:
    """Names in CUDA's order."""
    return [c.name for c in cuda_order((SLOW, FAST, MEDIUM), environ)[0]]


def test_cuda_order_guesses_the_fastest_first() -> None:
    """Unequal cards are ordered by our guess, and the notice says that it is one."""
    assert order() == ["fast", "medium", "slow"]
    assert [n.code for n in cuda_order((SLOW, FAST), {})[1]] == ["cuda-order"]


def test_cuda_order_by_pci() -> None:
    """CUDA_DEVICE_ORDER=PCI_BUS_ID and equal cards need no guess."""
    assert order(CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["slow", "fast", "medium"]
    twins = (card("same", 1), card("same", 2))
    assert cuda_order(twins, {}) == (twins, ())


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1,2", "fast medium slow"),
        ("2,0", "slow fast"),
        (" 1 ", "medium"),
        ("", ""),
        ("-1", ""),
        ("none", ""),
        ("7,0", ""),
        ("0,7,1", "fast"),
        ("0,,1", "fast"),
        ("0,0", ""),
        ("1gpu2,2", "medium slow"),
        ("99999999999999999999", ""),
        ("GPU-33", "medium"),
        ("GPU-33,GPU-11aa-bb", "medium slow"),
        ("gpu-33", "medium"),
        ("GPU-", ""),
        ("GPU-zz,GPU-33", ""),
        ("GPU-33,0", "medium"),
        ("GPU-33,GPU-33aa", ""),
        ("MIG-GPU-33/1/0", ""),
    ],
)
def test_cuda_visible_devices(visible: str, expected: str) -> None:
    """Numbers in CUDA's order or UUID beginnings; the first bad entry ends the list."""
    assert order(CUDA_VISIBLE_DEVICES=visible) == expected.split()


def test_hidden_cards_are_told() -> None:
    """Who hides cards by accident is told how many."""
    notices = cuda_order((SLOW, FAST, MEDIUM), {"CUDA_VISIBLE_DEVICES": "GPU-33"})[1]
    assert [n.code for n in notices] == ["cuda-visible"]
    assert "hides 2 of 3" in notices[0].text


def test_visible_devices_reach_the_real_library(stub: Path) -> None:
    """The environment of a real probe is honoured, by number and by UUID."""
    cards = describe(*UNEQUAL)
    by_pci = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVML_STUB_CARDS": cards}
    answer = read_stub_cards(stub, CUDA_VISIBLE_DEVICES="2,0", **by_pci)
    assert [name[-4:] for name in answer["visible"]] == ["0 Ti", "3060"]
    answer = read_stub_cards(stub, CUDA_VISIBLE_DEVICES="GPU-0000b", **by_pci)
    assert [name[-4:] for name in answer["visible"]] == ["3090"]


def test_notices_keep_uuids_private() -> None:
    """No notice and no printed card carries a UUID."""
    assert "GPU-" not in repr(SLOW)
    for visible in ("GPU-33", "GPU-zz", "0"):
        for notice in cuda_order((SLOW, FAST), {"CUDA_VISIBLE_DEVICES": visible})[1]:
            assert "GPU-" not in notice.text


def test_clean_name() -> None:
    """Names lose controls and surplus blanks and are cut."""
    assert clean_name("a\x1b[31m \t b\n") == "a [31m b"
    assert clean_name("x" * 100, 10) == "x" * 10
