"""One machine from two witnesses: llama.cpp's list and NVML."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from offload.device_list import ListedDevice
from offload.errors import DeviceError, LlamaCppError, UsageError
from offload.nvml import Card
from offload.probe import devices_of_list, no_cards_text, probe_machine, read_machine
from offload.units import GIB, MIB
from tests.nvml_stub import UNEQUAL, build_stub, describe, probe_stub_machine
from tests.unit.test_device_list import fake_server

CUDA_LIST = """cat <<'END'
Available devices:
  CUDA0: NVIDIA GeForce RTX 3090 (24259 MiB, 23900 MiB free)
  CUDA1: NVIDIA GeForce RTX 2080 Ti (22268 MiB, 22000 MiB free)
  CUDA2: NVIDIA GeForce RTX 3060 (12060 MiB, 10700 MiB free)
END
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled stub's directory."""
    return build_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """No llama-server is found by accident."""
    monkeypatch.setattr("offload.probe.find_llama_server", lambda: None)


def listed(name: str, description: str, total_mib: int = 24000, free_mib: int = 0) -> ListedDevice:
    """One line of llama.cpp's list."""
    return ListedDevice(
        name=name,
        description=description,
        memory_total_bytes=total_mib * MIB,
        memory_free_bytes=(free_mib or total_mib) * MIB,
    )


def card(name: str, total_mib: int = 24000, link: int = 1) -> Card:
    """What NVML says about one card."""
    return Card(
        name=name,
        memory_free_bytes=total_mib * MIB,
        memory_total_bytes=total_mib * MIB,
        bandwidth_bytes_per_s=10**11,
        link_bytes_per_s=link,
        drives_display=False,
    )


def names(lines: list[ListedDevice], cards: tuple[Card, ...] = ()) -> tuple[list[str], list[str]]:
    """Names kept and codes of notices for a list."""
    devices, notices = devices_of_list(lines, cards, cards)
    return [d.name for d in devices], [n.code for n in notices]


def test_nvml_alone(stub: Path) -> None:
    """Without llama.cpp the cards are CUDA0… by our guess of CUDA's order, and it is said."""
    machine = probe_stub_machine(stub, NVML_STUB_CARDS=describe(*UNEQUAL), PATH="/nonexistent")
    devices = machine["devices"]
    assert [d["name"] for d in devices] == ["CUDA0", "CUDA1", "CUDA2"]
    assert [d["description"][-4:] for d in devices] == ["3090", "0 Ti", "3060"]
    assert [d["drives_display"] for d in devices] == [False, False, True]
    assert devices[2]["memory_free_bytes"] == 11000 * MIB
    assert [w["code"] for w in machine["warnings"]] == ["cuda-order", "display"]


def test_both_witnesses(stub: Path, tmp_path: Path) -> None:
    """Names and memory are llama.cpp's; link, bandwidth and display are NVML's."""
    server = fake_server(tmp_path, CUDA_LIST)
    machine = probe_stub_machine(stub, server, NVML_STUB_CARDS=describe(*UNEQUAL))
    devices = machine["devices"]
    assert devices[0]["memory_free_bytes"] == 23900 * MIB
    assert [round(d["bandwidth_bytes_per_s"] / 1e9) for d in devices] == [936, 616, 360]
    assert devices[2]["drives_display"] is True
    assert [w["code"] for w in machine["warnings"]] == ["display"]


def test_found_on_path(stub: Path, tmp_path: Path) -> None:
    """A llama-server on PATH is asked without being named; its failure is only a warning."""
    shell = shutil.which("sh") or "/bin/sh"
    path = f"{tmp_path}:{Path(shell).parent}"
    fake_server(tmp_path, CUDA_LIST.replace("23900", "23800"))
    machine = probe_stub_machine(stub, PATH=path)
    assert machine["devices"][0]["memory_free_bytes"] == 23800 * MIB
    fake_server(tmp_path, "exit 1")
    machine = probe_stub_machine(stub, NVML_STUB_CARDS=describe(*UNEQUAL), PATH=path)
    assert len(machine["devices"]) == 3
    assert machine["warnings"][0]["code"] == "llama-cpp"
    assert str(tmp_path) not in machine["warnings"][0]["text"]


def test_no_secrets(stub: Path) -> None:
    """Nothing a probe returns holds a UUID or a serial number."""
    machine = probe_stub_machine(stub, NVML_STUB_CARDS=describe(*UNEQUAL))
    assert "GPU-" not in str(machine)
    assert "uuid" not in str(machine)


