"""Models and machines for lint's examples, by the words docs/lint.md and failures.json use."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from offload.device import devices_from_flags
from offload.lint import LintReport, Machine, lint, parse_command
from offload.model import Model, make_model
from offload.source import read_header
from offload.units import parse_size_bytes
from tests.model_headers import info, model_header
from tuner.synth import write_shape

MADE_UP = "made-up-heads-of-80"
"""No catalogued model has heads that no cache type divides."""
KIMI = "kimi-linear"
"""Not in the catalogue; its name alone matters."""
DAMAGED = "damaged"
"""A model that lacks most of its tensors."""


@cache
def example_model(name: str) -> Model:
    """A model of `tuner.shapes`, its file written once and gone again."""
    if name == MADE_UP:
        return make_model(model_header("llama", embedding_length=320))
    if name == KIMI:
        return make_model(model_header("kimi-linear", kda__head_dim=16, ssm__conv_kernel=4))
    if name == DAMAGED:
        tensors = (info("token_embd.weight", 64, 100), info("blk.0.attn_q.weight", 64, 64))
        return make_model(model_header("llama", tensors))
    with tempfile.TemporaryDirectory() as folder:
        return make_model(read_header(str(write_shape(name, Path(folder) / f"{name}.gguf"))))


def example_machine(cards: str, host: str = "") -> Machine:
    """Cards separated by blanks (`no cards` for unknown ones) and the host's free memory."""
    texts = () if cards == "no cards" else tuple(cards.split())
    return Machine(
        devices=devices_from_flags(None, None, texts) if texts else None,
        host_free_bytes=parse_size_bytes(host) if host else None,
    )


def lint_example(command: str, shape: str, cards: str, host: str = "") -> LintReport:
    """Lint a command over a shape (`no model` for none) and cards."""
    model = None if shape == "no model" else example_model(shape)
    refusal = "not-here.gguf: no such file" if "not-here" in command else ""
    return lint(
        parse_command([command]),
        model=model,
        model_refusal=refusal,
        machine=example_machine(cards, host),
    )


def codes(report: LintReport) -> set[str]:
    """The codes of all findings."""
    return {finding.code for finding in report.findings}
