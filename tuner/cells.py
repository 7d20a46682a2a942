"""Which runs could be made on this machine with this model, and where is everything in each?

A cell is one load of the model: a placement and settings, with the tests that
run on it. The list holds what can tell apart the costs of decode and prefill
(offload/cost): experts on no card, some, all; one card or several; which layers; `-ub`,
depth, `--no-host` and op-offload where they mean something. tuner/sweep.py chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from offload.context import ContextOptions
from offload.cost import Work, decode_work, prefill_work
from offload.device import Device
from offload.emit import Launch
from offload.model import Model
from offload.placement import Placement
from offload.rules import make_rules
from offload.split import HOST, split_by_counts

ANCHOR: Final = "none"
"""The label of the cell that is repeated to see drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One timed thing: a prompt of `n_prompt` tokens or `n_gen` generated ones, at a depth."""

    n_prompt: int = 0
    n_gen: int = 0
    n_depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How long tests are, so that each takes long enough to be timed and no longer."""

    n_prompt: int
    n_gen: int
    n_ubatch: int
    n_depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load: units per card, the layers whose experts are on the host, settings, tests.

    `counts` sum to less than all units where whole layers stay on the host.
    `is_repacked` says how host weights lie: None as llama.cpp does by itself. `is_short`
    cells run the same model with fewer layers, which tells what does not grow with them.
    `n_threads` other than the sweep's make a run aside, for advice and not for the fit.
    """

    label: str
    counts: tuple[int, ...]
    host_layers: tuple[int, ...]
    n_ubatch: int
    tests: tuple[Timed, ...]
    op_offload: bool = True
    is_repacked: bool | None = None
    is_short: bool = False
    n_threads: int | None = None

    def key(self) -> dict[str, Any]:
        """What makes it the same cell in a resumed sweep."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all cells of one sweep share: the models' files, the cards, the host's threads."""

    model: Model
    devices: tuple[Device, ...]
    short_model: Model | None = None
    endpoints: tuple[str, ...] = ()
    n_threads: int = 1

    @property
    def pins_host_weights(self) -> bool:
        """Whether host weights go to pinned memory unless `--no-host` is given."""
        return any(d.backend.has_pinned_host_buffer for d in self.devices)

    def model_of(self, cell: Cell) -> Model:
        """The model a cell loads."""
        return self.short_model if cell.is_short and self.short_model else self.model

    def is_repacked(self, cell: Cell) -> bool:
        """Whether host weights lie in the processor's own layouts."""
        return not self.pins_host_weights if cell.is_repacked is None else cell.is_repacked

    def placement(self, cell: Cell) -> Placement:
        """Where everything is."""
        model = self.model_of(cell)
        moved = {t.name: HOST for t in model.expert_tensors if t.il in cell.host_layers}
        return Placement(
            split=split_by_counts(model.n_layer, cell.counts),
            placed=moved,
            has_rules=bool(moved),
        )

    def launch(self, cell: Cell) -> Launch:
        """The settings that put it there."""
        model = self.model_of(cell)
        moved = {t.name for t in model.expert_tensors if t.il in cell.host_layers}
        rules = make_rules(moved, model.tensor_names) if moved else ()
        many = len(self.devices) > 1
        return Launch(
            model_path=model.path,
            n_gpu_layers=sum(cell.counts),
            tensor_split=tuple(map(float, cell.counts)) if many else (),
            devices=tuple(d.name for d in self.devices) or ("none",),
            rpc=",".join(self.endpoints) or None,
            rules=rules,
            n_ctx=max(512, 8 + max(t.n_prompt + t.n_gen + t.n_depth for t in cell.tests)),
            n_batch=max(2048, cell.n_ubatch),
            n_ubatch=cell.n_ubatch,
            n_parallel=1,
            op_offload=cell.op_offload,
            no_host=self.pins_host_weights and cell.is_repacked is True,
            load_mode="none",
        )

    def work(self, cell: Cell, test: Timed) -> Work:
        """Amounts of work of one repetition of a test, the prompt and each token of it."""
        total = Work(amounts={})
        model, placement = self.model_of(cell), self.placement(cell)
        context = ContextOptions(
            n_ctx=max(512, test.n_prompt + test.n_gen + test.n_depth),
            n_ubatch=cell.n_ubatch,
            n_parallel=1,
        )
        if test.n_prompt:
            total += prefill_work(
                model,
                placement,
                self.devices,
                context=context,
                n_prompt=test.n_prompt,
                n_depth=test.n_depth,
                op_offload=cell.op_offload,
                host_is_repacked=self.is_repacked(cell),
            )
        if test.n_gen:
            token = decode_work(
                model,
                placement,
                self.devices,
                context=context,
                n_depth=test.n_depth + test.n_gen // 2,
                host_is_repacked=self.is_repacked(cell),
            )
            total += token.scaled(test.n_gen)
        return total


