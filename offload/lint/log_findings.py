"""What does a failed run's log say, and what does that mean?

The facts come from offload/engine/log.py; here they are laid over the command's own plan, where
there is one. Several loads in one log (or several logs) are compared: a number that does not
move from try to try tells more than those that do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from offload.engine.log import LoadLog, parse_loads, telling_line
from offload.lint.finding import Finding, error, note, warning
from offload.lint.memory_findings import relieving_tensors
from offload.model import Role
from offload.plan import Plan
from offload.render.text import printable, ranges
from offload.roles import role_of_stem
from offload.units import GIB, MIB, format_mib

LINES_MAX: Final = 500_000
_LINE_MAX: Final = 2000
_ABSURD_BYTES: Final = 128 * GIB
_UNEVEN: Final = 2.5
_CPU_NAMES: Final = ("CPU", "Host")
_UNINTENDED: Final = (Role.NORM, Role.ROUTER, Role.SHARED_EXPERT, Role.ATTENTION, Role.RECURRENT)

_FIT_FAILED: Final = re.compile(r"failed to fit params to free device memory: (.{1,200})")
_IK_ESTIMATE: Final = re.compile(
    r"Estimated memory use .{0,60} is (\d+) MiB after adding (\d+) overrides.{0,80}?(\d+) MiB"
)
_SAYINGS: Final = (
    ("unknown-flag", re.compile(r"error: invalid argument: (\S+)"), "no such flag in this build"),
    (
        "unknown-buffer",
        re.compile(r"(unknown buffer type|unrecognized buffer type '[^']*')"),
        "an -ot rule names a buffer type that is not there; the list printed above has them",
    ),
    (
        "split-mode-row",
        re.compile(r"(device \S+ does not support split buffers)"),
        "-sm row is not there for this backend; use -sm layer",
    ),
    (
        "mla-cache-types-differ",
        re.compile(r"(does not support different K \(\S+\) and V \(\S+\) cache types)"),
        "give -ctk and -ctv the same type",
    ),
    (
        "quantised-v-without-flash-attention",
        re.compile(r"(quantized V cache requires flash_attn|V cache quantization requires flash)"),
        "-fa on, or -ctv f16",
    ),
    (
        "cache-type-not-whole-blocks",
        re.compile(r"(cache type \S+ with block size \d+ does not divide \S+)"),
        "use f16 for this cache",
    ),
    (
        "unknown-device",
        re.compile(r"(invalid device: \S+|invalid value for main_gpu: \S+)"),
        "llama-server --list-devices prints the cards there are",
    ),
    (
        "rpc-unreachable",
        re.compile(r"([Ff]ailed to connect to \S+|Remote RPC server crashed.{0,60})"),
        "start ggml-rpc-server there, of the same build, and check address and network",
    ),
    (
        "bad-value",
        re.compile(r'(error while handling argument "[^"]{1,40}": .{1,120})'),
        "give the flag a value it takes",
    ),
)  # fmt: skip
_UNPINNED: Final = re.compile(r"failed to allocate ([\d.]+) M\w+ of pinned memory")
_KILLED: Final = re.compile(r"^Killed$|Out of memory: Killed process|oom-kill:")
_RETRIED: Final = "retrying without pipeline parallelism"


def log_findings(logs: Sequence[Sequence[str]], plan: Plan | None = None) -> Iterator[Finding]:
    """What these logs tell; `plan` prices the command they came from, if that is known."""
    lines = [line[:_LINE_MAX] for log in logs for line in log][:LINES_MAX]
    loads = [load for log in logs for load in parse_loads(log)]
    found = [
        *_sayings(lines),
        *_fit(lines),
        *_same_again(loads),
        *(_last_failure(loads, plan)),
        *_host_memory(lines),
        *_pipeline(lines, loads),
        *_uneven(loads),
        *_left_on_host(loads),
        *_overridden(loads),
    ]
    yield from found
    if any(f.code in _EXPLAINS for f in found):
        return
    told = printable(telling_line(line for line in lines if not _FIT_FAILED.search(line)))
    if told and _is_bad(told):
        yield error("llama-stopped", f"llama.cpp's own words: {told[:300]}")
    elif not found:
        yield note("nothing-in-log", "nothing in this log looks like a failure")


_EXPLAINS: Final = frozenset(
    "out-of-memory pinned-beyond-host-ram rpc-unreachable unknown-flag unknown-buffer"
    " split-mode-row bad-value"
    " mla-cache-types-differ quantised-v-without-flash-attention cache-type-not-whole-blocks"
    " unknown-device".split()
)


def _is_bad(line: str) -> bool:
    return bool(
        re.search(r"error|fail|abort|assert|cannot|could not|invalid|killed|crash", line, re.I)
    )


def _sayings(lines: Sequence[str]) -> Iterator[Finding]:
    """Refusals that say themselves what is wrong."""
    seen: set[str] = set()
    for line in lines:
        for code, pattern, fix in _SAYINGS:
            if code not in seen and (match := pattern.search(line)):
                if code == "bad-value" and "unknown-buffer" in seen:
                    continue
                seen.add(code)
                yield error(code, f"the log says: {printable(match[1])}", fix)
                break


def _fit(lines: Sequence[str]) -> Iterator[Finding]:
    reasons = dict.fromkeys(m[1] for line in lines if (m := _FIT_FAILED.search(line)))
    for reason in list(reasons)[:3]:
        yield warning(
            "fit-switched-off",
            f"--fit gave up and llama.cpp loaded unfitted: {printable(reason)}",
            "leave that to --fit, or plan and write -fit off",
        )
    if any(_IK_ESTIMATE.search(line) for line in lines):
        yield warning(
            "fit-decides",
            "ik_llama.cpp's --fit estimated that the model fits; it builds no worst-case graph, so"
            " compute buffers are a guess",
            "a larger --fit-margin, or rules of your own and no --fit",
        )


def _failures(load: LoadLog) -> list[tuple[str, int | None]]:
    """Device and bytes of each failed allocation; several lines about one failure are one.

    ggml-cuda prints the number of the device only, which is ROCm's or CUDA's; the allocator's
    line behind it names the buffer type.
    """
    named: list[tuple[str, int | None]] = []
    for failure in load.failures:
        device, n_bytes = failure.buffer_type, failure.n_bytes
        if named and (n_bytes is None or abs((named[-1][1] or 0) - n_bytes) < MIB):
            before, n_before = named[-1]
            is_vague = not before or before.startswith("device ")
            named[-1] = (device or before if is_vague else before, n_before or n_bytes)
        else:
            named.append((device, n_bytes))
    return [(_device_name(device), n_bytes) for device, n_bytes in named]


def _device_name(name: str) -> str:
    return f"CUDA{name.removeprefix('device ')}" if name.startswith("device ") else name


def _last_failure(loads: Sequence[LoadLog], plan: Plan | None) -> Iterator[Finding]:
    failing = [load for load in loads if load.failures]
    if not failing:
        return
    load = failing[-1]
    for device, n_bytes in _failures(load)[:4]:
        name = device or "a card"
        asked = "an allocation failed" if n_bytes is None else f"{format_mib(n_bytes)} were asked"
        kind = _kind_of(load, device)
        text = f"{name}: {asked}{kind} and there was no room"
        fix = "fewer layers for it in -ts, its own layers' experts to the host, or a smaller -c"
        owned = [il for il, owner in enumerate(load.layers[:-1]) if owner == device]
        if owned:
            text += f". It owns the layers {ranges(owned)}"
        if plan is not None:
            more, relief = _from_plan(plan, device)
            text, fix = text + more, relief or fix
        yield error("out-of-memory", text, fix)


def _kind_of(load: LoadLog, device: str) -> str:
    """Weights, context or compute: what has been printed already is not what failed."""
    printed = {b.kind for b in load.buffers if b.buffer_type == device}
    if "compute" in printed:
        return " while running"
    if "KV" in printed or "RS" in printed:
        return " for compute"
    if "model" in printed:
        return " for context or compute"
    return " for weights" if load.layers or load.offloaded else ""


def _from_plan(plan: Plan, device: str) -> tuple[str, str]:
    for d, card in enumerate(plan.devices):
        if device not in (card.name, card.buffer_type):
            continue
        used = plan.memory.devices[d]
        text = (
            f". By the command it takes {format_mib(used.model_bytes)} of weights,"
            f" {format_mib(used.context_bytes)} of context, {format_mib(used.compute_bytes)} of"
            f" compute, and owns the layers {ranges(plan.split.layers_of(d))}"
        )
        chosen = relieving_tensors(plan, d)
        if chosen:
            layers = sorted({t.il for t in chosen if t.il is not None})
            return text, f"send the experts of its own layers {ranges(layers)} to the host"
        return text, ""
    return "", ""


def _same_again(loads: Sequence[LoadLog]) -> Iterator[Finding]:
    """Tries that failed alike: what was changed between them did not reach that card."""
    times: dict[tuple[str, int], int] = {}
    for load in loads:
        for device, n_bytes in set(_failures(load)):
            if n_bytes is not None and device:
                times[device, n_bytes] = times.get((device, n_bytes), 0) + 1
    for (device, n_bytes), n in times.items():
        if n > 1:
            yield error(
                "same-bytes-again",
                f"{device} asked for {format_mib(n_bytes)} in {n} tries, unchanged: nothing that"
                " was changed between them belongs to that card",
                f"relieve {device} within its own range of layers, not the first layers",
            )


def _host_memory(lines: Sequence[str]) -> Iterator[Finding]:
    """Pinned memory that was refused, and the kernel's way of making room."""
    if any(_KILLED.search(line.strip()) for line in lines):
        yield error(
            "pinned-beyond-host-ram",
            "the kernel killed the process: host memory ran out",
            "less on the host, or --load-mode mmap, which lets it read from disk instead",
        )
    refused = [float(m[1]) for line in lines if (m := _UNPINNED.search(line))]
    if refused:
        yield warning(
            "pinned-beyond-host-ram",
            f"{max(refused):.0f} MiB of pinned memory were refused, so that ordinary memory took"
            " its place: copying experts to a card for prefill is slower",
            "raise the limit of locked memory (ulimit -l), or keep less on the host",
        )


