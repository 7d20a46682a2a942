"""What does a child process do: one job, llama.cpp in process, and then nothing more.

`python -m offload.engine.child JOB --lifeline FD` reads a JSON request, one line of
standard input, and writes its reply to standard output, one line too (a session reads
and writes more of them: offload/engine/answering.py). llama.cpp's log, and
whatever it prints on its way down, is standard error. When the lifeline is
lost (the parent is gone) the process ends at once.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from offload.engine.guard import EXIT_REFUSED, watch_lifeline
from offload.engine.load_options import LoadOptions
from offload.errors import LlamaCppError, OffloadError, UsageError


def _card(request: Mapping[str, Any], reply: Callable[[Any], None]) -> None:
    """Serve one virtual card until the parent ends it."""
    from offload.engine.cards import limit_memory, start_card
    from offload.engine.hooks import play_memory
    from offload.engine.library import Library
    from offload.engine.ports import reserved_ports

    library = Library()
    if request["free_bytes"] is not None:
        play_memory(library, library.cpu, request["free_bytes"])
    with reserved_ports(1) as (port,):
        thread = start_card(library, port)
        if request["limit_bytes"] is not None:
            limit_memory(request["limit_bytes"])
        reply({"endpoint": port.endpoint})
        thread.join()
    raise LlamaCppError(f"the RPC server at {port.endpoint} ended")


def _dry_run(request: Mapping[str, Any], reply: Callable[[Any], None]) -> None:
    """Load without weights; cards without an endpoint are served by this very process."""
    from offload.engine.answering import report_loaded
    from offload.engine.cards import add_card, start_card
    from offload.engine.hooks import play_memory, play_op_offload
    from offload.engine.library import Library
    from offload.engine.loading import Loaded
    from offload.engine.ports import reserved_ports

    library = Library()
    with ExitStack() as stack:
        endpoints = list(request["endpoints"])
        if not endpoints:
            for port in stack.enter_context(reserved_ports(request["n_cards"])):
                start_card(library, port)
                endpoints.append(port.endpoint)
        devices = [device for endpoint in endpoints for device in add_card(library, endpoint)]
        for device, free_bytes in zip(devices, request["free_bytes"], strict=False):
            play_memory(library, device, free_bytes)
        if request["op_offload_like_cuda"]:
            for device in devices:
                play_op_offload(library, device)
        loaded = Loaded(library, _options(request), devices, no_alloc=True)
        reply(report_loaded(library, loaded, devices))


def _session(request: Mapping[str, Any], reply: Callable[[Any], None]) -> None:
    """Load for real, then answer prompts until the parent has no more."""
    from offload.engine.answering import answer_session
    from offload.engine.library import Library

    answer_session(Library(), request, _options(request), sys.stdin.buffer, reply)


def _options(request: Mapping[str, Any]) -> LoadOptions:
    fields = dict(request["options"])
    fields["overrides"] = tuple((pattern, name) for pattern, name in fields["overrides"])
    fields["tensor_split"] = tuple(fields["tensor_split"])
    return LoadOptions(**fields)


_JOBS = {"card": _card, "dry-run": _dry_run, "session": _session}


def main(argv: list[str]) -> None:
    """Do the job named by `argv[0]`; never returns, since C destructors have nothing to add."""
    job, lifeline = _JOBS[argv[0]], int(argv[argv.index("--lifeline") + 1])
    watch_lifeline(lifeline, lambda: os._exit(1))
    # the RPC server prints to standard output, which is ours for the reply
    answer_fd = os.dup(1)
    os.dup2(2, 1)

    def reply(value: Any) -> None:
        text = json.dumps(value).encode() + b"\n"
        while text:
            text = text[os.write(answer_fd, text) :]

    try:
        job(json.loads(sys.stdin.buffer.readline()), reply)
    except OffloadError as error:
        reply({"error": str(error), "is_usage": isinstance(error, UsageError)})
        os._exit(EXIT_REFUSED)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
