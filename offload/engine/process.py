"""How is a child started so that it never outlives us and its failure becomes our error?

Every child gets a session of its own (Ctrl-C reaches us, not it) and a lifeline:
a pipe whose other end only we hold. See offload/engine/guard.py for the far side.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, cast

from offload.engine.guard import EXIT_REFUSED
from offload.engine.log import last_words, telling_line
from offload.errors import LlamaCppError, UsageError

_PACKAGE_ROOT: Final = str(Path(__file__).parents[2])
_STOP_TIMEOUT_S: Final = 5.0
_CHUNK_BYTES: Final = 64 << 10
_OUTPUT_MAX_BYTES: Final = 256 << 20
"""A reply names every tensor of a model, and a verbose log too; programs that never end do more."""
_UNCHANGED: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A child that ended by itself."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: bytes
    log: tuple[str, ...]


def child_environment() -> dict[str, str]:
    """Our environment, with this package importable and llama.cpp made a good neighbour.

    OpenMP threads sleep when idle, since several llama.cpp processes on few cores
    otherwise spin against each other; an abort does not start a debugger.
    """
    path = os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH"))))
    ours = {"PYTHONPATH": path, "OMP_WAIT_POLICY": "passive", "GGML_NO_BACKTRACE": "1"}
    return {**os.environ, **ours}


@contextlib.contextmanager
def started(
    argv: Sequence[str],
    *,
    python: bool,
    stdin: bool,
    stderr: IO[bytes] | int,
    stdout: IO[bytes] | int = subprocess.PIPE,
    environment: Mapping[str, str] = _UNCHANGED,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a child for the length of the `with` block, then make sure that it is gone.

    `argv` is a program, or with `python` a module of ours with its arguments; a
    module gets `--lifeline FD` appended and watches it itself.
    """
    _open_standard_streams()
    lifeline_read, lifeline_write = os.pipe()
    # -P: a file in the user's folder must not stand in for a module of ours
    if python:
        command = [sys.executable, "-P", "-m", *argv, "--lifeline", str(lifeline_read)]
    else:
        command = [sys.executable, "-P", "-m", "offload.engine.guard", str(lifeline_read), *argv]
    try:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(lifeline_read,),
                env={**child_environment(), **environment},
                start_new_session=True,
            )
        finally:
            os.close(lifeline_read)
    except BaseException:
        os.close(lifeline_write)
        raise
    try:
        yield process
    finally:
        os.close(lifeline_write)
        _end(process, by_itself=not python)


def _open_standard_streams() -> None:
    """Whoever starts us without them (`<&-`) would have our pipes take their numbers."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number


def run_program(
    argv: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] = _UNCHANGED
) -> Finished:
    """Run a program to its end, whatever its exit code; LlamaCppError on a time-out."""
    return _run(argv, python=False, request=None, timeout_s=timeout_s, environment=environment)


def run_job(
    job: str,
    request: Mapping[str, Any],
    *,
    timeout_s: float,
    library_folder: Path | None = None,
) -> tuple[Any, Finished]:
    """Let `offload.engine.child` do one job; its reply and how it ended.

    `library_folder` replaces the libllama that llama-cpp-python ships by another
    build of the same interface. Raises what the child refused or how it died.
    """
    ended = _run(
        ("offload.engine.child", job),
        python=True,
        request=json.dumps(request).encode(),
        timeout_s=timeout_s,
        environment={"LLAMA_CPP_LIB_PATH": str(library_folder)} if library_folder else {},
    )
    if ended.exit_code == EXIT_REFUSED and ended.stdout:
        raise _refusal(ended)
    if ended.exit_code != 0 or not ended.stdout:
        raise failure(ended, f"llama.cpp ({job})")
    return json.loads(ended.stdout), ended


def _refusal(ended: Finished) -> LlamaCppError | UsageError:
    reply = json.loads(ended.stdout.splitlines()[-1])
    if reply["is_usage"]:
        return UsageError(reply["error"])
    words = telling_line(ended.log)
    return LlamaCppError(
        f"{reply['error']}: {words}" if words else reply["error"],
        argv=ended.argv,
        exit_code=ended.exit_code,
        last_lines=last_words(ended.log),
    )


def failure(ended: Finished, what: str) -> LlamaCppError:
    """The error for a child that ended badly: what, how, and llama.cpp's own words."""
    return LlamaCppError(
        f"{what} {describe_exit(ended.exit_code)}: {telling_line(ended.log) or 'it said nothing'}",
        argv=ended.argv,
        exit_code=ended.exit_code,
        last_lines=last_words(ended.log),
    )


