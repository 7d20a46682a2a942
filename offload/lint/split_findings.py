"""Which layers go where, and who decides it: the user, free memory, or `--fit`?

Mirrors the split of `llama_model_base::load_tensors`, `make_gpu_buft_list`
(src/llama-model.cpp) and the conditions of `common_params_fit_impl`
(common/fit.cpp, b11434).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from offload.lint.case import Case
from offload.lint.command import Program
from offload.lint.finding import Finding, error, note, warning
from offload.lint.memory_findings import over_bytes
from offload.plan import Plan
from offload.render.text import ranges
from offload.split import HOST

_HAS_ROW_SPLIT: Final = ("SYCL",)
"""Backends of b11434 with `ggml_backend_split_buffer_type`; CUDA lost its one in 2026."""


def split_findings(case: Case) -> Iterator[Finding]:
    """Findings about `-ngl`, `-ts`, `-sm` and `--fit`."""
    yield from _split_mode(case)
    yield from _fit(case)
    yield from _shares(case)
    if case.plan is not None:
        yield from _host_layers(case, case.plan)
        yield from _idle_cards(case, case.plan)


def _split_mode(case: Case) -> Iterator[Finding]:
    mode = case.settings.split_mode
    has_rpc = bool(case.settings.rpc) or any(d.backend.name == "RPC" for d in case.devices)
    if mode == "row" and has_rpc:
        yield error(
            "rpc-with-row-split",
            "-sm row splits each matrix over the cards of one backend; an RPC device has no such"
            " buffers and llama.cpp stops ('does not support split buffers')",
            "-sm layer",
        )
    elif mode == "row":
        names = [d.name for d in case.devices if d.backend.name not in _HAS_ROW_SPLIT]
        text = (
            "-sm row splits each matrix over all cards: every layer then waits for every card, KV"
            " and small tensors stay on one card, and experts are not split well"
        )
        if names and not case.settings.is_ik:
            yield error(
                "split-mode-row",
                f"{text}. b11434 has it for SYCL only and stops: 'device {names[0]} does not"
                " support split buffers'",
                "-sm layer",
            )
        else:
            yield warning("split-mode-row", text, "-sm layer")
    elif mode not in ("layer", "none"):
        yield warning(
            "split-mode-tensor",
            f"-sm {mode} cuts every layer over all cards: --fit refuses it, many architectures are"
            " not supported, and what each card needs cannot be told from the header. Figures are"
            " those of -sm layer",
            "-sm layer",
        )


def _fit(case: Case) -> Iterator[Finding]:
    settings = case.settings
    blockers = case.fit_blockers
    if not settings.fit or not blockers or case.command.kind is Program.BENCH:
        return
    listed, n_cards = " and ".join(blockers), len(case.devices)
    text = (
        f"{listed} set by you: --fit then gives up ('already set by user, abort') and llama.cpp"
        " loads unfitted, whether it fits or not"
    )
    if settings.fit_wanted:
        yield warning(
            "fit-switched-off", text, f"either leave {listed} to --fit, or write -fit off"
        )
    elif case.plan is not None and any(over_bytes(case.plan, d) > 0 for d in range(n_cards)):
        yield note("fit-switched-off", f"--fit is on by default, but {text}", "-fit off")


def _shares(case: Case) -> Iterator[Finding]:
    settings, n_cards = case.settings, len(case.devices)
    shares = settings.tensor_split
    if shares is not None and case.machine.devices is not None and settings.split_mode == "layer":
        if len(shares) > n_cards and any(shares[n_cards:]):
            yield warning(
                "tensor-split-length",
                f"-ts has {len(shares)} shares for {n_cards} card(s): llama.cpp drops the rest",
                "one share for each card, in the order of -dev",
            )
        elif len(shares) < n_cards:
            yield warning(
                "tensor-split-length",
                f"-ts has {len(shares)} shares for {n_cards} cards: those without a share get no"
                " layer",
                "one share for each card, in the order of -dev",
            )
    if n_cards > 1 and shares is None and settings.split_mode == "layer":
        fix = ""
        if case.plan is not None:
            fix = "-ts " + ",".join(map(str, case.plan.split.counts(n_cards)))
        yield note(
            "no-tensor-split",
            "without -ts layers are shared by the memory that is free when llama.cpp starts, so"
            " the same command may split otherwise tomorrow; figures are for the memory given here",
            fix,
        )


def _host_layers(case: Case, plan: Plan) -> Iterator[Finding]:
    n_gpu_layers = case.settings.n_gpu_layers
    layers = plan.split.layers_of(HOST)
    if n_gpu_layers is None or n_gpu_layers < 0 or not plan.devices or not layers:
        return
    model = plan.model
    units = model.n_layer + 1
    mtp = (
        f", {model.n_layer_nextn} of them the MTP block(s), which take a unit though they load"
        " nothing"
        if model.n_layer_nextn
        else ""
    )
    if n_gpu_layers == 0:
        text = "-ngl 0: everything is computed on the host, the cards only help with long prompts"
    else:
        text = (
            f"-ngl {n_gpu_layers} of {units} units ({model.n_layer} blocks and the output"
            f" layer{mtp}) leaves the attention and the KV cache of {len(layers)} layer(s),"
            f" {ranges(layers)}, on the host"
        )
    moe = " and experts to the host by -ot" if model.expert_tensors else ""
    yield warning("layers-left-on-host", text, f"-ngl 99{moe}")


def _idle_cards(case: Case, plan: Plan) -> Iterator[Finding]:
    if case.settings.tensor_split is None:
        return
    for d, card in enumerate(plan.devices):
        if not plan.split.layers_of(d) and plan.split.output_owner != d:
            yield note(
                "card-without-layers",
                f"{card.name} gets no layer: its share in -ts is zero or less than one layer",
                f"leave it out with -dev, or give it a share: of {plan.model.n_layer + 1} units",
            )
