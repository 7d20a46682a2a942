"""What does a llama.cpp log say about layers, overrides, buffers and failures?

Reads the lines printed by src/llama-model.cpp (`load_tensors`),
src/llama-model-loader.cpp (`create_tensor`), src/llama-context.cpp
(`sched_reserve`), the caches, common/fit.cpp (`common_memory_breakdown_print`)
and the allocators of the backends (b11434 and older builds). Pure: text in,
values out. Lines may carry any prefix (time stamp, level, a server's slot).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from offload.units import MIB

_LINE_MAX: Final = 2000
"""Characters of a line that are looked at; bounds the time on files that are no logs."""
_LOAD_STARTS: Final = "loaded meta data with"
_LAYER: Final = re.compile(r"layer\s+(\d+) assigned to device ([^\s,]+)")
_OVERRIDE: Final = re.compile(
    r"tensor (\S+) \(\s*\d+ MiB \S+\) buffer type overridden to (\S.*?)\s*$"
)
_BUFFER: Final = re.compile(
    r"(\S+)\s+(model|KV|RS|DSV4 \S+ state|compute|output) buffer size\s*=\s*([\d.]+) MiB"
)
_CACHE_SIZE: Final = re.compile(r"\bsize =\s*([\d.]+) MiB \(\s*\d+ cells,\s*\d+ layers,")
_SPLITS: Final = re.compile(r"(?:graph splits = |, splits = )(\d+)")
_OFFLOADED: Final = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_DEVICE_ROW: Final = re.compile(
    r"\|\s+- (\S+)(?: \((.*)\))?\s*\|\s*(\d+) = (\d+) \+ \(\s*\d+ =\s*(\d+) \+\s*(\d+) \+\s*(\d+)\)"
)
_OTHER_ROW: Final = re.compile(r"\|\s+- (\S+)\s*\|\s*\d+ =\s*(\d+) \+\s*(\d+) \+\s*(\d+)\s*\|")
_OUT_OF_MEMORY: Final = (
    # ggml-alloc.c and ggml-backend.cpp, any backend
    re.compile(r"failed to allocate (?P<buft>\S+) buffer of size (?P<bytes>\d+)(?![\d.])"),
    # ggml-cuda.cu, CUDA and ROCm
    re.compile(r"allocating (?P<mib>[\d.]+) MiB on device (?P<i>\d+): \w+ failed: out of memory"),
    # ggml-vulkan
    re.compile(r"Device memory allocation of size (?P<bytes>\d+) failed"),
    # ggml-metal
    re.compile(r"error: failed to allocate buffer, size =\s*(?P<mib>[\d.]+) MiB"),
    # llama-model.cpp and older builds, size unknown
    re.compile(r"unable to allocate (?P<buft>\S+) buffer"),
    re.compile(r"[Ff]ailed to allocate buffer type (?P<buft>\S+)"),
)
_CAUSE: Final = re.compile(
    r"error loading model: |error while handling|failed to (?:connect|open|allocate)|GGML_ASSERT|"
    r"out of memory|unable to allocate|requires? |error: (?!loading model)|does not support|"
    r"^[\d.]+ E ",
    re.IGNORECASE,
)
_BAD_WORDS: Final = re.compile(
    r"\berror\b|\bfail(?:ed|ure)\b|\babort|what\(\)|could not|cannot|\binvalid\b", re.IGNORECASE
)
_HARMLESS: Final = re.compile(
    r"cannot be used with preferred buffer type|does not support async|print_info:|- kv "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBuffer:
    """One kind of buffer on one buffer type; bytes as printed, so rounded to 0.01 MiB."""

    buffer_type: str
    kind: str
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row of llama.cpp's memory breakdown table; whole MiB, rounded down."""

    name: str
    description: str
    total_mib: int | None
    free_mib: int | None
    model_mib: int
    context_mib: int
    compute_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationFailure:
    """An allocation that failed. `buffer_type` is "" and `n_bytes` None where not printed."""

    buffer_type: str
    n_bytes: int | None
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLog:
    """What one loading of one model printed.

    `layers[il]` is the device of layer il, the output layer last; empty where the
    log is not verbose enough. `overridden` maps tensors to the buffer type a rule gave.
    """

    layers: tuple[str, ...]
    overridden: Mapping[str, str]
    buffers: tuple[LogBuffer, ...]
    cache_bytes: int
    table: tuple[TableRow, ...]
    failures: tuple[AllocationFailure, ...]
    n_splits: int | None
    offloaded: tuple[int, int] | None
    pipeline_parallel: bool

    def bytes_of(self, kind: str) -> dict[str, int]:
        """Buffer type to bytes for `kind`: "model", "KV", "RS", "compute" or "output"."""
        return {b.buffer_type: b.n_bytes for b in self.buffers if b.kind == kind}


