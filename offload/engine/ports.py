"""Which loopback port is ours, between choosing it and a server listening on it?

A socket that is bound with SO_REUSEADDR but does not listen keeps the kernel
from handing its port to anyone who asks for a free one, while a server that sets
SO_REUSEADDR too, as ggml's does (`socket_t::create_server`), may still listen on it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

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
            ports.append(Port(number=holder.getsockname()[1]))
        yield tuple(ports)


def is_listening(number: int) -> bool:
    """Whether somebody accepts connections at this port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, number)) == 0
