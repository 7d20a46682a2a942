"""Which devices does llama.cpp itself see? [edge]

Runs `llama-server [--rpc …] --list-devices` and reads what
`common_print_available_devices` (common/arg.cpp, b11434) prints. This is the
only way to see AMD, Intel and Apple cards and RPC servers, and the only one
that names every card as `-dev` and `-ot` need it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from offload.errors import LlamaCppError
from offload.nvml import clean_name
from offload.units import MIB

TIMEOUT_S: Final = 60.0
"""Enough for CUDA to wake eight sleeping cards; a hang is not noticed sooner."""

_OUTPUT_MAX_BYTES: Final = 1 << 20
_DEVICES_MAX: Final = 64
_HEADER: Final = "Available devices:"
_LINE: Final = re.compile(
    r"  (\S+): (.*) \((\d{1,10}) MiB, (\d{1,10}) MiB free\)", re.ASCII | re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDevice:
    """One line of the list; sizes are rounded down to MiB by llama.cpp."""

    name: str
    description: str
    memory_total_bytes: int
    memory_free_bytes: int


def parse_device_list(text: str) -> tuple[ListedDevice, ...] | None:
    """The devices of a `--list-devices` output; None where there is no such list in it.

    Lines before the header are a backend's chatter; lines after it that are no devices
    (`  (none)`, chatter again) are skipped. A description may hold brackets itself.
    """
    lines = text.splitlines()
    if _HEADER not in lines:
        return None
    found = (_LINE.fullmatch(line) for line in lines[lines.index(_HEADER) + 1 :])
    return tuple(
        ListedDevice(
            name=clean_name(match[1]),
            description=clean_name(match[2]),
            memory_total_bytes=int(match[3]) * MIB,
            memory_free_bytes=int(match[4]) * MIB,
        )
        for match in found
        if match
    )[:_DEVICES_MAX]


class _Process:
    """A child in its own group whose output is bounded in size and time."""

    def __init__(self, argv: Sequence[str]) -> None:
        import os
        import subprocess
        import threading

        self.argv = argv
        self.is_too_long = False
        try:
            self.child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C", "GGML_NO_BACKTRACE": "1"},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise LlamaCppError(
                f"cannot run {argv[0]}: {reason}; give the path of llama.cpp's llama-server"
                " with --llama-server",
                argv=argv,
            ) from None
        self.stdout: list[bytes] = []
        self.stderr: list[bytes] = []
        pairs = ((self.child.stdout, self.stdout), (self.child.stderr, self.stderr))
        self.readers = [
            threading.Thread(target=self._drain, args=pair, daemon=True) for pair in pairs
        ]
        for reader in self.readers:
            reader.start()

    def _drain(self, stream: IO[bytes], chunks: list[bytes]) -> None:
        n_bytes = 0
        with stream:
            while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
                n_bytes += len(chunk)
                if n_bytes > _OUTPUT_MAX_BYTES:
                    self.is_too_long = True
                    self.kill()
                    return
                chunks.append(chunk)

    def kill(self) -> None:
        """End the child and whatever it started."""
        import os
        import signal

        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except (OSError, AttributeError):  # gone already, or no process groups here
            self.child.kill()

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, or None where time ran out; the readers have finished after it."""
        import subprocess

        code: int | None
        try:
            code = self.child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        if code is None:
            self.kill()
            self.child.wait()
        for reader in self.readers:
            reader.join(timeout=1.0)
        if any(reader.is_alive() for reader in self.readers):
            self.kill()  # a grandchild holds the pipe open: what was printed so far is enough
        return code


def _last_lines(process: _Process) -> tuple[str, ...]:
    text = b"".join(process.stderr or process.stdout).decode("utf-8", "replace")
    return tuple(filter(None, (clean_name(line, 200) for line in text[-4096:].splitlines())))[-5:]


def read_device_list(
    llama_server: str, rpc: Sequence[str] = (), *, timeout_s: float = TIMEOUT_S
) -> tuple[ListedDevice, ...]:
    """Ask a llama-server binary for its devices; RPC servers are added to them.

    Raises LlamaCppError where it cannot be run, fails (an unreachable RPC server aborts it),
    takes longer than `timeout_s` or prints something else.
    """
    argv = [llama_server, *(["--rpc", ",".join(rpc)] if rpc else []), "--list-devices"]
    process = _Process(argv)
    code = process.wait(timeout_s)
    last_lines = _last_lines(process)
    failure: dict[str, Any] = {"argv": argv, "exit_code": code, "last_lines": last_lines}
    what = f"{llama_server} --list-devices"
    said = f": {last_lines[-1]}" if last_lines else ""
    if process.is_too_long:
        raise LlamaCppError(f"{what} prints without end; is it llama-server?", **failure)
    if code is None:
        raise LlamaCppError(f"{what} did not answer within {timeout_s:g} s", **failure)
    if code != 0:
        hint = f"; are the RPC servers at {', '.join(rpc)} running?" if rpc else ""
        raise LlamaCppError(f"{what} failed with exit code {code}{said}{hint}", **failure)
    listed = parse_device_list(b"".join(process.stdout).decode("utf-8", "replace"))
    if listed is None:
        raise LlamaCppError(
            f"{what} printed no device list; it must be llama.cpp's llama-server", **failure
        )
    return listed
