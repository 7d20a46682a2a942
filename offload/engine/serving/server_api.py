"""How is a llama-server asked over HTTP whether it is well, and given a prompt?

`/health`, `/props`, `/tokenize` and `/completion` of tools/server (b11434). No proxy
of the environment is used: the server is on this machine.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import ipaddress
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from offload.errors import LlamaCppError

_ANSWER_MAX_BYTES: Final = 64 << 20
_HEALTH_TIMEOUT_S: Final = 2.0
_STATUS_LENGTH: Final = len("HTTP/1.1 200")


class Health(StrEnum):
    """What `/health` says."""

    READY = "ready"
    LOADING = "loading"
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server listens; `connect_host` is how it is reached from this machine."""

    host: str
    port: int
    prefix: str = ""
    is_tls: bool = False
    api_key: str | None = field(default=None, repr=False)

    @property
    def connect_host(self) -> str:
        """The loopback address of servers that listen everywhere."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)

    @property
    def is_loopback(self) -> bool:
        """Whether nobody outside this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """`http://127.0.0.1:8080`."""
        host = self.connect_host
        bracketed = f"[{host}]" if ":" in host else host
        return f"{'https' if self.is_tls else 'http'}://{bracketed}:{self.port}{self.prefix}"


def ask_health(address: Address) -> Health:
    """Whether the server is ready; any failure to answer in time is SILENT."""
    deadline_s = time.monotonic() + _HEALTH_TIMEOUT_S
    try:
        connection = _connect(address, _HEALTH_TIMEOUT_S)
        try:
            connection.request("GET", f"{address.prefix}/health", headers=_headers(address))
            status = _status(connection.sock, deadline_s)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return Health.SILENT
    return {200: Health.READY, 503: Health.LOADING}.get(status, Health.SILENT)


def _status(sock: socket.socket, deadline_s: float) -> int:
    """Of the answer's first line; 0 for anything else.

    http.client bounds the time between two bytes only: whoever sends one now and then would
    keep us from hearing a signal.
    """
    line = b""
    while len(line) < _STATUS_LENGTH:
        sock.settimeout(max(deadline_s - time.monotonic(), 0.001))
        chunk = sock.recv(_STATUS_LENGTH - len(line))
        if not chunk:
            return 0
        line += chunk
    version, status = line[:9], line[9:]
    return int(status) if version in (b"HTTP/1.1 ", b"HTTP/1.0 ") and status.isdigit() else 0


def ask_json(
    address: Address, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 30.0
) -> Any:
    """The answer of `path`, asked with POST where there is a body; LlamaCppError otherwise."""
    try:
        connection = _connect(address, timeout_s)
        try:
            response = _send(connection, address, path, body)
            data = response.read(_ANSWER_MAX_BYTES)
        finally:
            connection.close()
        answer = json.loads(data)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LlamaCppError(f"llama-server did not answer {path}: {_reason(error)}") from None
    if response.status != 200:
        raise LlamaCppError(f"llama-server refused {path}: {_refusal(answer, response.status)}")
    return answer


def stream_completion(
    address: Address,
    body: Mapping[str, Any],
    *,
    quiet_max_s: float,
    on_open: Callable[[Callable[[], None]], None] = lambda _: None,
) -> Iterator[Mapping[str, Any]]:
    """Events of a streamed `/completion`; LlamaCppError when it breaks or is silent too long.

    `on_open` is handed a function that hangs up, for another thread to call.
    """
    connection = _connect(address, quiet_max_s)
    try:
        connection.connect()
        on_open(functools.partial(_hang_up, connection.sock))
        response = _send(connection, address, "/completion", {**body, "stream": True})
        if response.status != 200:
            answer = json.loads(response.read(_ANSWER_MAX_BYTES))
            raise LlamaCppError(
                f"llama-server refused the prompt: {_refusal(answer, response.status)}"
            )
        for line in response:
            text = line.strip()
            if text.startswith(b"data:") and text != b"data: [DONE]":
                event = json.loads(text.removeprefix(b"data:"))
                if "error" in event:
                    raise LlamaCppError(f"llama-server failed: {_refusal(event, 500)}")
                yield event
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LlamaCppError(f"llama-server broke off /completion: {_reason(error)}") from None
    finally:
        connection.close()


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _connect(address: Address, timeout_s: float) -> http.client.HTTPConnection:
    host, port = address.connect_host, address.port
    if not address.is_tls:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    # our own child on this machine, whose certificate is for the name others use
    context = ssl._create_unverified_context()
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def _send(
    connection: http.client.HTTPConnection,
    address: Address,
    path: str,
    body: Mapping[str, Any] | None,
) -> http.client.HTTPResponse:
    data = None if body is None else json.dumps(body).encode()
    connection.request(
        "GET" if data is None else "POST", address.prefix + path, data, _headers(address)
    )
    return connection.getresponse()


def _headers(address: Address) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if address.api_key is not None:
        headers["Authorization"] = f"Bearer {address.api_key}"
    return headers


def _refusal(answer: Any, status: int) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or f"HTTP status {status}")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or str(error) or type(error).__name__)
