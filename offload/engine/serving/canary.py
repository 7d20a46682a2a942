"""Does a prompt as long as the context fit too, and how much memory does it take beyond the load?

llama.cpp reserves its compute buffers for the worst case, but backends allocate
more when they meet one: pools, work buffers, kernels. The prompt is of random words,
so that all experts are met; what grows is looked at while it is read.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from offload.engine.serving.server import Server, memory_of
from offload.engine.serving.server_api import Address, ask_json, stream_completion
from offload.engine.serving.stopping import Flag
from offload.errors import LlamaCppError
from offload.plan import Plan

_LOOK_EVERY_S: Final = 0.2
_ROOM_TOKENS: Final = 8
"""Left of a slot's context for what the template of a model adds, and an answer."""
_WORD_CHARS: Final = "abcdefghijklmnopqrstuvwxyz"
_QUIET_MAX_S: Final = 3600.0
"""One batch over a slow link; whether the server lives is watched apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryResult:
    """How it went; `growth_bytes` is by device name, "CPU" for the server's own RAM.

    Devices whose memory cannot be seen from here are not in it.
    """

    n_tokens: int
    survived: bool
    growth_bytes: Mapping[str, int]
    error: str = ""


@dataclass(slots=True)
class _Progress:
    n_sent: int = 0
    n_read: int = 0
    error: str = ""
    answered: bool = False
    hang_up: Callable[[], None] = field(default=lambda: None)
    done: threading.Event = field(default_factory=threading.Event)


class MemoryWatch:
    """What each device of a plan holds now, as far as this machine shows it."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server = server
        self._cuda = any(device.name.startswith("CUDA") for device in plan.devices)
        self._names = {device.name for device in plan.devices}
        endpoints = {d.endpoint: d.name for d in reversed(plan.devices) if d.endpoint}
        self._pids = {
            name: pid for e, name in endpoints.items() if (pid := _pid_listening(e)) is not None
        }
        self._start = self.look()
        self._peak = dict(self._start)

    def look(self) -> dict[str, int]:
        """Bytes by device name."""
        now: dict[str, int] = {}
        if (memory := self._server.memory()) is not None:
            now["CPU"] = memory.own_bytes
        for name, pid in self._pids.items():
            if (memory := memory_of(pid)) is not None:
                now[name] = memory.own_bytes
        return now | (self._cuda_used() if self._cuda else {})

    def update(self) -> None:
        """Look again, and keep the highest."""
        for name, n_bytes in self.look().items():
            self._peak[name] = max(n_bytes, self._peak.get(name, 0))

    @property
    def growth_bytes(self) -> dict[str, int]:
        """The highest less the first."""
        return {name: self._peak[name] - n for name, n in self._start.items()}

    def _cuda_used(self) -> dict[str, int]:
        import os

        from offload.nvml import cuda_order, read_cards

        cards, _ = read_cards()
        try:
            ordered, _ = cuda_order(cards, os.environ)
        except (TypeError, ValueError):
            return {}
        used = {
            f"CUDA{i}": c.memory_total_bytes - c.memory_free_bytes for i, c in enumerate(ordered)
        }
        return {name: n for name, n in used.items() if name in self._names}


def run_canary(
    server: Server,
    plan: Plan,
    n_tokens: int,
    stop: Flag,
    on_progress: Callable[[int, int], None] = lambda n_read, n_sent: None,
) -> CanaryResult | None:
    """Send one prompt of `n_tokens` (0: as long as a slot) and watch; None once `stop` is set.

    A server that dies of it, refuses it or breaks off is an answer, not an error.
    """
    watch = MemoryWatch(server, plan)
    progress = _Progress()
    thread = threading.Thread(
        target=_send, args=(server.address, n_tokens, progress), daemon=True, name="canary"
    )
    thread.start()
    while not progress.done.wait(_LOOK_EVERY_S):
        if stop.is_set():
            # llama-server does not stop before its clients have gone
            progress.hang_up()
            return None
        watch.update()
        on_progress(progress.n_read, progress.n_sent)
        if server.exit_code is not None:
            progress.done.wait(_LOOK_EVERY_S)
            break
    if server.exit_code is None:
        watch.update()
    return CanaryResult(
        n_tokens=progress.n_sent,
        survived=progress.answered,
        growth_bytes=watch.growth_bytes,
        error=progress.error,
    )


def make_prompt(n_chars: int, seed: int = 0) -> str:
    """Random words, the same for the same seed."""
    rng = random.Random(seed)
    words, n = [], 0
    while n < n_chars:
        word = "".join(rng.choices(_WORD_CHARS, k=rng.randint(2, 9)))
        words.append(word)
        n += len(word) + 1
    return " ".join(words)[:n_chars]


def _send(address: Address, n_tokens: int, progress: _Progress) -> None:
    try:
        tokens = _prompt_tokens(address, n_tokens)
        progress.n_sent = len(tokens)
        body = {
            "prompt": tokens,
            "n_predict": 1,
            "temperature": 0.0,
            "cache_prompt": False,
            "return_progress": True,
        }

        def keep(hang_up: Callable[[], None]) -> None:
            progress.hang_up = hang_up

        events = stream_completion(address, body, quiet_max_s=_QUIET_MAX_S, on_open=keep)
        for event in events:
            with contextlib.suppress(KeyError, TypeError):
                progress.n_read = int(event["prompt_progress"]["processed"])
            progress.answered = progress.answered or bool(event.get("stop"))
    except LlamaCppError as error:
        progress.error = str(error)
    finally:
        progress.done.set()


def _prompt_tokens(address: Address, n_tokens: int) -> list[int]:
    """Tokens of random words: `n_tokens`, but no more than a slot holds."""
    n_slot = _slot_tokens(ask_json(address, "/props"))
    n = min(n_tokens or n_slot, n_slot)
    found: list[int] = []
    n_chars = 4 * n
    while len(found) < n:
        answer = ask_json(address, "/tokenize", {"content": make_prompt(n_chars)}, timeout_s=300.0)
        found = answer["tokens"] if isinstance(answer, dict) else []
        if not found:
            raise LlamaCppError("llama-server has no tokens for plain words")
        n_chars *= 2
    return found[:n]


def _slot_tokens(props: Any) -> int:
    try:
        n_ctx = int(props["default_generation_settings"]["n_ctx"])
    except (KeyError, TypeError, ValueError):
        raise LlamaCppError("llama-server's /props does not tell the context of a slot") from None
    return max(n_ctx - _ROOM_TOKENS, 1)


def _pid_listening(endpoint: str) -> int | None:
    """The process that serves this endpoint on this machine's loopback; None where unseen."""
    import psutil

    host, _, port = endpoint.rpartition(":")
    if host not in ("127.0.0.1", "localhost"):
        return None
    try:
        connections = psutil.net_connections(kind="tcp4")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        listens = connection.status == psutil.CONN_LISTEN
        if listens and connection.laddr and connection.laddr.port == int(port):
            return connection.pid
    return None
