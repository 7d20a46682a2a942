"""How is a llama-server timed, with the least noise for the seconds it takes?

It stays alive between repetitions and tells its own clock's seconds for prompt and answer
(`timings`, tools/server/server-task.cpp, b11434), so loading is paid once for many
repetitions and HTTP is no part of them. Every build of llama.cpp has one. The
prompt is read anew each time, and answered at length from the cache. [edge]
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from offload.emit import emit_server_args
from offload.engine.binaries import read_build
from offload.engine.conversation import nameless_log
from offload.engine.log import last_words
from offload.engine.ports import LOOPBACK, reserved_ports
from offload.engine.process import Finished, failure, started
from offload.engine.serving.server_api import Address, Health, ask_health, ask_json
from offload.errors import LlamaCppError
from tuner.paired.arm import LaunchArm, Loaded, Sizes, build_name

_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArm(LaunchArm):
    """A llama-server on a loopback port, kept alive."""

    program: Path

    @property
    def build(self) -> str:
        """By its `--version`."""
        return build_name(read_build(self.program))

    @property
    def name(self) -> str:
        """As in reports."""
        return f"llama-server {self.build}"

    @contextlib.contextmanager
    def open(self) -> Iterator[Loaded]:
        """Start it and wait until it is ready."""
        with reserved_ports(1) as (port,), nameless_log() as log:
            argv = self.argv(port.number)
            with started(argv, python=False, stdin=False, stdout=log, stderr=log) as process:
                address = Address(host=LOOPBACK, port=port.number)
                _wait_ready(process, address, argv, log, self.load_timeout_s)
                yield _Serving(address=address, arm=self, pid=_program_pid(process.pid))

    def argv(self, port: int) -> list[str]:
        """Its command line."""
        build = read_build(self.program)
        argv = [*emit_server_args(self.launch, str(self.program), build=build)]
        argv += ["--host", LOOPBACK, "--port", str(port)]
        argv += [] if self.n_threads is None else ["-t", str(self.n_threads)]
        # keeping states of prompts beside the cache is work of its own
        argv += ["--cache-ram", "0"] if "--cache-ram" in (build.flags or ()) else []
        return argv


def _wait_ready(
    process: subprocess.Popen[bytes],
    address: Address,
    argv: Sequence[str],
    log: IO[bytes],
    timeout_s: float,
) -> None:
    deadline_s = time.monotonic() + timeout_s
    while ask_health(address) is not Health.READY:
        if (exit_code := process.poll()) is not None:
            ended = Finished(argv=tuple(argv), exit_code=exit_code, stdout=b"", log=_lines(log))
            raise failure(ended, "llama-server")
        if time.monotonic() > deadline_s:
            raise LlamaCppError(
                f"llama-server is not ready after {timeout_s:.0f} s",
                last_lines=last_words(_lines(log)),
            )
        time.sleep(_POLL_S)


def _program_pid(guard_pid: int) -> int | None:
    """The guard's only child is the server."""
    import psutil

    children = psutil.Process(guard_pid).children()
    return int(children[0].pid) if children else None


def _lines(log: IO[bytes]) -> tuple[str, ...]:
    size = os.fstat(log.fileno()).st_size
    return tuple(os.pread(log.fileno(), size, 0).decode(errors="replace").splitlines())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    address: Address
    arm: ServerArm
    pid: int | None

    def time(self, sizes: Sizes) -> dict[str, float]:
        """The server's own seconds; the first token of an answer comes with the prompt."""
        read = self._answer(sizes, n_predict=1, cache_prompt=False)
        written = self._answer(sizes, n_predict=sizes.n_gen + 1, cache_prompt=True)
        return seconds_of(read, written, sizes)

    def _answer(self, sizes: Sizes, *, n_predict: int, cache_prompt: bool) -> Mapping[str, Any]:
        body = {
            "prompt": self.arm.prompt(sizes),
            "n_predict": n_predict,
            "cache_prompt": cache_prompt,
            "ignore_eos": True,
            "temperature": 0.0,
            "samplers": ["top_k"],
            "top_k": 1,
        }
        answer = ask_json(self.address, "/completion", body, timeout_s=sizes.patience_s)
        timings: Mapping[str, Any] = answer.get("timings", {})
        return timings


def seconds_of(
    read: Mapping[str, Any], written: Mapping[str, Any], sizes: Sizes
) -> dict[str, float]:
    """Seconds per token from the `timings` of an answer of one token and of a longer one."""
    try:
        n_prompt, n_gen = int(read["prompt_n"]), int(written["predicted_n"]) - 1
        prompt_s, gen_s = read["prompt_ms"] / 1e3, written["predicted_ms"] / 1e3
    except (KeyError, TypeError):
        raise LlamaCppError("this llama-server tells no timings; name another build") from None
    if (n_prompt, n_gen) != (sizes.n_prompt, sizes.n_gen):
        raise LlamaCppError(
            f"llama-server read {n_prompt} tokens and wrote {n_gen + 1}, asked for"
            f" {sizes.n_prompt} and {sizes.n_gen + 1}; is the context (-c) large enough?"
        )
    return {"decode": gen_s / n_gen, "prefill": prompt_s / n_prompt}
