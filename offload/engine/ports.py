"""Which loopback port is ours, between choosing it and a server listening on it?

A socket that is bound with SO_REUSEADDR but does not listen keeps the kernel
from handing its port to anyone who asks for a free one, while a server that sets
SO_REUSEADDR too, as ggml's does (`socket_t::create_server`), may still listen on it.
Older llama-servers set SO_REUSEPORT alone; once the port is ours, that is allowed too.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from offload.errors import UsageError

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A reserved port of the loopback interface."""

    number: int

    @property
    def endpoint(self) -> str:
        """`127.0.0.1:51030`."""
        return f"{LOOPBACK}:{self.number}"


@contextlib.contextmanager
def reserved_ports(n: int) -> Iterator[tuple[Port, ...]]:
    """`n` free ports, ours for the length of the `with` block."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(n):
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((LOOPBACK, 0))
            _share(holder)
            ports.append(Port(number=holder.getsockname()[1]))
        yield tuple(ports)


@contextlib.contextmanager
def held_port(host: str, number: int) -> Iterator[int]:
    """Port `number` of `host` (0: any free one), ours for the length of the `with` block.

    Raises UsageError where somebody listens there, or nobody here may.
    """
    if not 0 <= number < 1 << 16:
        raise UsageError(f"--port {number}: a port is 0 to 65535")
    with contextlib.ExitStack() as stack:
        try:
            (family, kind, _, _, address), *_ = socket.getaddrinfo(
                host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            holder = stack.enter_context(socket.socket(family, kind))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(address)
            _share(holder)
        except OSError as error:
            raise UsageError(_why_not(host, number, error)) from None
        yield holder.getsockname()[1]


def _share(holder: socket.socket) -> None:
    """Let a server of this user that asks for SO_REUSEPORT have the port that is ours."""
    if hasattr(socket, "SO_REUSEPORT"):
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def _why_not(host: str, number: int, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"--host {host}: {error.strerror}; give an address of this machine"
    if error.errno == errno.EADDRINUSE:
        return f"port {number} of {host} is in use; choose another with --port, or --port 0 for any"
    if error.errno == errno.EACCES:
        return f"port {number} needs privileges; choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: no address of this machine; try 127.0.0.1"
    return f"--host {host} --port {number}: {error.strerror}"


def is_listening(number: int) -> bool:
    """Whether somebody accepts connections at this port of the loopback interface."""
    return is_reachable(f"{LOOPBACK}:{number}", timeout_s=1.0)


def is_reachable(endpoint: str, *, timeout_s: float = 5.0) -> bool:
    """Whether somebody accepts connections at `host:port`."""
    host, _, number = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(number)), timeout=timeout_s).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True