@pytest.mark.usefixtures("no_server")
def test_a_machine_without_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver, no llama.cpp: no cards, the host, and a text that tells how to go on."""
    monkeypatch.setattr("offload.probe.read_cards", lambda: ((), ()))
    machine = probe_machine()
    assert (machine.devices, machine.warnings) == ((), ())
    assert machine.host.memory_total_bytes
    for wanted in ("--gpus 2 --vram 24GiB", "--gpu CUDA0:24GiB:936GB/s:25GB/s", "--llama-server"):
        assert wanted in no_cards_text()
    assert "mine --list-devices names none" in no_cards_text("mine")


def test_a_named_binary_must_answer(tmp_path: Path) -> None:
    """--llama-server PATH that fails is an error, never a silent plan without it."""
    with pytest.raises(LlamaCppError, match="exit code 1"):
        probe_machine(fake_server(tmp_path, "exit 1"))
    with pytest.raises(LlamaCppError, match="did not answer"):
        probe_machine(fake_server(tmp_path, "sleep 60"), timeout_s=0.3)


@pytest.mark.usefixtures("no_server")
def test_rpc_needs_llama_cpp(tmp_path: Path) -> None:
    """Only llama.cpp can ask an RPC server; endpoints are checked before anything runs."""
    with pytest.raises(DeviceError, match="--llama-server"):
        probe_machine(rpc=["127.0.0.1:50052"])
    with pytest.raises(UsageError, match="host:port"):
        probe_machine(rpc=["127.0.0.1"])
    body = "echo 'Available devices:'; echo '  RPC0: 127.0.0.1:50052 (9 MiB, 8 MiB free)'"
    machine = probe_machine(fake_server(tmp_path, body), ["127.0.0.1:50052"])
    assert [d.buffer_type for d in machine.devices] == ["RPC0[127.0.0.1:50052]"]


def test_rpc_servers_come_first() -> None:
    """llama.cpp puts RPC servers before local cards; buffer types count per server."""
    lines = [
        listed("CUDA0", "A card"),
        listed("RPC0", "10.0.0.2:50052"),
        listed("RPC1", "10.0.0.2:50052"),
        listed("RPC2", "10.0.0.3:50052"),
    ]
    devices, notices = devices_of_list(lines, (), ())
    assert {d.name: d.buffer_type for d in devices} == {
        "RPC0": "RPC0[10.0.0.2:50052]",
        "RPC1": "RPC1[10.0.0.2:50052]",
        "RPC2": "RPC0[10.0.0.3:50052]",
        "CUDA0": "CUDA0",
    }
    assert devices[-1].name == "CUDA0"
    assert notices == ()


def test_one_card_through_two_backends() -> None:
    """A card seen by CUDA and by Vulkan counts once, each of two equal cards too."""
    lines = [listed(f"CUDA{i}", "NVIDIA GeForce RTX 3090", 24259) for i in range(2)]
    lines += [listed(f"Vulkan{i}", "NVIDIA GeForce RTX 3090", 24576) for i in range(2)]
    lines.append(listed("Vulkan2", "AMD Radeon RX 7900 XTX (RADV NAVI31)"))
    assert names(lines) == (["CUDA0", "CUDA1", "Vulkan2"], ["device-twin", "device-twin"])
    rocm = [listed("ROCm0", "AMD Radeon RX 7900 XTX"), lines[-1]]
    assert names(rocm) == (["ROCm0"], ["device-twin"])


@pytest.mark.parametrize(
    "description",
    [
        "AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO)",
        "AMD Radeon(TM) Graphics",
        "AMD Radeon 780M Graphics (RADV PHOENIX)",
        "Radeon 8060S Graphics (RADV GFX1151)",
        "AMD Radeon Vega 8 Graphics (RADV RAVEN)",
        "Intel(R) UHD Graphics 770 (ADL-S GT1)",
        "Intel(R) Iris(R) Xe Graphics (TGL GT2)",
        "Intel(R) HD Graphics 630",
        "Intel(R) Arc(TM) Graphics (MTL)",
        "Intel(R) Arc(TM) 140V GPU (16GB)",
        "Intel(R) Graphics (RPL-S)",
    ],
)
def test_integrated_graphics_only_alone(description: str) -> None:
    """llama.cpp uses integrated graphics only where there is no other local card."""
    assert names([listed("Vulkan0", description)]) == (["Vulkan0"], [])
    both = [listed("Vulkan0", description), listed("Vulkan1", "AMD Radeon RX 6800")]
    assert names(both) == (["Vulkan1"], ["device-integrated"])
    beside_rpc = [listed("Vulkan0", description), listed("RPC0", "10.0.0.2:50052")]
    assert names(beside_rpc) == (["RPC0", "Vulkan0"], [])


@pytest.mark.parametrize(
    "description",
    [
        "AMD Radeon RX 7600M XT",
        "AMD Radeon RX Vega 64",
        "AMD Radeon VII",
        "AMD Radeon Pro W7900",
        "Intel(R) Arc(TM) A770 Graphics (DG2)",
        "Intel(R) Arc(TM) B580 Graphics (BMG G21)",
        "Intel(R) Iris(R) Xe MAX Graphics",
        "NVIDIA GeForce RTX 3090",
        "llvmpipe (LLVM 19.1.7, 256 bits)",
    ],
)
def test_cards_are_not_integrated(description: str) -> None:
    """Real cards, whatever their names, stay beside others."""
    lines = [listed("Vulkan0", description), listed("Vulkan1", "AMD Radeon RX 6800")]
    assert names(lines) == (["Vulkan0", "Vulkan1"], [])


def test_what_owns_no_layers() -> None:
    """Accelerators are skipped in silence; unknown, full and doubled devices are told."""
    assert names([listed("BLAS", "OpenBLAS", 0), listed("CUDA0", "A card")]) == (["CUDA0"], [])
    assert names([listed("HTP0", "Hexagon")]) == ([], ["device-unknown"])
    assert names([listed("RPC0", "no endpoint")]) == ([], ["device-unknown"])
    full = ListedDevice(name="CUDA0", description="", memory_total_bytes=GIB, memory_free_bytes=0)
    assert names([full]) == ([], ["device-full"])
    assert names([listed("GPUOpenCL", "Adreno"), listed("GPUOpenCL", "Mali")]) == (
        ["GPUOpenCL"],
        ["device-twin"],
    )


def test_free_memory_is_on_the_card() -> None:
    """Some builds list the host's free memory for a card: the card's total bounds it."""
    lines = [listed("CUDA0", "NVIDIA GeForce RTX 5090", 32106, 55372)]
    devices, _ = devices_of_list(lines, (), ())
    assert devices[0].memory_free_bytes == 32106 * MIB
    lines = [listed("CUDA0", "unknown total", 0, 1000)]
    devices, _ = devices_of_list(lines, (), ())
    assert (devices[0].memory_free_bytes, devices[0].memory_total_bytes) == (1000 * MIB, None)


def test_more_cards_than_llama_cpp_takes() -> None:
    """The seventeenth card is not planned for."""
    lines = [listed(f"CUDA{i}", f"card {i}") for i in range(17)]
    kept, codes = names(lines)
    assert (len(kept), codes) == (16, ["device-count"])


def test_a_build_without_cuda() -> None:
    """NVIDIA cards that this llama.cpp does not see are worth a word."""
    assert names([], (card("NVIDIA GeForce RTX 3090"),)) == ([], ["llama-cpp-without-gpu"])


def test_facts_follow_the_visible_order() -> None:
    """Equal cards get their own link, in CUDA's order; a longer name is not mistaken."""
    first, second = card("RTX 4090", link=1), card("RTX 4090", link=2)
    lines = [listed("CUDA0", "RTX 4090"), listed("CUDA1", "RTX 4090")]
    devices, _ = devices_of_list(lines, (first, second), (second,))
    assert [d.link_bytes_per_s for d in devices] == [2, None]
    unequal = (first, card("RTX 4090 D", link=3))
    lines = [listed("CUDA0", "RTX 4090 D"), listed("CUDA1", "RTX 4090")]
    devices, _ = devices_of_list(lines, unequal, unequal)
    assert [d.link_bytes_per_s for d in devices] == [3, 1]


def test_facts_need_alike_memory() -> None:
    """A virtual half of a card (GGML_CUDA_DEVICES) is not the card NVML knows."""
    half = [listed("CUDA0", "RTX 4090 (dev p0/v0)", 12000)]
    devices, _ = devices_of_list(half, (card("RTX 4090"),), (card("RTX 4090"),))
    assert devices[0].bandwidth_bytes_per_s is None


def test_read_machine(tmp_path: Path) -> None:
    """devices.toml is read from disk; every failure names the file."""
    path = tmp_path / "devices.toml"
    path.write_text('[[card]]\nname = "CUDA0"\nmemory = "24GiB"\n')
    assert [d.name for d in read_machine(path).devices] == ["CUDA0"]
    path.write_bytes(b"\xff\xfe")
    for bad in (path, tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(DeviceError, match=bad.name):
            read_machine(bad)


def test_probing_imports_nothing_early() -> None:
    """Importing the probe loads neither pynvml nor psutil nor subprocess."""
    script = (
        "import sys, offload.probe; "
        "print([m for m in ('pynvml', 'psutil', 'subprocess', 'tomllib') if m in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert child.stdout.strip() == "[]", child.stderr
