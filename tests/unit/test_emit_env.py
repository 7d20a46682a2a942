"""Environment files, read by systemd's own parser and by the real docker command."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offload.emit import Launch
from offload.emit.build import NEWEST
from offload.emit.env import emit_docker_env, emit_env
from offload.emit.settings import server_settings
from offload.emit.target import Target
from offload.rules import Rule

# reads environment.d/*.conf with the parser of EnvironmentFile=, and then replaces variables
GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")
LAUNCH = Launch(
    model_path="/models/a b.gguf",
    n_gpu_layers=37,
    rules=(Rule(pattern=r"blk\.([0-5])\.ffn_(up|down)_exps", buffer_type="CPU"),),
    cpu_moe=True,
    n_ctx=8192,
    n_batch=2048,
    n_ubatch=512,
    kv_unified=False,
)
HOSTILE_PATHS = (
    "/m/ blanks  inside and after  ",
    "/m/quote\"s'and\\back\\\\slashes\\",
    "/m/`id` # ; comment",
    "/m/%h %n = {x} [y] *",
    "/m/日本 é.gguf",
    "/m/'",
)


def expected(launch: Launch) -> dict[str | None, str]:
    """What llama-server shall find in its environment."""
    return {s.env: s.env_value for s in server_settings(launch, NEWEST)}


@pytest.mark.skipif(not GENERATOR.exists(), reason="no systemd here")
@pytest.mark.parametrize("path", [*HOSTILE_PATHS, "/m/line\nbreak\tand tab"])
def test_systemd_reads_every_value(path: str, tmp_path: Path) -> None:
    """systemd's parser of such files finds each variable with its value."""
    launch = replace(LAUNCH, model_path=path)
    folder = tmp_path / "environment.d"
    folder.mkdir()
    (folder / "test.conf").write_text(emit_env(launch, Target()))
    said = subprocess.run(
        [str(GENERATOR)],
        env={"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert said.stderr == ""
    lines = [line for line in said.stdout.split("\n") if line.startswith("LLAMA_")]
    assert dict(map(_undump, lines)) == expected(launch)


def _undump(line: str) -> tuple[str, str]:
    """The generator's own quoting undone."""
    name, _, value = line.partition("=")
    if value.startswith('"'):
        named = {"n": "\n", "t": "\t"}
        value = re.sub(r"\\(.)", lambda m: named.get(m[1], m[1]), value[1:-1])
    return name, value


class _Daemon(http.server.BaseHTTPRequestHandler):
    """Answers docker as its daemon would, and keeps what it is asked to create."""

    protocol_version = "HTTP/1.1"
    asked: dict[str, Any]

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, body: bytes, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Api-Version", "1.44")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        """`/_ping`, `/info`."""
        self._answer(b"{}")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """`/containers/create`."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "/containers/create" in self.path:
            type(self).asked = json.loads(body)
        self._answer(b'{"Id":"0","Warnings":[]}', 201)


@contextmanager
def _daemon() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Daemon)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker command here")
@pytest.mark.parametrize("path", [*HOSTILE_PATHS, "/m/$HOME ${USER} $$"])
def test_docker_reads_every_value(path: str, tmp_path: Path) -> None:
    """The real docker command sends each variable with its value to the daemon."""
    launch = replace(LAUNCH, model_path=path)
    file = tmp_path / "llama.env"
    file.write_text(emit_docker_env(launch, Target()))
    with _daemon() as address:
        done = subprocess.run(
            ["docker", "-H", address, "create", "--env-file", str(file), "image"],
            env={"HOME": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert done.returncode == 0, done.stderr
    assert dict(text.split("=", 1) for text in _Daemon.asked["Env"]) == expected(launch)
