"""Does time follow from amounts of work on machines that other people measured?

Lays the cost model over recorded speeds (tests/fixtures/recorded_speed.json). Three
questions, each with its own table in the report:

1. The straight line: a series that varies one thing (layers with experts on the host, -ub,
   depth) is fitted on its two ends; what does that say of the levels between?
2. The bend: with one more level, does letting a card that waits be slower predict the others
   better, and does a price for the first layer on the host?
3. The priors: how far from the truth is a prediction for a machine nobody measured, from
   data sheets alone, and do its intervals hold the truth as often as they promise?

    python -m benchmarks.recorded_speed [--markdown]

No GPU, no file, nothing is run: headers are made from the shapes of the catalogue.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from offload.context import ContextOptions
from offload.cost import Coefficients, Work, decode_work, predict, prefill_work
from offload.device import Device, device_by_name
from offload.ggml import TYPES_BY_NAME, tensor_bytes
from offload.gguf import GGUFHeader, TensorInfo
from offload.machine import Host
from offload.model import Model, make_model
from offload.placement import Placement
from offload.priors import make_priors
from offload.split import HOST, split_layers
from tuner.fit import Run, fit, solve_nnls
from tuner.shapes import SHAPES
from tuner.shapes.metadata import make_metadata
from tuner.shapes.recipes import choose_types
from tuner.shapes.tensors import make_tensors

FIXTURE: Final = Path(__file__).parents[1] / "tests" / "fixtures" / "recorded_speed.json"
_BACKEND_NAMES: Final = {"CUDA": "CUDA", "ROCm": "ROCm", "Vulkan": "Vulkan", "RPC": "RPC"}
_CARD_BYTES: Final = 1 << 40  # nothing is planned, so the room does not matter
_N_PROMPT: Final = 512
_NOISE: Final = 0.015
"""What repeated runs of such tables scatter by where they say so."""

PHASES: Final = ("decode", "prefill")
Json = Mapping[str, Any]


@cache
def load() -> Json:
    """The recorded facts."""
    found: Json = json.loads(FIXTURE.read_text(encoding="utf-8"))
    return found


@cache
def model_of(shape_name: str, recipe: str) -> Model:
    """The model of a catalogue shape, quantised by one of llama-quantize's recipes."""
    shape = SHAPES[shape_name]
    tensors = make_tensors(shape)
    types = choose_types(shape, tensors, recipe)
    infos = tuple(
        TensorInfo(
            name=t.name, type=y, shape=t.shape, offset_bytes=0, n_bytes=tensor_bytes(y, t.shape)
        )
        for t, y in zip(tensors, types, strict=True)
    )
    return make_model(
        GGUFHeader(
            version=3,
            metadata=make_metadata(shape),
            tensors=infos,
            data_offset_bytes=0,
            file_bytes=0,
            n_files=1,
            path=shape_name,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One measured point of a series: seconds per token, and the work of both phases."""

    x: int
    seconds: Mapping[str, float]
    work: Mapping[str, Work]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Levels of one case that differ in one thing."""

    case: str
    machine: str
    varies: str
    label: str
    levels: tuple[Level, ...]


def cards_of(case: Json) -> tuple[Device, ...]:
    """The case's cards by llama.cpp's names, described as their owner described them."""
    kinds = load()["machines"][case["machine"]]["cards"]
    names = [kind["name"] or "" for kind in kinds for _ in range(kind["count"])]
    prefix = _BACKEND_NAMES.get(case["backend"], "CUDA")
    return tuple(
        replace(device_by_name(f"{prefix}{i}", _CARD_BYTES), description=name)
        for i, name in enumerate(names)
    )


def host_of(case: Json) -> Host:
    """The case's host, as far as its memory bandwidth is known."""
    rate = load()["machines"][case["machine"]]["host_gb_per_s"]
    return Host(bandwidth_bytes_per_s=None if rate is None else int(rate * 1e9))


def _host_layers(model: Model, at: Json) -> set[int]:
    if at.get("n_cpu_moe") is not None:
        return set(range(at["n_cpu_moe"]))
    return {il for first, end in at.get("host_layers", ()) for il in range(first, end)}


def placement_of(model: Model, n_cards: int, at: Json) -> Placement:
    """Where everything was in one level."""
    shares = at.get("tensor_split") or [1.0] * n_cards
    split = split_layers(model.n_layer, at.get("n_gpu_layers", 999), shares)
    away = _host_layers(model, at)
    placed = {t.name: HOST for t in model.expert_tensors if t.il in away}
    return Placement(split=split, placed=placed, has_rules=bool(placed))


def work_of(case: Json, at: Json) -> dict[str, Work]:
    """Work per token of both phases; bytes are scaled to the recorded size of the file."""
    model = model_of(case["shape"], case["recipe"])
    n_cards = at["x"] if at.get("varies") == "n_cards" else len(cards_of(case))
    cards = cards_of(case)[:n_cards]
    placement = placement_of(model, len(cards), at)
    n_prompt = at.get("n_prompt") or _N_PROMPT
    context = ContextOptions(
        n_ctx=1 << 18,
        n_batch=max(2048, at.get("n_ubatch") or 512),
        n_ubatch=at.get("n_ubatch") or 512,
        n_parallel=1,
        type_k=TYPES_BY_NAME[(at.get("type_k") or "f16").upper()],
        type_v=TYPES_BY_NAME[(at.get("type_v") or "f16").upper()],
    )
    depth = at.get("n_depth") or 0
    repacked = bool(at.get("repacked"))
    decode = decode_work(
        model, placement, cards, context=context, n_depth=depth, host_is_repacked=repacked
    )
    prefill = prefill_work(
        model,
        placement,
        cards,
        context=context,
        n_prompt=n_prompt,
        n_depth=depth,
        op_offload=at.get("op_offload", True),
        host_is_repacked=repacked,
        host_is_mapped=True,  # the default of all these builds
    ).scaled(1 / n_prompt)
    size = case["size_gib"]
    factor = 1.0 if size is None else size * (1 << 30) / model.size_bytes
    return {"decode": _resized(decode, factor), "prefill": _resized(prefill, factor)}


def _resized(work: Work, factor: float) -> Work:
    kinds = (".read.", ".stream_mmap.", ".stream.")
    return Work(
        amounts={
            name: amount * (factor if any(kind in name for kind in kinds) else 1.0)
            for name, amount in work.amounts.items()
        }
    )


@cache
def all_series() -> tuple[Series, ...]:
    """Every recorded series with the work of its levels."""
    found = []
    for case in load()["cases"]:
        for series in case["series"]:
            varies = series["varies"]
            levels = []
            for row in series["levels"]:
                at = {**series, **row, varies: row["x"]}
                levels.append(
                    Level(
                        x=row["x"],
                        seconds={
                            phase: 1 / row[key]
                            for phase, key in zip(
                                PHASES, ("decode_t_s", "prefill_t_s"), strict=True
                            )
                            if row[key]
                        },
                        work=work_of(case, at),
                    )
                )
            found.append(
                Series(
                    case=case["id"],
                    machine=case["machine"],
                    varies=varies,
                    label=_label(series),
                    levels=tuple(levels),
                )
            )
    return tuple(found)


def _label(series: Json) -> str:
    """What stays the same in a series, where it has to be told from its neighbours."""
    keys = ("n_cpu_moe", "n_ubatch", "host_layers", "n_gpu_layers")
    fixed = {k: series[k] for k in keys if k in series and k != series["varies"]}
    return ", ".join(f"{key} {value}" for key, value in fixed.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """One level that was predicted from others: by what, how far off, and whether held."""

    phase: str
    case: str
    machine: str
    varies: str
    label: str
    x: int
    error: float
    is_inside: bool | None = None
    """Whether the truth lies inside the 90 % interval; None where there is none."""


def _cases() -> Mapping[str, Json]:
    return {case["id"]: case for case in load()["cases"]}


def prior_of(case: Json, works: Sequence[Work]) -> Coefficients:
    """What is believed of the case's machine before any of its runs is seen."""
    features = sorted({name for work in works for name in work.amounts})
    return make_priors(features, cards_of(case), host_of(case))


def _runs(levels: Sequence[Level], phase: str) -> list[Run]:
    return [
        Run(label=str(at.x), work=at.work[phase], seconds=at.seconds[phase], noise=_NOISE)
        for at in levels
    ]


def _ordered(series: Series, phase: str) -> tuple[Level, ...]:
    """The levels with this phase in order; none for fewer than three distinct ones."""
    levels = sorted((at for at in series.levels if phase in at.seconds), key=lambda at: at.x)
    return tuple(levels) if len({at.x for at in levels}) >= 3 else ()


def _guess(series: Series, phase: str, at: Level, seconds: float, inside: bool | None) -> Guess:
    return Guess(
        phase=phase,
        case=series.case,
        machine=series.machine,
        varies=series.varies,
        label=series.label,
        x=at.x,
        error=seconds / at.seconds[phase] - 1,
        is_inside=inside,
    )


def straight_line(series: Series, phase: str) -> Iterator[Guess]:
    """Levels between the ends, on the straight line in seconds (over 1/x for a physical batch)."""
    levels = _ordered(series, phase)
    place = (lambda x: 1 / x) if series.varies == "n_ubatch" else float
    for at in levels[1:-1]:
        first, last = levels[0], levels[-1]
        u = (place(at.x) - place(first.x)) / (place(last.x) - place(first.x))
        seconds = first.seconds[phase] * (1 - u) + last.seconds[phase] * u
        yield _guess(series, phase, at, seconds, None)


def fitted(
    series: Series, phase: str, used: Sequence[int], *, waiting: bool = True
) -> Iterator[Guess]:
    """All levels but those at the indices `used`, predicted by the model fitted to these."""
    levels = _ordered(series, phase)
    learned = [levels[i] for i in used]
    prior = prior_of(_cases()[series.case], [at.work[phase] for at in levels])
    known = fit(_runs(learned, phase), prior, waiting=waiting).coefficients
    for i, at in enumerate(levels):
        if i in used:
            continue
        found = predict(at.work[phase], known)
        assert found is not None
        truth = at.seconds[phase]
        yield _guess(series, phase, at, found.seconds, found.low_s <= truth <= found.high_s)


def with_step(series: Series, phase: str, used: Sequence[int]) -> Iterator[Guess]:
    """As `fitted`, on the straight line with a price of its own for the first host layer."""
    levels = _ordered(series, phase)
    rows = [(1.0, float(at.x), float(at.x > 0)) for at in levels]
    truth = [at.seconds[phase] for at in levels]
    left = np.array([np.array(rows[i]) / truth[i] for i in used])
    found = solve_nnls(left, np.ones(len(used)))
    for i, at in enumerate(levels):
        if i not in used:
            yield _guess(series, phase, at, float(np.dot(rows[i], found)), None)


def unmeasured() -> Iterator[Guess]:
    """Every level of every case predicted from data sheets alone.

    Left out: cases whose quantisation is not known well enough to know their bytes.
    """
    for series in all_series():
        case = _cases()[series.case]
        if case["size_gib"] is None and case["id"] in _SIZE_UNKNOWN:
            continue
        for phase in PHASES:
            for at in series.levels:
                if phase in at.seconds:
                    found = predict(at.work[phase], prior_of(case, [at.work[phase]]))
                    assert found is not None
                    truth = at.seconds[phase]
                    inside = found.low_s <= truth <= found.high_s
                    yield _guess(series, phase, at, found.seconds, inside)


_SIZE_UNKNOWN: Final = ("a6000-r1-iq2k", "2x3090-r1-quants", "4x3090-q235-iq4xs")


def two_ends() -> tuple[list[Guess], list[Guess]]:
    """All series with three levels or more: the straight line's guesses and the model's."""
    lines: list[Guess] = []
    models: list[Guess] = []
    for series in all_series():
        for phase in PHASES:
            levels = _ordered(series, phase)
            if levels:
                lines += straight_line(series, phase)
                models += fitted(series, phase, (0, len(levels) - 1))
    return lines, models


def with_mid_points() -> dict[str, list[Guess]]:
    """Series over host layers with four levels or more, one inner level learned from as well.

    Each inner level is the one learned from once; the others are predicted.
    """
    found: dict[str, list[Guess]] = {"line": [], "step": [], "waiting": []}
    for series in all_series():
        if series.varies != "n_cpu_moe":
            continue
        for phase in PHASES:
            levels = _ordered(series, phase)
            for mid in range(1, len(levels) - 1):
                used = (0, mid, len(levels) - 1)
                if len(levels) < 4:
                    continue
                found["line"] += fitted(series, phase, used, waiting=False)
                found["waiting"] += fitted(series, phase, used)
                if levels[0].x == 0:
                    found["step"] += with_step(series, phase, used)
    return found