def parse_loads(lines: Iterable[str]) -> tuple[LoadLog, ...]:
    """One value per model loading, in order; `--fit` and drafts load more than once."""
    chunks: list[list[str]] = [[]]
    for line in lines:
        if _LOAD_STARTS in line and any(_LOAD_STARTS in seen for seen in chunks[-1]):
            chunks.append([])
        chunks[-1].append(line)
    return tuple(_parse_load(chunk) for chunk in chunks)


def parse_log(lines: Iterable[str]) -> LoadLog:
    """The last model loading in these lines."""
    return parse_loads(lines)[-1]


def parse_out_of_memory(line: str) -> AllocationFailure | None:
    """The failed allocation this line tells of, if it does."""
    for pattern in _OUT_OF_MEMORY:
        if match := pattern.search(line[:_LINE_MAX]):
            found = match.groupdict()
            n_bytes = int(found["bytes"]) if "bytes" in found else None
            if "mib" in found:
                n_bytes = round(float(found["mib"]) * MIB)
            # the allocator prints a number only; its next line names the buffer type
            buffer_type = found.get("buft") or (f"device {found['i']}" if "i" in found else "")
            return AllocationFailure(
                buffer_type=buffer_type.removesuffix("_buffer"), n_bytes=n_bytes, line=line.strip()
            )
    return None


def last_words(lines: Iterable[str], n: int = 12) -> tuple[str, ...]:
    """The last `n` lines that say something, for error messages."""
    return tuple(text for line in lines if (text := line[:_LINE_MAX].rstrip()))[-n:]


def telling_line(lines: Iterable[str]) -> str:
    """The line that most likely names the cause: the first near the end that looks like one."""
    tail = [line for line in last_words(lines, 40) if not _HARMLESS.search(line)]
    for pattern in (_CAUSE, _BAD_WORDS):
        for line in tail:
            if pattern.search(line):
                return line.strip()
    return tail[-1].strip() if tail else ""


def _parse_load(lines: Iterable[str]) -> LoadLog:
    layers: dict[int, str] = {}
    overridden: dict[str, str] = {}
    buffers: dict[tuple[str, str], int] = {}
    rows: dict[str, TableRow] = {}
    failures: list[AllocationFailure] = []
    cache_mib = 0.0
    n_splits: int | None = None
    offloaded: tuple[int, int] | None = None
    pipeline_parallel = False
    for whole_line in lines:
        line = whole_line[:_LINE_MAX]
        if "assigned to device" in line and (match := _LAYER.search(line)):
            layers[int(match[1])] = match[2]
        elif "overridden to" in line and (match := _OVERRIDE.search(line)):
            overridden[match[1]] = match[2]
        elif "buffer size" in line and (match := _BUFFER.search(line)):
            key, n_bytes = (match[1], match[2].split()[0]), round(float(match[3]) * MIB)
            # caches may print one line per part; graphs are reserved anew and replace
            buffers[key] = n_bytes + (0 if match[2] == "compute" else buffers.get(key, 0))
        elif " cells," in line and (match := _CACHE_SIZE.search(line)):
            cache_mib += float(match[1])
        elif "|   - " in line and (row := _parse_row(line)):
            rows[row.name] = row
        elif "alloc" in line and (failure := parse_out_of_memory(line)):
            failures.append(failure)
        elif "splits = " in line and (match := _SPLITS.search(line)):
            n_splits = int(match[1])
        elif "offloaded " in line and (match := _OFFLOADED.search(line)):
            offloaded = (int(match[1]), int(match[2]))
        elif "pipeline parallelism enabled" in line:
            pipeline_parallel = True
    return LoadLog(
        layers=tuple(layers[il] for il in sorted(layers)),
        overridden=overridden,
        buffers=tuple(
            LogBuffer(buffer_type=buft, kind=kind, n_bytes=n_bytes)
            for (buft, kind), n_bytes in buffers.items()
        ),
        cache_bytes=round(cache_mib * MIB),
        table=tuple(rows.values()),
        failures=tuple(failures),
        n_splits=n_splits,
        offloaded=offloaded,
        pipeline_parallel=pipeline_parallel,
    )


def _parse_row(line: str) -> TableRow | None:
    if match := _DEVICE_ROW.search(line):
        return TableRow(
            name=match[1],
            description=match[2] or "",
            total_mib=int(match[3]),
            free_mib=int(match[4]),
            model_mib=int(match[5]),
            context_mib=int(match[6]),
            compute_mib=int(match[7]),
        )
    if match := _OTHER_ROW.search(line):
        return TableRow(
            name=match[1],
            description="",
            total_mib=None,
            free_mib=None,
            model_mib=int(match[2]),
            context_mib=int(match[3]),
            compute_mib=int(match[4]),
        )
    return None
