"""What is kept of one timed test, and what of it counts?

A sample is llama-bench's own record with what only we know beside it: placement, place in
the sweep, amounts of work, and how busy the machine was. Every repetition stays; those that
stand out are marked, and count less in a fit.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from offload.cost import Work
from offload.model import Model
from tuner.cells import Bench, Timed
from tuner.fit import NOISE_MIN, Run
from tuner.store import SCHEMA_VERSION
from tuner.subject import Subject, model_digest
from tuner.sweep import Step

_OUTLIER_DEVIATIONS: Final = 4.0
_OUTLIER_SHARE: Final = 0.05
_MAD_TO_SD: Final = 1.4826
_LOAD_TO_NOISE: Final = 0.25
"""What a processor that others use adds to the doubt about a time, as a share of their load."""


def make_sample(
    bench: Bench,
    subject: Subject,
    step: Step,
    timed: Timed,
    record: Mapping[str, Any],
    seen: Mapping[str, Any],
) -> dict[str, Any]:
    """The row to keep; `seen` is what was noticed of the machine meanwhile."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "sample",
        "label": step.cell.label,
        "cell": step.cell.key(),
        "placement": {
            "counts": list(step.cell.counts),
            "host_layers": list(step.cell.host_layers),
        },
        "repetition": step.repetition,
        "is_anchor": step.is_anchor,
        "is_aside": step.cell.n_threads is not None,
        "model": describe_model(bench.model_of(step.cell), subject),
        "work": dict(bench.work(step.cell, timed).amounts),
        **seen,
        **record,
        "outliers": list(outliers(record["samples_ns"])),
    }


def describe_model(model: Model, subject: Subject) -> dict[str, Any]:
    """What a profile says of a model: no path, no name of a file."""
    return {
        "arch": model.arch,
        "kind": subject.kind,
        "n_layer": model.n_layer - model.n_layer_nextn,
        "n_layer_source": subject.n_layer_source,
        "n_expert": model.n_expert,
        "n_expert_used": model.n_expert_used,
        "n_embd": model.n_embd,
        "size_bytes": model.size_bytes,
        "types": sorted({t.type.name for t in model.tensors if len(t.shape) > 1}),
        "digest": model_digest(model),
    }


def outliers(samples_ns: Sequence[int]) -> tuple[int, ...]:
    """Repetitions far from the median of three or more, by number."""
    if len(samples_ns) < 3:
        return ()
    middle = statistics.median(samples_ns)
    spread = _MAD_TO_SD * statistics.median(abs(ns - middle) for ns in samples_ns)
    limit = max(_OUTLIER_DEVIATIONS * spread, _OUTLIER_SHARE * middle)
    return tuple(i for i, ns in enumerate(samples_ns) if abs(ns - middle) > limit)


def counted_ns(sample: Mapping[str, Any]) -> list[int]:
    """The repetitions that are not marked."""
    marked = set(sample.get("outliers", ()))
    return [ns for i, ns in enumerate(sample["samples_ns"]) if i not in marked]


def sample_seconds(sample: Mapping[str, Any]) -> float:
    """The median of the repetitions that count."""
    return statistics.median(counted_ns(sample)) / 1e9


def make_runs(samples: Iterable[Mapping[str, Any]]) -> list[Run]:
    """What a fit reads; noise is the scatter of the repetitions and the load of others.

    Runs aside, with another number of threads, are left out.
    """
    runs = []
    for sample in samples:
        if sample.get("is_aside"):
            continue
        counted = counted_ns(sample)
        seconds = statistics.median(counted) / 1e9
        scatter = statistics.stdev(counted) / 1e9 / seconds if len(counted) > 1 else 0.0
        disturbed = _LOAD_TO_NOISE * (sample.get("load") or 0.0)
        noise = (scatter**2 / len(counted) + disturbed**2) ** 0.5
        test = f"pp{sample['n_prompt']}" if sample["n_prompt"] else f"tg{sample['n_gen']}"
        runs.append(
            Run(
                label=f"{sample['label']} {test}",
                work=Work(amounts=sample["work"]),
                seconds=seconds,
                noise=max(noise, NOISE_MIN),
            )
        )
    return runs


def anchor_drift(samples: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """By test (`decode`, `prefill`): largest over smallest anchor, less one."""
    by_test: dict[str, dict[tuple[Any, ...], list[float]]] = {"decode": {}, "prefill": {}}
    for sample in samples:
        if sample["is_anchor"]:
            which = by_test["prefill" if sample["n_prompt"] else "decode"]
            key = (sample["model"]["digest"], sample["n_prompt"], sample["n_gen"])
            which.setdefault(key, []).append(sample_seconds(sample))
    found = {}
    for test, groups in by_test.items():
        many = [max(seconds) / min(seconds) - 1.0 for seconds in groups.values() if seconds[1:]]
        if many:
            found[test] = max(many)
    return found
