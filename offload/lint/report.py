"""Everything lint has to say about one command and its logs.

`examine` lays the command over the model and the cards, `lint` adds the logs and a corrected
command. Pure but for a clock that bounds the time of hostile patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offload.emit.build import NEWEST, Build
from offload.errors import OffloadError
from offload.lint.case import (
    Case,
    Machine,
    cannot_be_priced,
    choose_devices,
    ik_options,
    plan_options,
    price_case,
    usable_rules,
)
from offload.lint.command import Command
from offload.lint.expert_findings import expert_findings
from offload.lint.finding import Finding, Severity, note, sort_key
from offload.lint.fixing import fixed_command
from offload.lint.load_findings import load_findings
from offload.lint.log_findings import log_findings
from offload.lint.memory_findings import memory_findings, over_bytes
from offload.lint.reading import read_settings, several_variants
from offload.lint.refusal_findings import refusal_findings
from offload.lint.rule_findings import rule_findings
from offload.lint.settings import Settings
from offload.lint.split_findings import split_findings
from offload.lint.user_rules import Matcher, expand_overrides
from offload.model import Model
from offload.plan import LAYERS_MAX, Plan

_FAMILIES = (
    refusal_findings,
    memory_findings,
    rule_findings,
    expert_findings,
    split_findings,
    load_findings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """Findings, errors first; `plan` prices the command; `fixed_argv` may be empty."""

    findings: tuple[Finding, ...]
    plan: Plan | None
    fixed_argv: tuple[str, ...]

    @property
    def has_errors(self) -> bool:
        """True where llama.cpp would stop or a card would overflow."""
        return any(f.severity is Severity.ERROR for f in self.findings)


def lint(
    command: Command | None,
    *,
    model: Model | None = None,
    model_refusal: str = "",
    machine: Machine | None = None,
    logs: Sequence[Sequence[str]] = (),
    build: Build = NEWEST,
) -> LintReport:
    """All findings about a command and the logs of its runs; either may be missing.

    `model_refusal` says why the model could not be read, `build` what the program knows.
    """
    machine = machine or Machine()
    if command is None:
        findings = tuple(sorted(log_findings(logs), key=sort_key))
        return LintReport(findings=findings, plan=None, fixed_argv=())
    case, found = examine(command, model, machine)
    if model is None:
        found.append(_no_model(case, model_refusal))
    if logs:
        found += log_findings(logs, case.plan)
    fixed = fixed_command(case, found, examine, build)
    return LintReport(
        findings=tuple(sorted(_once(found), key=sort_key)), plan=case.plan, fixed_argv=fixed
    )


def examine(command: Command, model: Model | None, machine: Machine) -> tuple[Case, list[Finding]]:
    """The command priced, with everything there is to find about it."""
    settings = read_settings(command)
    rules, wrong_rules = expand_overrides(
        settings.overrides, LAYERS_MAX if model is None else model.n_layer
    )
    devices, wrong_devices = choose_devices(
        machine.devices or (), settings, is_known=machine.devices is not None
    )
    matcher = None if model is None else Matcher(model.tensor_names)
    matches = () if matcher is None else tuple(matcher.matches(rules))
    found = [*command.findings, *settings.findings, *wrong_rules, *wrong_devices]
    if matcher is not None:
        found += matcher.findings
    if machine.devices is None:
        found.append(_no_cards())
    case = Case(
        command=command,
        settings=settings,
        model=model,
        machine=machine,
        devices=devices,
        rules=tuple(rules),
        matches=matches,
        matcher=matcher,
        plan=None,
        plan_at_full_context=None,
    )
    case, unpriced = _priced(case)
    found += unpriced
    if (variants := several_variants(command)) is not None:
        found.append(variants)
    for family in _FAMILIES:
        found += family(case)
    return case, found


def _no_model(case: Case, refusal: str) -> Finding:
    if refusal:
        return note(
            "model-not-read",
            f"{refusal}; only what needs no model is found",
            "--model FILE lays the command over another file",
        )
    named = case.settings.model_path is not None
    return note(
        "no-model",
        "no model was given to lay the command over"
        if named
        else "the command names no model file (-m), so only what needs none is found",
        "-m FILE, or offload lint --model FILE",
    )


def _no_cards() -> Finding:
    return note(
        "no-cards",
        "no cards were found or described, so nothing is said about memory per card",
        "--gpus 2 --vram 24GiB, or --gpu NAME:SIZE for each",
    )


def _priced(case: Case) -> tuple[Case, list[Finding]]:
    """The case with its plan; with the smallest context where `--fit` would reduce it."""
    model, settings = case.model, case.settings
    if model is None or not case.devices:
        return case, []
    rules = usable_rules(case.matches, case.devices)
    try:
        options = plan_options(model, settings, case.devices, rules, case.machine.margin_bytes)
    except OffloadError as why:
        return case, [cannot_be_priced(why)]
    full, findings = price_case(model, case.devices, options, case.machine.host_free_bytes)
    if full is not None and settings.is_ik and len(case.devices) > 1:
        options = ik_options(full)
        full, findings = price_case(model, case.devices, options, case.machine.host_free_bytes)
    plan = full
    if full is not None and _would_reduce(settings, full):
        smaller = replace(options, n_ctx=max(settings.fit_ctx, 256))
        reduced, _ = price_case(model, case.devices, smaller, case.machine.host_free_bytes)
        plan = reduced or full
    return replace(case, plan=plan, plan_at_full_context=full), findings


def _would_reduce(settings: Settings, plan: Plan) -> bool:
    """Step 2 of `common_params_fit_impl` (common/fit.cpp, b11434)."""
    n_cards = len(plan.devices)
    return (
        settings.fit
        and settings.n_ctx is None  # an explicit 0 asks for all of it
        and settings.split_mode != "tensor"
        and plan.context.n_ctx > settings.fit_ctx
        and any(over_bytes(plan, d) + plan.margins_bytes[d] > 0 for d in range(n_cards))
    )


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """The same finding twice is told once."""
    return list(dict.fromkeys(findings))
