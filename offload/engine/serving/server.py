"""One llama-server from its start to its end: is it ready, how far is it, and how is it stopped?

The process hangs on a lifeline (offload/engine/process.py), so it never outlives us.
What to do when it ends by itself is not decided here: see offload/engine/serving/supervise.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final

import psutil

from offload.engine.process import started
from offload.engine.serving.readiness import LoadProgress, LoadWatch, Patience
from offload.engine.serving.server_api import Address, Health, ask_health
from offload.engine.serving.server_log import LogFile, LogPump
from offload.engine.serving.stopping import Flag

_POLL_S: Final = 0.1
_KILL_TIMEOUT_S: Final = 10.0
_FIND_EVERY_S: Final = 2.0
_UNCHANGED: Final[Mapping[str, str]] = MappingProxyType({})


class Waited(StrEnum):
    """How waiting for a server ended."""

    READY = "ready"
    ENDED = "ended"
    HUNG = "hung"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Resident bytes of one process: its own, and pages of files it has mapped."""

    own_bytes: int
    file_bytes: int


class Server:
    """A llama-server; use as a context manager, which starts it and makes sure that it is gone."""

    def __init__(
        self,
        argv: Sequence[str],
        address: Address,
        log_file: LogFile,
        *,
        total_bytes: int,
        environment: Mapping[str, str] = _UNCHANGED,
    ) -> None:
        """`total_bytes` is the size of the model, for progress and patience."""
        self.argv = tuple(argv)
        self.address = address
        self._log_file = log_file
        self._total_bytes = total_bytes
        self._environment = environment
        self._stack = contextlib.ExitStack()
        self._program: psutil.Process | None = None
        self._found_s = 0.0
        self._exit_code: int | None = None

    def __enter__(self) -> Server:
        """Start the process."""
        with contextlib.ExitStack() as stack:
            self._log = LogPump(self._log_file)
            stack.callback(self._log.close)
            assert self._log.write_fd is not None
            self._guard = stack.enter_context(
                started(
                    self.argv,
                    python=False,
                    stdin=False,
                    stdout=self._log.write_fd,
                    stderr=self._log.write_fd,
                    environment=self._environment,
                )
            )
            self._log.started()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process at once if it still runs."""
        self._stack.close()
        if self._exit_code is None:
            self._exit_code = self._guard.returncode

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + signal where a signal ended it."""
        if self._exit_code is None:
            self._exit_code = self._guard.poll()
        return self._exit_code

    @property
    def pid(self) -> int | None:
        """llama-server's own process id; None before it runs and after its end."""
        program = self._find_program()
        return None if program is None else int(program.pid)

    @property
    def n_lines(self) -> int:
        """Lines of its log so far."""
        return self._log.n_lines

    def lines(self, since: int = 0) -> list[str]:
        """The last lines of its log (its very last once it has ended), or those since `n_lines`."""
        if self.exit_code is not None:
            self._log.close()
        return self._log.lines(since)

    def health(self) -> Health:
        """What `/health` says; SILENT for a process that is gone, whoever may answer there."""
        return Health.SILENT if self.exit_code is not None else ask_health(self.address)

    def memory(self) -> ProcessMemory | None:
        """What the process holds in RAM; None where it is gone or not ours to see."""
        program = self._find_program()
        return None if program is None else memory_of(int(program.pid))

    def wait_ready(
        self,
        patience: Patience,
        stop: Flag,
        on_progress: Callable[[LoadProgress], None] = lambda _: None,
    ) -> Waited:
        """Wait until it answers, ends, hangs (see readiness.py), or `stop` is set."""
        watch = LoadWatch(self._total_bytes, time.monotonic(), patience)
        while not stop.is_set():
            if self.exit_code is not None:
                return Waited.ENDED
            if self.health() is Health.READY:
                return Waited.READY
            now_s = time.monotonic()
            on_progress(self._look(watch, now_s))
            if watch.is_hung(now_s):
                return Waited.HUNG
            stop.wait(_POLL_S)
        return Waited.STOPPED

    def stop(self, grace_s: float, hurry: Flag | None = None) -> int | None:
        """SIGTERM, and SIGKILL after `grace_s` or once `hurry` is set; the exit code."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                self._guard.send_signal(signal.SIGTERM)
            deadline_s = time.monotonic() + grace_s
            while self.exit_code is None and time.monotonic() < deadline_s:
                if hurry is not None and hurry.is_set():
                    break
                time.sleep(_POLL_S / 4)
        if self.exit_code is None:
            for program in self._below():
                with contextlib.suppress(psutil.Error):
                    program.kill()
            with contextlib.suppress(Exception):
                self._guard.wait(_KILL_TIMEOUT_S)
        return self.exit_code

    def _below(self) -> list[Any]:
        """All processes below the guard: llama-server, or a script and what it has started."""
        with contextlib.suppress(psutil.Error):
            return list(psutil.Process(self._guard.pid).children(recursive=True))
        return []

    def _find_program(self) -> psutil.Process | None:
        """Of these the one that holds the most memory, looked for again every now and then."""
        if self.exit_code is not None:
            return None
        now_s = time.monotonic()
        with contextlib.suppress(psutil.Error):
            is_known = self._program is not None and self._program.is_running()
            if not is_known or now_s - self._found_s > _FIND_EVERY_S:
                self._program = max(self._below(), key=_resident_bytes, default=None)
                self._found_s = now_s
        return self._program

    def _look(self, watch: LoadWatch, now_s: float) -> LoadProgress:
        read_bytes, cpu_s = 0, 0.0
        if (program := self._find_program()) is not None:
            with contextlib.suppress(psutil.Error):
                times = program.cpu_times()
                cpu_s = float(times.user + times.system)
            memory = memory_of(int(program.pid))
            read_bytes = _read_bytes(program) + (memory.file_bytes if memory else 0)
        return watch.see(now_s, done_bytes=read_bytes, n_lines=self._log.n_lines, cpu_s=cpu_s)


def _resident_bytes(program: Any) -> int:
    with contextlib.suppress(psutil.Error):
        return int(program.memory_info().rss)
    return 0


def memory_of(pid: int) -> ProcessMemory | None:
    """Resident memory of a process of ours; None where it cannot be seen."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return _memory_elsewhere(pid)
    kib = {key: value.split()[0] for line in status.splitlines() for key, _, value in
           [line.partition(":")] if key.startswith("Rss")}  # fmt: skip
    if "RssAnon" not in kib:
        return None
    return ProcessMemory(
        own_bytes=(int(kib["RssAnon"]) + int(kib.get("RssShmem", 0))) * 1024,
        file_bytes=int(kib.get("RssFile", 0)) * 1024,
    )


def _memory_elsewhere(pid: int) -> ProcessMemory | None:
    if os.path.isdir("/proc/self"):
        return None
    try:
        return ProcessMemory(own_bytes=int(psutil.Process(pid).memory_info().rss), file_bytes=0)
    except psutil.Error:
        return None


def _read_bytes(program: Any) -> int:
    """Bytes this process has read by itself; what it maps instead shows as pages of files."""
    try:
        return int(program.io_counters().read_chars)
    except (psutil.Error, AttributeError, OSError):
        return 0