def even_counts(n_units: int, n_cards: int) -> tuple[int, ...]:
    """Units per card, as even as they can be."""
    return tuple(n_units * (d + 1) // n_cards - n_units * d // n_cards for d in range(n_cards))


def candidate_cells(bench: Bench, sizes: Sizes) -> tuple[Cell, ...]:
    """Every run worth considering, those that people look at first.

    Cells whose weights do not fit a card are left out.
    """
    found = [cell for cell in _all_cells(bench, sizes) if _fits(bench, cell)]
    return tuple({cell.label: cell for cell in found}.values())


def _all_cells(bench: Bench, sizes: Sizes) -> Iterator[Cell]:
    n_cards = len(bench.devices)
    n_units = bench.model.n_layer + 1
    experts = bench.model.expert_layers
    # a load takes longer than a prompt, and two lengths tell weights read from arithmetic
    tests = (
        Timed(n_gen=sizes.n_gen),
        Timed(n_prompt=sizes.n_prompt),
        Timed(n_prompt=sizes.n_prompt // 4),
    )
    if not n_cards:
        yield from _host_only(sizes, tests)
        return
    even = Cell(
        label=ANCHOR,
        counts=even_counts(n_units, n_cards),
        host_layers=(),
        n_ubatch=sizes.n_ubatch,
        tests=tests,
    )
    everything = replace(even, label="all", host_layers=experts)
    yield even
    yield everything
    if experts:
        yield from _partial(bench, even)
    yield from _cards(bench, even)
    yield from _settings(bench, sizes, even, everything)
    if bench.short_model is not None:
        yield from _short(bench.short_model, even)


def _short(model: Model, even: Cell) -> Iterator[Cell]:
    """The ends once more with fewer layers."""
    counts = even_counts(model.n_layer + 1, len(even.counts))
    short = replace(even, label="fewer layers", counts=counts, is_short=True)
    yield short
    yield replace(short, label="fewer layers, all", host_layers=model.expert_layers)


def _host_only(sizes: Sizes, tests: tuple[Timed, ...]) -> Iterator[Cell]:
    cell = Cell(label=ANCHOR, counts=(), host_layers=(), n_ubatch=sizes.n_ubatch, tests=tests)
    yield cell
    yield replace(cell, label="unpacked", is_repacked=False)
    yield from _depths_and_batches(sizes, (cell,))


def _partial(bench: Bench, even: Cell) -> Iterator[Cell]:
    """A share of the layers, taken from each card's own range, from the front, from the back."""
    experts = bench.model.expert_layers
    split = bench.placement(even).split
    own = [[il for il in experts if split.owners[il] == d] for d in range(len(bench.devices))]
    for quarters in (2, 1, 3):
        layers = [il for mine in own for il in mine[: round(len(mine) * quarters / 4)]]
        if 0 < len(layers) < len(experts):
            yield replace(even, label=f"own {quarters}/4", host_layers=tuple(layers))
    half = len(experts) // 2
    if len(bench.devices) > 1 and half:
        yield replace(even, label="first 2/4", host_layers=experts[:half])
        yield replace(even, label="last 2/4", host_layers=experts[-half:])
        for device, mine in zip(bench.devices, own, strict=True):
            yield replace(even, label=f"only {device.name}", host_layers=tuple(mine))


def _cards(bench: Bench, even: Cell) -> Iterator[Cell]:
    """Everything on one card, and some whole layers on none."""
    n_units, n_cards = sum(even.counts), len(bench.devices)
    for d, device in enumerate(bench.devices) if n_cards > 1 else ():
        counts = tuple(n_units if i == d else 0 for i in range(n_cards))
        yield replace(even, label=f"on {device.name}", counts=counts)
        yield replace(
            even,
            label=f"on {device.name}, all",
            counts=counts,
            host_layers=bench.model.expert_layers,
        )
    if n_units > 2:
        counts = even_counts(n_units // 2, n_cards)
        yield replace(even, label="half the layers", counts=counts)


def _settings(bench: Bench, sizes: Sizes, even: Cell, everything: Cell) -> Iterator[Cell]:
    yield from _depths_and_batches(sizes, (even, everything))
    if not bench.model.expert_layers:
        return
    other = bench.pins_host_weights
    label = "all, --no-host" if other else "all, not repacked"
    yield replace(everything, label=label, is_repacked=other)
    for n_threads in {bench.n_threads // 2, bench.n_threads * 2} if bench.n_threads > 1 else ():
        yield replace(everything, label=f"all, -t {n_threads}", n_threads=n_threads)
    if any(d.backend.offloads_ops for d in bench.devices):
        prompts = tuple(t for t in everything.tests if t.n_prompt)
        yield replace(everything, label="all, no op-offload", tests=prompts, op_offload=False)


def _depths_and_batches(sizes: Sizes, cells: Sequence[Cell]) -> Iterator[Cell]:
    deep = (
        Timed(n_gen=sizes.n_gen, n_depth=sizes.n_depth),
        Timed(n_prompt=sizes.n_prompt, n_depth=sizes.n_depth),
    )
    for cell in cells:
        yield replace(cell, label=f"{cell.label}, depth {sizes.n_depth}", tests=deep)
    for cell in cells:
        for n_ubatch in (sizes.n_ubatch // 4, sizes.n_ubatch * 4):
            n_prompt = max(sizes.n_prompt, n_ubatch)
            yield replace(
                cell,
                label=f"{cell.label}, -ub {n_ubatch}",
                n_ubatch=n_ubatch,
                tests=(Timed(n_prompt=n_prompt),),
            )


def _fits(bench: Bench, cell: Cell) -> bool:
    """Whether every card holds the weights it gets, with a tenth to spare for the rest."""
    model, split = bench.model_of(cell), bench.placement(cell).split
    moved = {t.name for t in model.expert_tensors if t.il in cell.host_layers}
    used = [0] * (len(bench.devices) + 1)
    for tensor in model.tensors:
        on_host = tensor.home == "input" or tensor.name in moved
        owner = split.output_owner if tensor.il is None else split.owners[tensor.il]
        used[HOST if on_host else owner] += tensor.n_bytes
    return all(
        n_bytes <= 0.9 * device.memory_free_bytes
        for n_bytes, device in zip(used, bench.devices, strict=False)
    )