def _pipeline(lines: Sequence[str], loads: Sequence[LoadLog]) -> Iterator[Finding]:
    if any(_RETRIED in line for line in lines):
        yield note(
            "pipeline-retried",
            "compute buffers did not fit with pipeline parallelism, so llama.cpp tried again"
            " without it; the failed allocation before that line is not the end",
            "any -ot rule switches it off from the start, and so does a smaller -ub make it fit",
        )
    absurd = [n for load in loads for _, n in _failures(load) if n and n > _ABSURD_BYTES]
    if absurd:
        yield warning(
            "pipeline-copies",
            f"{format_mib(max(absurd))} in one allocation are no weights: the scheduler keeps"
            " copies of the inputs (GGML_SCHED_MAX_COPIES), host experts among them",
            "build with -DGGML_SCHED_MAX_COPIES=1, or -sm none",
        )


def _uneven(loads: Sequence[LoadLog]) -> Iterator[Finding]:
    """One card much fuller than another: the relief went to one of them."""
    if not loads:
        return
    load = loads[-1]
    held = {
        name: n for name, n in load.bytes_of("model").items() if not name.startswith(_CPU_NAMES)
    } or {
        row.name: row.model_mib * MIB for row in load.table if not row.name.startswith(_CPU_NAMES)
    }
    if len(held) < 2:
        return
    most, least = max(held, key=held.__getitem__), min(held, key=held.__getitem__)
    if held[most] > _UNEVEN * held[least] and held[most] - held[least] > GIB:
        yield warning(
            "card-unlike-the-others",
            f"{most} holds {format_mib(held[most])} of weights and {least} only"
            f" {format_mib(held[least])}",
            "if the cards are alike: shares by -ts that count relieved layers as lighter, and"
            " rules spread over each card's own layers",
        )


def _left_on_host(loads: Sequence[LoadLog]) -> Iterator[Finding]:
    counts = [load.offloaded for load in loads if load.offloaded]
    if counts and counts[-1][0] < counts[-1][1]:
        n, of = counts[-1]
        yield warning(
            "layers-left-on-host",
            f"only {n} of {of} layers are on cards: the attention and the KV cache of the first"
            f" {of - n} are on the host",
            "-ngl 99, and experts to the host by -ot",
        )


def _overridden(loads: Sequence[LoadLog]) -> Iterator[Finding]:
    """Norms, routers, shared experts or attention sent to the host together with experts."""
    overridden = {n: b for load in loads for n, b in load.overridden.items() if b.startswith("CPU")}
    extra = [name for name in overridden if _role(name) in _UNINTENDED]
    if extra and any(_role(name) is Role.EXPERT for name in overridden):
        yield warning(
            "rule-matches-too-much",
            f"besides experts, rules sent {len(extra)} tensors to the host that every token needs,"
            f" e.g. {printable(extra[0])}",
            r"write the experts only: blk\.(…)\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU",
        )


def _role(name: str) -> Role:
    parts = name.split(".")
    return role_of_stem(".".join(parts[2:-1])) if len(parts) > 3 else Role.OTHER
