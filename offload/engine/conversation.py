"""How do we and a child of ours talk in JSON lines, and what if it falls silent or dies?

The far side is offload/engine/child.py. Its log goes to a nameless file: a pipe that
nobody empties would fill, and a disk that is full only cuts the log short.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any, Final

from offload.engine.log import last_words, telling_line
from offload.engine.process import Finished, failure
from offload.engine.remedy import remedy
from offload.errors import LlamaCppError, UsageError

_CHUNK_BYTES: Final = 1 << 16
_REAP_TIMEOUT_S: Final = 5.0
_CONNECT_TIMEOUT_S: Final = 1.0
_GONE_ATTEMPTS: Final = 5
_GONE_PAUSE_S: Final = 0.1


def nameless_log() -> IO[bytes]:
    """A file for a child's log that is gone with us."""
    return tempfile.TemporaryFile()


class Conversation:
    """Messages to and from one child; it is somebody else's to start and to end.

    `endpoints` are the RPC servers it uses, and what the user calls the cards there.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        log: IO[bytes],
        *,
        what: str,
        endpoints: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._log = process, log
        # past their buffers: what cannot be sent must not wait there for the end
        self._to_child, self._from_child = process.stdin.fileno(), process.stdout.fileno()
        self._unread = b""
        self._endpoints = endpoints
        self.is_closed = False
        self.what = what
        """What the child is doing, for the errors: `loading`, `generating`."""

    def say(self, message: Mapping[str, Any]) -> None:
        """Send one message; a child that is gone is noticed when its answer is awaited.

        Raises LlamaCppError once `is_closed`: then the child was ended on purpose.
        """
        if self.is_closed:
            raise LlamaCppError("this session is closed; load the model again")
        text = json.dumps(message).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while text:
                text = text[os.write(self._to_child, text) :]

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """The child's next message.

        Raises what the child refused, LlamaCppError with llama.cpp's last words when it
        died, and LlamaCppError when it was silent for `timeout_s`.
        """
        message = self.hear_within(timeout_s)
        if message is None:
            raise LlamaCppError(
                f"llama.cpp ({self.what}) said nothing for {timeout_s:.0f} s;"
                " a card or its link may hang, give a larger timeout_s if it is only slow",
                last_lines=last_words(self.log_lines()),
            )
        if "error" in message:
            raise self._refusal(message)
        return message

    def hear_within(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, or None after `timeout_s`; a refusal is a message like others."""
        poll = select.poll()
        poll.register(self._from_child, select.POLLIN)
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                return None
            chunk = os.read(self._from_child, _CHUNK_BYTES)
            if not chunk:
                raise self._death()
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def log_lines(self) -> tuple[str, ...]:
        """Everything llama.cpp has said so far."""
        size = os.fstat(self._log.fileno()).st_size
        return tuple(os.pread(self._log.fileno(), size, 0).decode(errors="replace").splitlines())

    def _death(self) -> LlamaCppError:
        # its output closes a moment before it can be reaped
        try:
            exit_code = self._process.wait(_REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            exit_code = 0
        lines = self.log_lines()
        ended = Finished(argv=("llama.cpp",), exit_code=exit_code, stdout=b"", log=lines)
        gone = self._gone()
        where = f", and nothing answers at {', '.join(gone)} any more" if gone else ""
        return self._explained(failure(ended, f"llama.cpp ({self.what}{where})"))

    def _gone(self) -> list[str]:
        """RPC servers where nothing answers; one that was killed may still do so for a moment."""
        for attempt in range(_GONE_ATTEMPTS if self._endpoints else 0):
            time.sleep(_GONE_PAUSE_S if attempt else 0.0)
            gone = [
                f"{endpoint} ({card})" if card else endpoint
                for endpoint, card in self._endpoints.items()
                if not answers(endpoint)
            ]
            if gone:
                return gone
        return []

    def _refusal(self, message: Mapping[str, Any]) -> LlamaCppError | UsageError:
        if message["is_usage"]:
            return UsageError(message["error"])
        lines = self.log_lines()
        words = telling_line(lines)
        text = f"{message['error']}: {words}" if words else message["error"]
        return self._explained(LlamaCppError(text, last_lines=last_words(lines)))

    def _explained(self, error: LlamaCppError) -> LlamaCppError:
        """The same error with the user's names of the cards, and what to try at its end."""
        advice = remedy(error.exit_code, (str(error), *error.last_lines))
        text = f"{error}; {advice}" if advice else str(error)
        for endpoint, card in self._endpoints.items():
            # a server's devices share a buffer type but for its number
            text = text.replace(f"RPC0[{endpoint}]", f"{card or 'RPC0'}[{endpoint}]")
        return LlamaCppError(
            text, argv=error.argv, exit_code=error.exit_code, last_lines=error.last_lines
        )


def answers(endpoint: str) -> bool:
    """Whether somebody accepts connections at `host:port`."""
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