def describe_exit(exit_code: int) -> str:
    """`was ended by SIGABRT`, `ended with exit code 1`."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(number).name}"
    return f"ended with exit code {exit_code}"


def _run(
    argv: Sequence[str],
    *,
    python: bool,
    request: bytes | None,
    timeout_s: float,
    environment: Mapping[str, str] = _UNCHANGED,
) -> Finished:
    with started(
        argv,
        python=python,
        stdin=request is not None,
        stderr=subprocess.PIPE,
        environment=environment,
    ) as process:
        try:
            stdout, stderr = _communicate(process, request, timeout_s)
            process.wait(timeout_s)
        except subprocess.TimeoutExpired as expired:
            lines = (expired.stderr or b"").decode(errors="replace").splitlines()
            raise LlamaCppError(
                f"{' '.join(argv[:2])} did not end within {timeout_s:g} s",
                argv=argv,
                last_lines=last_words(lines),
            ) from None
        except OverflowError:
            raise LlamaCppError(
                f"{' '.join(argv[:2])} says more than {_OUTPUT_MAX_BYTES >> 20} MiB, which no"
                " program of llama.cpp does",
                argv=argv,
            ) from None
    return Finished(
        argv=tuple(argv),
        exit_code=process.returncode,
        stdout=stdout,
        log=tuple(stderr.decode(errors="replace").splitlines()),
    )


def _communicate(
    process: subprocess.Popen[bytes], request: bytes | None, timeout_s: float
) -> tuple[bytes, bytes]:
    """What `Popen.communicate` does, but OverflowError where there is no end of output."""
    assert process.stdout is not None and process.stderr is not None
    deadline_s = time.monotonic() + timeout_s
    heard: dict[IO[bytes], bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for stream in heard:
            selector.register(stream, selectors.EVENT_READ)
        left = memoryview(request or b"")
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            ready = selector.select(max(deadline_s - time.monotonic(), 0.0))
            if not ready and time.monotonic() >= deadline_s:
                output, errors = (bytes(text) for text in heard.values())
                raise subprocess.TimeoutExpired(process.args, timeout_s, output, errors)
            for key, _ in ready:
                stream = cast("IO[bytes]", key.fileobj)
                if stream in heard:
                    is_over = _hear(stream, heard[stream])
                else:
                    left = _tell(stream, left)
                    is_over = not left
                if is_over:
                    selector.unregister(stream)
                    stream.close()
    output, errors = (bytes(text) for text in heard.values())
    return output, errors


def _hear(stream: IO[bytes], heard: bytearray) -> bool:
    """Take in what there is; whether that was the last."""
    chunk = os.read(stream.fileno(), _CHUNK_BYTES)
    heard += chunk
    if len(heard) > _OUTPUT_MAX_BYTES:
        raise OverflowError
    return not chunk


def _tell(stream: IO[bytes], left: memoryview) -> memoryview:
    """Hand over what goes in; what is left then."""
    try:
        return left[os.write(stream.fileno(), left[:_CHUNK_BYTES]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]  # it does not want to know; its end says why


def _end(process: subprocess.Popen[bytes], *, by_itself: bool) -> None:
    """Kill the child and everything in its session, and reap it.

    A guard that has lost its lifeline kills and reaps its program `by_itself`; killed
    at once it would leave that to process 1, which in a container may not do it.
    """
    if by_itself:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
