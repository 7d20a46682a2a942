"""What does the child of a session answer, request after request?

One JSON line per message, both ways. The parent says how to load, and then
`{"generate": …}` or `{"chat": …}` as often as it likes, and `{"cancel": true}` while
one is being answered; the child says `{"progress": …}` while it loads, `{"loaded": …}`,
and for every request any number of `{"token": …}` and `{"n_prompt_done": …}` before
`{"done": …}` or `{"error": …}`. Imported by children only.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from offload.engine.breakdown import read_breakdown, read_tensors
from offload.engine.cards import add_card
from offload.engine.decoding import Decoder
from offload.engine.library import Library
from offload.engine.load_options import LoadOptions
from offload.engine.loading import Loaded
from offload.errors import LlamaCppError, OffloadError, UsageError

_PROGRESS_STEP: Final = 0.01
_PROGRESS_EVERY_S: Final = 0.5


def answer_session(
    library: Library,
    request: Mapping[str, Any],
    options: LoadOptions,
    lines: Iterable[bytes],
    reply: Callable[[Any], None],
) -> None:
    """Load the model, then answer until the parent closes its end."""
    is_cancelled = threading.Event()
    requests = _requests(lines, is_cancelled)
    devices = find_devices(library, request["endpoints"], request["devices"])
    if request["n_devices"] not in (None, len(devices)):
        names = ", ".join(library.device_name(device) for device in devices) or "none"
        raise UsageError(f"planned for {request['n_devices']} cards, but here are: {names}")
    start_s = time.perf_counter()
    loaded = Loaded(library, options, devices, no_alloc=False, on_progress=_reporter(reply))
    load_s = time.perf_counter() - start_s
    api = library.api
    if api.llama_model_has_encoder(loaded.model) or api.llama_model_is_diffusion(loaded.model):
        raise UsageError("this model does not write text token by token; it cannot be run here")
    decoder = Decoder(library, loaded)
    about = {
        "load_s": load_s,
        "model_bytes": int(api.llama_model_size(loaded.model)),
        "n_ctx": decoder.n_ctx,
        "has_text": decoder.has_text,
    }
    reply({"loaded": report_loaded(library, loaded, devices) | about})
    for message in requests:
        is_cancelled.clear()
        try:
            if "chat" in message:
                reply({"done": {"prompt": decoder.chat_prompt(message["chat"])}})
            else:
                reply({"done": decoder.run(message["generate"], reply, is_cancelled.is_set)})
        except OffloadError as error:
            reply({"error": str(error), "is_usage": isinstance(error, UsageError)})


def find_devices(
    library: Library, endpoints: Iterable[str], names: Iterable[str] | None
) -> list[int]:
    """The devices behind the RPC servers, or the `names`d ones among them and our own.

    Without servers and names every GPU that this llama.cpp sees, which may be none. Raises
    LlamaCppError for a device that is not here, and says which are.
    """
    remote = [device for endpoint in endpoints for device in add_card(library, endpoint)]
    if names is None and remote:
        return remote
    ggml = library.ggml
    everything = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    local = [d for d in everything if ggml.ggml_backend_dev_type(d) in _GPU_TYPES]
    known = {library.device_name(device): device for device in (*remote, *local)}
    missing = [name for name in names or () if name not in known]
    if missing:
        raise LlamaCppError(
            f"the llama.cpp inside llama-cpp-python has no {', '.join(missing)}"
            f" (it sees {', '.join(known) or 'the CPU only'})"
        )
    return list(known.values()) if names is None else [known[name] for name in names]


_GPU_TYPES: Final = (1, 2)
"""`GGML_BACKEND_DEVICE_TYPE_GPU` and `_IGPU` (ggml/include/ggml-backend.h, b11434)."""


def report_loaded(library: Library, loaded: Loaded, devices: Iterable[int]) -> dict[str, Any]:
    """What `report_from_reply` reads: devices, their buffers, and every tensor."""
    ggml = library.ggml
    devices = list(devices)
    return {
        "devices": [
            {
                "name": library.device_name(device),
                "buffer_type": library.buffer_type_name(ggml.ggml_backend_dev_buffer_type(device)),
            }
            for device in devices
        ],
        "buffers": read_breakdown(library, loaded.context, devices),
        "tensors": read_tensors(library, loaded.model),
    }


def _reporter(reply: Callable[[Any], None]) -> Callable[[float], None]:
    """Says how far loading is, but not for every one of a thousand tensors."""
    told, told_s = 0.0, time.perf_counter()

    def report(fraction: float) -> None:
        nonlocal told, told_s
        now_s = time.perf_counter()
        is_due = fraction - told >= _PROGRESS_STEP or now_s - told_s >= _PROGRESS_EVERY_S
        if is_due or fraction >= 1.0 > told:
            told, told_s = fraction, now_s
            reply({"progress": fraction})

    return report


def _requests(lines: Iterable[bytes], is_cancelled: threading.Event) -> Iterable[Any]:
    """Requests in order; a thread reads them, so that a cancellation is heard at once."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        for line in lines:
            message = json.loads(line)
            if "cancel" in message:
                is_cancelled.set()
            else:
                waiting.put(message)
        waiting.put(None)

    threading.Thread(target=listen, daemon=True).start()
    return iter(waiting.get, None)
