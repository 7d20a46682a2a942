"""`offload serve` as a user starts it, and the means to look at it and to break it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from offload.engine.log import LoadLog, parse_log

WAIT_S = 120.0
"""For anything to happen; a busy machine must not fail a test."""


class Serving:
    """A running `offload serve`."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self._folder = folder

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return (self._folder / "out").read_text()

    @property
    def err(self) -> str:
        """Its standard error so far."""
        return (self._folder / "err").read_text()

    @property
    def state(self) -> Path:
        """Where it keeps records of canaries."""
        return self._folder / "state" / "offload" / "growth.json"

    @property
    def url(self) -> str:
        """The printed address."""
        return self.out.split()[0]

    def log(self) -> LoadLog:
        """llama-server's log."""
        return parse_log(self.log_text().splitlines())

    def log_text(self) -> str:
        """The same as text."""
        path = self._folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, what: Callable[[], Any], why: str) -> None:
        """Until `what` is true; fails with all that was said if we end before."""
        deadline_s = time.monotonic() + WAIT_S
        while not what():
            ended = self.process.poll()
            if ended is not None and not what():
                raise AssertionError(f"ended with {ended} before {why}:\n{self.err}")
            if time.monotonic() > deadline_s:
                raise AssertionError(f"no {why} in {WAIT_S} s:\n{self.err}")
            time.sleep(0.02)

    def wait_said(self, text: str) -> None:
        """Until it has said so."""
        self.wait(lambda: text in self.err, repr(text))

    def wait_ready(self) -> None:
        """Until the address is printed."""
        self.wait(lambda: "http" in self.out and self.out.endswith("\n"), "an address")

    def complete(self, prompt: Sequence[int] = (5, 6, 7, 8), n_predict: int = 4) -> dict[str, Any]:
        """The answer of /completion."""
        body = json.dumps({"prompt": list(prompt), "n_predict": n_predict, "temperature": 0})
        request = urllib.request.Request(f"{self.url}/completion", body.encode())
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return dict(json.load(answer))

    def server(self) -> psutil.Process:
        """The llama-server below it."""
        self.wait(self._servers, "a llama-server")
        return self._servers()[0]

    def _servers(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(self.process.pid).children(recursive=True)
            return [p for p in below if p.name().startswith("llama-server")]
        return []

    def family(self) -> list[psutil.Process]:
        """All processes below it, now."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to all of its group, as a terminal does; wait until all are gone."""
        family = self.family()
        os.killpg(self.process.pid, number)
        code = self.process.wait(WAIT_S)
        assert_gone(family)
        return code

    def exit_code(self) -> int:
        """Wait for it to end by itself."""
        return self.process.wait(WAIT_S)


def assert_gone(processes: Sequence[psutil.Process]) -> None:
    """None of these still runs."""
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive, [process.cmdline() for process in alive]


@contextlib.contextmanager
def serving(folder: Path, *args: str, env: dict[str, str] | None = None) -> Iterator[Serving]:
    """`offload serve *args` for the length of the `with` block; stderr and log in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), **(env or {})}
    at = args.index("--") if "--" in args else len(args)
    own = [*args[:at]]
    if "--log" not in own:
        own += ["--log", str(folder / "server.log")]
    if "--port" not in own:
        own += ["--port", "0"]
    argv = [sys.executable, "-P", "-m", "offload", "serve", *own, *args[at:]]
    environment["PYTHONPATH"] = os.getcwd()
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
            start_new_session=True,
        )
    try:
        yield Serving(process, folder)
    finally:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


def can_bind(port: int) -> bool:
    """Whether nobody listens at this port any more."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def data_bytes(pid: int) -> int:
    """What RLIMIT_DATA counts of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmData")


def limit_growth(pid: int, n_bytes: int) -> None:
    """From now on this process may allocate `n_bytes` more and not a page beyond."""
    limit = data_bytes(pid) + n_bytes
    resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
