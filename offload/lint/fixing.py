"""What should the command be instead?

The planner is asked with what the user set, less what findings complain about; then with less
and less of it, last with a smaller context. The first command that fits and lints without an
error is the answer. Everything that does not decide placement is kept as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from offload.device import Device
from offload.emit import Launch, emit_bench_args, emit_server_args, make_launch
from offload.emit.build import NEWEST, Build
from offload.emit.ik import emit_ik_args
from offload.errors import OffloadError
from offload.ggml import TYPES_BY_NAME
from offload.lint.case import Case, Machine, own_rules, plan_options
from offload.lint.command import Command, Program, Setting, parse_command
from offload.lint.finding import Finding, Severity
from offload.lint.flags import ENV, LOAD_MODE_OF_REMOVED, REMOVED
from offload.model import Model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.split import HOST

Examine = Callable[[Command, Model | None, Machine], tuple[Case, list[Finding]]]

_OWNED: Final = frozenset(
    "-m --rpc -rpc -dev -ngl -sm -mg -ts -ot -cmoe -ncmoe -ncffn -c -b -ub -np -kvu -ctk -ctv -fa"
    " --kv-unified-per-slot --swa-full -kvo -nkvo --op-offload -nopo --no-host -fit -fitt"
    " -fitc -lm".split()
)
"""Flags that the planner writes anew."""
_RULE_CODES: Final = frozenset(
    "comma-or-equals-in-rule bad-regex slow-regex class-as-number glob-or-space-in-rule"
    " unknown-buffer too-many-rules rule-matches-nothing rule-matches-too-much rule-shadowed"
    " moe-flag-on-dense ncpu-ffn-on-moe ncmoe-relieves-first-card-only expert-off-its-owner"
    " up-gate-apart kv-elsewhere mtp-on-host".split()
)
_SPLIT_CODES: Final = frozenset(("tensor-split-length", "kv-elsewhere", "expert-off-its-owner"))
_CONTEXTS: Final = (131072, 65536, 32768, 16384, 8192, 4096)
_Q8_0: Final = TYPES_BY_NAME["Q8_0"]


def fixed_command(
    case: Case,
    findings: Sequence[Finding],
    examine: Examine,
    build: Build = NEWEST,
) -> tuple[str, ...]:
    """The corrected argv; the command as given where nothing is wrong, () where nothing helps."""
    if all(f.severity is Severity.NOTE for f in findings):
        return _as_given(case.command)
    codes = {f.code for f in findings if f.severity is not Severity.NOTE}
    if case.model is None or not case.devices:
        return _if_clean(_mended(case.command), case, examine, build)
    mended = _mended(case.command)
    _, left = examine(parse_command(mended, build.flags, is_argv=True), case.model, case.machine)
    if all(f.severity is Severity.NOTE for f in left):
        return mended  # only words were wrong
    best: tuple[int, tuple[str, ...]] | None = None
    for devices, options, is_last_resort in _candidates(case, codes):
        if best is not None and is_last_resort:
            break
        plan = _planned(case, devices, options)
        if plan is None:
            continue
        n_hosted = len(plan.split.layers_of(HOST))
        if best is not None and n_hosted >= best[0]:
            continue
        argv = _if_clean(_assembled(case, plan, build), case, examine, build)
        if argv and not n_hosted:
            return argv
        if argv:
            # whole layers on the host are the last resort: asking for less may need none
            best = (n_hosted, argv)
    return () if best is None else best[1]


def _planned(case: Case, devices: tuple[Device, ...], options: PlanOptions) -> Plan | None:
    """The plan, if it fits."""
    assert case.model is not None
    try:
        plan = make_plan(
            case.model,
            devices,
            options,
            host_free_bytes=case.machine.host_free_bytes,
            with_advice=False,
        )
    except OffloadError:
        return None
    return plan if plan.feasible or _reads_from_disk(plan) else None


def _if_clean(argv: tuple[str, ...], case: Case, examine: Examine, build: Build) -> tuple[str, ...]:
    """The argv, unless linting it again finds an error."""
    if not argv:
        return ()
    _, found = examine(parse_command(argv, build.flags, is_argv=True), case.model, case.machine)
    return () if any(f.severity is Severity.ERROR for f in found) else argv


def _reads_from_disk(plan: Plan) -> bool:
    """Short of host memory only, with mapped weights: slow, but it runs."""
    return set(plan.short_bytes) == {HOST} and plan.options.load_mode == "mmap"


def _candidates(
    case: Case, codes: set[str]
) -> Iterator[tuple[tuple[Device, ...], PlanOptions, bool]]:
    """What to ask the planner, the nearest to the user's words first; True for a last resort."""
    settings, devices = case.settings, case.devices
    assert case.model is not None
    if "slow-link-first" in codes:
        # only the first place matters, so that the rest keeps the user's order
        best = max(range(len(devices)), key=lambda d: devices[d].link_bytes_per_s or 0)
        devices = (devices[best], *devices[:best], *devices[best + 1 :])
    if "rpc-not-needed" in codes:
        devices = tuple(card for card in devices if card.endpoint is None)
    is_faulty = bool(codes & _RULE_CODES)
    rules = () if is_faulty else own_rules(case.matches, devices)
    n_cpu_moe = max((o.n_layers for o in settings.overrides if o.flag == "-ncmoe"), default=0)
    options = replace(
        plan_options(case.model, settings, devices, rules, case.machine.margin_bytes),
        strategy=Strategy.OWN,
        n_ctx=settings.n_ctx,
        cpu_moe=not is_faulty and any(o.flag == "-cmoe" for o in settings.overrides),
        n_cpu_moe=None if is_faulty else n_cpu_moe or None,
        tensor_split=settings.tensor_split if len(devices) == len(case.devices) else None,
        n_batch=max(settings.n_batch, settings.n_ubatch),
        load_mode=settings.load_mode
        if settings.sets_load_mode and "mmap-with-host-experts" not in codes
        else None,
        rpc=",".join(settings.rpc) or None if len(devices) == len(case.devices) else None,
        device_names=tuple(card.name for card in devices)
        if settings.device_names is not None or devices != case.devices
        else (),
    )
    if "slots-do-not-divide-ubatch" in codes and options.n_parallel:
        n = options.n_parallel
        options = replace(options, n_ubatch=max(options.n_ubatch // n, 1) * n)
    if codes & _SPLIT_CODES or devices != case.devices:
        options = replace(options, tensor_split=None)
    if "layers-left-on-host" in codes:
        options = replace(options, n_gpu_layers=None)
    yield devices, options, False
    options = replace(options, override_rules=(), cpu_moe=False, n_cpu_moe=None, n_gpu_layers=None)
    yield devices, options, False
    options = replace(options, tensor_split=None, load_mode=None)
    yield devices, options, False
    yield from ((devices, smaller, True) for smaller in _smaller(case, options))
    yield devices, replace(options, load_mode="mmap"), True


def _smaller(case: Case, options: PlanOptions) -> Iterator[PlanOptions]:
    """The same with less context, then with a smaller cache too; llama-bench has no choice."""
    if case.command.kind is Program.BENCH or case.model is None:
        return
    wanted = options.n_ctx or case.model.n_ctx_train or _CONTEXTS[0]
    for n_ctx in _CONTEXTS:
        if n_ctx < wanted:
            yield replace(options, n_ctx=n_ctx)
    if options.flash_attn is not False and case.model.has_flash_attn:
        yield replace(options, n_ctx=min(wanted, 4096), type_k=_Q8_0, type_v=_Q8_0)
    yield replace(options, n_ctx=min(wanted, 4096), n_ubatch=128)


def _prefix(command: Command) -> tuple[str, ...]:
    """Words before the program, without the variables that flags now stand for."""
    words: list[str] = []
    for word in command.prefix:
        if word.partition("=")[0] not in ENV:
            words.append(word)
        elif words and words[-1] in ("-e", "--env"):
            words.pop()  # docker's
    needs_env = words[:1] and "=" in words[0].split("/")[0] and not words[0].startswith("-")
    return ("env", *words) if needs_env else tuple(words)


def _kept(settings: Sequence[Setting], is_ik: bool) -> Iterator[str]:
    """Flags that do not decide placement, as they were written."""
    for setting in settings:
        is_mode = setting.name in LOAD_MODE_OF_REMOVED
        is_gone = is_mode or (setting.name in REMOVED and not is_ik)
        is_gone |= setting.is_env or not setting.name or setting.name == "--fit-margin"
        if not is_gone and setting.name not in _OWNED:
            yield from setting.words


def _as_given(command: Command) -> tuple[str, ...]:
    settings = [word for s in command.settings if not s.is_env for word in s.words]
    needs_env = command.prefix[:1] and "=" in command.prefix[0]
    prefix = ("env", *command.prefix) if needs_env else command.prefix
    return (*prefix, *command.program, *settings)


def _mended(command: Command) -> tuple[str, ...]:
    """Only the words mended: what no program takes is left out, old flags are written anew."""
    words: list[str] = []
    for setting in command.settings:
        if setting.is_env or not setting.name:
            continue
        mode = LOAD_MODE_OF_REMOVED.get(setting.name)
        if mode is not None and not command.is_ik:
            words += ("-lm", mode)
        elif setting.name not in REMOVED or command.is_ik:
            words += setting.words
    needs_env = command.prefix[:1] and "=" in command.prefix[0]
    prefix = ("env", *command.prefix) if needs_env else command.prefix
    return (*prefix, *command.program, *words)


def _assembled(case: Case, plan: Plan, build: Build) -> tuple[str, ...]:
    """The plan's flags and what the user wrote besides; () where the program cannot be told."""
    command = case.command
    program = command.program[-1]
    launch: Launch = replace(make_launch(plan), model_path=case.settings.model_path or "")
    if command.kind is Program.OTHER:
        launch = replace(launch, n_parallel=None)
    try:
        if command.kind is Program.BENCH:
            argv = emit_bench_args(launch, program, build)
        elif command.is_ik:
            argv = emit_ik_args(launch, program)
        else:
            argv = emit_server_args(launch, program, build=build)
    except OffloadError:
        return ()
    if case.settings.model_path is None:
        argv = (argv[0], *argv[3:])  # a repository or nothing stands for -m
    kept = list(_kept(command.settings, command.is_ik))
    n_prompt, n_ubatch = case.settings.n_prompt, launch.n_ubatch
    if command.kind is Program.BENCH and n_prompt and n_prompt < n_ubatch:
        # a prompt shorter than the ubatch hides what is to be measured
        kept = [word for s in command.settings if s.name != "-p" for word in _kept([s], False)]
        kept += ["-p", str(n_ubatch)]
    return (*_prefix(command), *command.program[:-1], *argv, *kept)
