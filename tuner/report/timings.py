"""Which timed runs does a profile keep, and what do they say of themselves?

Samples are what a file says, and files are edited and cut: what does not read as a sample is
counted and left out, and the rest is reported.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from offload.cost import Work
from tuner.samples import counted_ns, sample_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One test of one run: `seconds` is the median of the repetitions that count.

    `low_s` and `high_s` are the fastest and the slowest of those, `n_tokens` how many were read or
    generated, `host_layers` those whose experts lay on the host. `raw` is the sample itself.
    """

    raw: Mapping[str, Any]
    label: str
    phase: str
    n_tokens: int
    n_depth: int
    digest: str
    cell: Mapping[str, Any]
    host_layers: tuple[int, ...]
    work: Work
    seconds: float
    low_s: float
    high_s: float

    @property
    def seconds_per_token(self) -> float:
        """Of the median repetition."""
        return self.seconds / self.n_tokens

    @property
    def tokens_per_s(self) -> float:
        """Of the median repetition."""
        return self.n_tokens / self.seconds

    @property
    def is_short(self) -> bool:
        """Whether it is of the cut with fewer layers."""
        return bool(self.cell.get("is_short"))

    @property
    def is_aside(self) -> bool:
        """Whether it is with another number of threads, and no part of the fit."""
        return bool(self.raw.get("is_aside"))

    @property
    def is_anchor(self) -> bool:
        """Whether it is one of those that are repeated to see drift."""
        return bool(self.raw.get("is_anchor"))

    @property
    def test(self) -> str:
        """In llama-bench's words: pp512, tg64, with @ and the depth."""
        depth = f"@{self.n_depth}" if self.n_depth else ""
        return f"{'tg' if self.phase == 'decode' else 'pp'}{self.n_tokens}{depth}"


def read_timings(samples: Iterable[Mapping[str, Any]]) -> tuple[tuple[Timing, ...], int]:
    """The timings in the order of the file, and how many samples are none that can be read."""
    found, n_unreadable = [], 0
    for sample in samples:
        try:
            found.append(_timing(sample))
        except (KeyError, TypeError, ValueError, AttributeError):
            n_unreadable += 1
    return tuple(found), n_unreadable


def _timing(sample: Mapping[str, Any]) -> Timing:
    """Raises KeyError, TypeError, ValueError or AttributeError where it is no sample of ours."""
    cell, model = sample["cell"], sample["model"]
    n_prompt, n_gen = _whole(sample["n_prompt"]), _whole(sample["n_gen"])
    phase, n_tokens = ("prefill", n_prompt) if n_prompt else ("decode", n_gen)
    marked = [_whole(i) for i in sample.get("outliers", ())]
    times_ns = [_whole(ns) for ns in sample["samples_ns"]]
    load = sample.get("load") or 0.0
    if not n_tokens or not min(times_ns) or len(set(marked)) >= len(times_ns):
        raise ValueError("nothing was timed")
    if type(load) not in (int, float) or not math.isfinite(load) or load < 0:
        raise TypeError("load")
    counted = counted_ns(sample)
    return Timing(
        raw={**sample, "is_anchor": bool(sample.get("is_anchor"))},
        label=_text(sample["label"]),
        phase=phase,
        n_tokens=n_tokens,
        n_depth=_whole(sample.get("n_depth", 0)),
        digest=_text(model["digest"]),
        cell={**cell, "counts": [_whole(n) for n in cell["counts"]]},
        host_layers=tuple(_whole(il) for il in cell["host_layers"]),
        work=_work(sample["work"], phase),
        seconds=sample_seconds(sample),
        low_s=min(counted) / 1e9,
        high_s=max(counted) / 1e9,
    )


def _work(amounts: Mapping[str, Any], phase: str) -> Work:
    for name, amount in amounts.items():
        if not name.startswith(f"{phase}.") or type(amount) not in (int, float):
            raise TypeError(name)
        if not math.isfinite(amount) or amount < 0:
            raise ValueError(name)
    if not any(amounts.values()):
        raise ValueError("no work")
    return Work(amounts=dict(amounts))


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("not a whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def by_model(timings: Iterable[Timing]) -> dict[str, tuple[Timing, ...]]:
    """The timings of each model by its digest, the one timed last first; short cuts left out."""
    groups: dict[str, list[Timing]] = {}
    for timing in timings:
        if not timing.is_short:
            mine = groups.pop(timing.digest, [])
            groups[timing.digest] = [*mine, timing]
    return {digest: tuple(groups[digest]) for digest in reversed(groups)}


def model_title(timing: Timing) -> str:
    """The timed model in a few words, without any name of a file."""
    model = timing.raw["model"]
    parts = [str(model.get("arch") or "a model")]
    n_layer, n_source = model.get("n_layer"), model.get("n_layer_source")
    if n_layer is not None:
        whole = n_source in (None, n_layer)
        parts.append(f"{n_layer} layers" if whole else f"{n_layer} of {n_source} layers")
    if model.get("n_expert"):
        parts.append(f"{model['n_expert']} experts ({model.get('n_expert_used')} used)")
    types = model.get("types")
    if isinstance(types, list) and types:
        parts.append("/".join(str(name) for name in types if name != "F32" or len(types) == 1))
    return ", ".join(parts)


def median_s(timings: Iterable[Timing]) -> float:
    """Seconds per token of the middle one."""
    return statistics.median(timing.seconds_per_token for timing in timings)
