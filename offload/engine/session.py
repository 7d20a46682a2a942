"""How does a Python program run a model as planned, prompt after prompt?

`load` puts the model into a child process with the plan's own tensor overrides, for
which llama-cpp-python's `Llama` class has no argument, and returns a `Session`.
A child, because llama.cpp ends its process on some errors: here that is an exception.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, Self

from offload.emit import Launch
from offload.engine.conversation import Conversation, nameless_log
from offload.engine.load_options import LoadOptions
from offload.engine.process import started
from offload.engine.report import LoadReport, report_from_reply
from offload.engine.stream import Generation, Sampling, Stream
from offload.engine.targets import (
    Target,
    model_file_bytes,
    n_cards_of,
    played_target,
    real_target,
)
from offload.engine.verify import check_report
from offload.engine.virtual_cards import virtual_cards
from offload.errors import LlamaCppError, UsageError
from offload.host import probe_host
from offload.plan import Plan
from offload.units import format_gib
from offload.verification import Verification

_BASE_TIMEOUT_S: Final = 120.0
_SLOWEST_LOAD_BYTES_PER_S: Final = 20_000_000
_SLOWEST_TOKEN_S: Final = 0.5
_SEED_MAX: Final = (1 << 32) - 2
"""llama.cpp takes 2^32 - 1 for "any seed" (`LLAMA_DEFAULT_SEED`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far loading is: bytes of the file that are where they belong, and since when."""

    n_bytes: int
    total_bytes: int
    elapsed_s: float

    @property
    def bytes_per_s(self) -> float:
        """The mean rate until now."""
        return self.n_bytes / self.elapsed_s if self.elapsed_s else 0.0


def load(
    what: Plan | Launch | LoadOptions,
    *,
    virtual: bool = False,
    endpoints: Sequence[str] = (),
    n_threads: int | None = None,
    on_progress: Callable[[LoadProgress], None] | None = None,
    timeout_s: float | None = None,
) -> Session:
    """Load a model as `what` says, and keep it until the session is closed.

    It runs on the cards the plan names; with `virtual` on loopback RPC servers in their
    place, with `endpoints` on the devices of these RPC servers in the plan's order.
    `n_threads` is for the host's part: all cores, or one beside virtual cards, which have
    one each. `timeout_s` bounds the silence of llama.cpp, not the whole; without it the
    bound grows with the file. Raises LlamaCppError with llama.cpp's last words.
    """
    total_bytes = model_file_bytes(what.model.path if isinstance(what, Plan) else _path(what))
    with ExitStack() as stack:
        if virtual and not endpoints:
            _check_ram(total_bytes)
        if virtual and not endpoints and n_cards_of(what):
            cards = stack.enter_context(virtual_cards(n_cards_of(what)))
            endpoints = [card.endpoint for card in cards]
        if virtual or endpoints:
            target = played_target(what, endpoints, n_threads)
        else:
            target = real_target(what, n_threads)
        return _start(stack, what, target, total_bytes, on_progress, timeout_s)


def _check_ram(model_bytes: int) -> None:
    """Cards that are played here take their weights from this machine's memory, all at once."""
    available = probe_host().memory_available_bytes
    if available is not None and model_bytes > available:
        raise UsageError(
            f"the model has {format_gib(model_bytes)}, and {format_gib(available)} of RAM are free"
            " here, where virtual cards live; try a smaller model, or real cards"
        )


def _names(what: Plan | Launch | LoadOptions, endpoints: Sequence[str]) -> dict[str, str]:
    """Which card each RPC server is or plays, "" where nobody said."""
    cards = [device.name for device in what.devices] if isinstance(what, Plan) else []
    own = [device.endpoint for device in what.devices] if isinstance(what, Plan) else []
    if len(cards) != len(endpoints) or (any(own) and own != list(endpoints)):
        return dict.fromkeys(endpoints, "")
    return dict(zip(endpoints, cards, strict=True))


def _path(what: Launch | LoadOptions) -> str:
    return what.model_path if isinstance(what, Launch) else what.path


def _start(
    stack: ExitStack,
    what: Plan | Launch | LoadOptions,
    target: Target,
    total_bytes: int,
    on_progress: Callable[[LoadProgress], None] | None,
    timeout_s: float | None,
) -> Session:
    log = stack.enter_context(nameless_log())
    process = stack.enter_context(
        started(("offload.engine.child", "session"), python=True, stdin=True, stderr=log)
    )
    conversation = Conversation(
        process, log, what="loading", endpoints=_names(what, target.endpoints)
    )
    conversation.say(
        {
            "options": asdict(target.options),
            "endpoints": target.endpoints,
            "devices": target.devices,
            "n_devices": target.n_devices,
        }
    )
    silence_s = timeout_s or _BASE_TIMEOUT_S + total_bytes / _SLOWEST_LOAD_BYTES_PER_S
    start_s = time.monotonic()
    while "loaded" not in (message := conversation.hear(silence_s)):
        if on_progress is not None:
            n_bytes = round(message["progress"] * total_bytes)
            on_progress(
                LoadProgress(
                    n_bytes=n_bytes,
                    total_bytes=total_bytes,
                    elapsed_s=time.monotonic() - start_s,
                )
            )
    loaded = message["loaded"]
    if loaded["buffers"] is None:
        raise LlamaCppError("this platform hides llama_get_memory_breakdown")
    return Session(
        resources=stack.pop_all(),
        conversation=conversation,
        loaded=loaded,
        what=what,
        target=target,
        pid=process.pid,
        timeout_s=timeout_s,
    )


class Session:
    """A loaded model; made by `load`, ended by `close` or the end of its `with` block."""

    def __init__(
        self,
        *,
        resources: ExitStack,
        conversation: Conversation,
        loaded: Mapping[str, Any],
        what: Plan | Launch | LoadOptions,
        target: Target,
        pid: int,
        timeout_s: float | None,
    ) -> None:
        self._conversation = conversation
        # also when this object is forgotten, or the program ends
        self._end = weakref.finalize(self, resources.close)
        self._stream: Stream | None = None
        n_batch = min(target.options.n_batch, loaded["n_ctx"])
        self._silence_s = timeout_s or _BASE_TIMEOUT_S + n_batch * _SLOWEST_TOKEN_S
        self.plan = what if isinstance(what, Plan) else None
        self.options: LoadOptions = target.options
        self.pid = pid
        """The process llama.cpp runs in."""
        self.report: LoadReport = report_from_reply(loaded, conversation.log_lines())
        self.load_s: float = loaded["load_s"]
        self.model_bytes: int = loaded["model_bytes"]
        self.n_ctx: int = loaded["n_ctx"]
        """Tokens that fit, prompt and answer together."""
        self.has_text: bool = loaded["has_text"]
        """False for a file without a vocabulary: its prompts and answers are token ids."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the model and end its process, and the virtual cards if there are any."""
        self._conversation.is_closed = True
        self._end()

    def check(self) -> Verification | None:
        """What was allocated and where, beside the plan.

        None where no plan was given, or llama.cpp's log was cut short by a full disk.
        """
        if self.plan is None or not self.report.layers:
            return None
        return check_report(self.plan, self.report)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        n_predict: int = -1,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        cache_prompt: bool = False,
    ) -> Stream:
        """Start to generate, at most `n_predict` tokens (-1: until an end or a full context).

        `cache_prompt` keeps what the last prompt has in common with this one, as
        llama-server does; its numbers, and so its tokens, may then differ in the last
        bits, since batches are cut elsewhere. A stream that is not read to its end
        is ended by the next one.
        """
        if n_predict == 0 or n_predict < -1:
            raise UsageError(f"{n_predict} tokens to generate; ask for at least one, -1 for all")
        self._finish()
        self._stream = Stream(
            self._conversation,
            {
                "prompt": prompt if isinstance(prompt, str) else list(prompt),
                "n_predict": n_predict,
                "sampling": _checked(sampling or Sampling()),
                "stop": [stop] if isinstance(stop, str) else list(stop),
                "cache_prompt": cache_prompt,
            },
            silence_s=self._silence_s,
            load_s=self.load_s,
            report=self.report,
        )
        return self._stream

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        n_predict: int = -1,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        cache_prompt: bool = False,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        """The whole answer; `on_text` hears every piece of it as it comes. See `stream`."""
        stream = self.stream(
            prompt, n_predict=n_predict, sampling=sampling, stop=stop, cache_prompt=cache_prompt
        )
        for text in stream:
            if on_text is not None and text:
                on_text(text)
        return stream.result

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """`[{"role": "user", "content": "…"}, …]` as a prompt, by the model's own template.

        Raises UsageError for models without one, or with one that
        `llama_chat_apply_template` does not know.
        """
        self._finish()
        rows = [{"role": m["role"], "content": m["content"]} for m in messages]
        self._conversation.what = "applying the chat template"
        self._conversation.say({"chat": rows})
        return str(self._conversation.hear(self._silence_s)["done"]["prompt"])

    def _finish(self) -> None:
        """Make the child ready for a request: nothing of an earlier one may still come."""
        if self._stream is not None and not self._stream.cancel(self._silence_s):
            raise LlamaCppError("the last generation cannot be ended; close this session")


def _checked(sampling: Sampling) -> dict[str, Any]:
    seed = secrets.randbelow(_SEED_MAX) if sampling.seed is None else sampling.seed
    if not 0 <= seed <= _SEED_MAX:
        raise UsageError(f"seed {seed}: from 0 to {_SEED_MAX}")
    if not (0 <= sampling.temperature < float("inf")):
        raise UsageError(f"temperature {sampling.temperature}: 0 or more")
    return {**asdict(sampling), "seed": seed}
