"""How is the value of each flag read, and when is it refused?

Mirrors the handlers of common/arg.cpp and the lists of tools/llama-bench
(b11434). What cannot be meant becomes a finding, and the default stands in.
Of llama-bench's variants the first is taken, of its sizes the largest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from offload.ggml import TYPES_BY_NAME
from offload.lint.command import Command, Program, Setting
from offload.lint.finding import Finding, error, note, warning
from offload.lint.flags import LOAD_MODE_OF_REMOVED, is_negative
from offload.lint.settings import Override, Settings
from offload.options import KV_TYPES, LOAD_MODES, SERVER_SLOTS

_INT: Final = re.compile(r"\s*([+-]?\d{1,12})", re.ASCII)
_FLOAT: Final = re.compile(r"\s*([+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})(e[+-]?\d{1,2})?)", re.I)
_INT_MAX: Final = 2**31 - 1
_SHARES: Final = re.compile(r"[,/]+")
_BENCH_SHARES: Final = re.compile(r"[;/]+")
_RANGE: Final = re.compile(r"(-?\d{1,10})(?:-(\d{1,10})(?:[+*]\d{1,10})?)?", re.ASCII)
TRUTHY: Final = frozenset("on enabled true 1".split())
FALSY: Final = frozenset("off disabled false 0".split())
_IK_SPLIT_MODES: Final = ("graph", "attn")
_BATCH_MAX: Final = 1 << 24


def read_settings(command: Command) -> Settings:
    """The settings of a command, with a finding for each value that cannot be meant."""
    settings = Settings(kind=command.kind, is_ik=command.is_ik)
    if command.kind is Program.BENCH:
        settings.fit = False
        settings.n_parallel = 1
    elif command.kind is Program.OTHER:
        settings.n_parallel = 1
    for setting in command.settings:
        handler = _HANDLERS.get(setting.name)
        if handler is not None and (setting.values or not setting.is_env):
            handler(settings, setting)
        elif setting.name in LOAD_MODE_OF_REMOVED:
            settings.load_mode = LOAD_MODE_OF_REMOVED[setting.name]
            settings.sets_load_mode = True
    if command.kind is Program.BENCH:
        _set_bench_context(settings, command)
    elif settings.n_ctx is None and settings.n_ctx_per_slot:
        settings.n_ctx = settings.n_ctx_per_slot * (settings.n_parallel or SERVER_SLOTS)
    return settings


def _bad(settings: Settings, setting: Setting, why: str) -> None:
    shown = " ".join(setting.words)
    shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
    flag = setting.spelling
    settings.findings.append(
        error("bad-value", f"{shown}: {why}; llama.cpp stops", f"{flag} with a value it takes")
    )


def _int_of(text: str) -> int | None:
    """`std::stoi`: leading digits count, what follows them does not."""
    match = _INT.match(text)
    if match is None or not -_INT_MAX <= int(match[1]) <= _INT_MAX:
        return None
    return int(match[1])


def _values(settings: Settings, setting: Setting) -> list[str]:
    """The value, or the variants of a value of llama-bench."""
    value = setting.values[-1]
    return value.split(",") if settings.kind is Program.BENCH else [value]


def _ints(settings: Settings, setting: Setting) -> list[int]:
    """Whole numbers; of a range of llama-bench its two ends."""
    numbers: list[int] = []
    for text in _values(settings, setting):
        if settings.kind is Program.BENCH:
            match = _RANGE.fullmatch(text)
            found = [] if match is None else [int(g) for g in match.groups() if g is not None]
        else:
            number = _int_of(text)
            found = [] if number is None else [number]
        if not found:
            _bad(settings, setting, "not a whole number")
        numbers += found
    return numbers


def _number(
    name: str, low: int, high: int, *, pick: Callable[[list[int]], int] = max
) -> Callable[[Settings, Setting], None]:
    """A handler that sets field `name` to a number between `low` and `high`."""

    def handle(settings: Settings, setting: Setting) -> None:
        numbers = _ints(settings, setting)
        if not numbers:
            return
        number = pick(numbers)
        if low <= number <= high:
            setattr(settings, name, number)
        else:
            _bad(settings, setting, f"must be between {low} and {high}")

    return handle


def _first(numbers: list[int]) -> int:
    return numbers[0]


def _switch(name: str, *, inverted: bool = False) -> Callable[[Settings, Setting], None]:
    """A handler for a flag without value, which llama-bench and the environment give as 0 or 1.

    `inverted` fields are named by what the flag's first spelling switches off (`-nkvo 1`).
    """

    def handle(settings: Settings, setting: Setting) -> None:
        if setting.values:
            value = setting.values[-1].split(",")[0].lower() in TRUTHY
            is_on = value != (inverted and settings.kind is Program.BENCH)
        else:
            is_on = not is_negative(setting.spelling)
        setattr(settings, name, is_on)

    return handle


def _text(name: str) -> Callable[[Settings, Setting], None]:
    def handle(settings: Settings, setting: Setting) -> None:
        setattr(settings, name, _values(settings, setting)[0])

    return handle


def _set_n_parallel(settings: Settings, setting: Setting) -> None:
    for number in _ints(settings, setting):
        if number == -1 and settings.kind is Program.SERVER:
            settings.n_parallel = None
        elif 1 <= number <= 256:
            settings.n_parallel = number
        else:
            _bad(settings, setting, "between 1 and 256 sequences")


def _set_kv_type(name: str) -> Callable[[Settings, Setting], None]:
    def handle(settings: Settings, setting: Setting) -> None:
        text = _values(settings, setting)[0]
        if text in KV_TYPES or (settings.is_ik and text.upper() in TYPES_BY_NAME):
            setattr(settings, name, TYPES_BY_NAME[text.upper()])
        else:
            _bad(settings, setting, f"no KV cache type; one of {', '.join(KV_TYPES)}")

    return handle


def _set_flash_attn(settings: Settings, setting: Setting) -> None:
    text = _values(settings, setting)[0]
    if text in TRUTHY or text in FALSY:
        settings.flash_attn = text in TRUTHY
    elif text in ("auto", "-1"):
        settings.flash_attn = None
    else:
        _bad(settings, setting, "on, off or auto")


def _set_n_gpu_layers(settings: Settings, setting: Setting) -> None:
    text = _values(settings, setting)[0]
    if text in ("auto", "all"):
        settings.n_gpu_layers = None if text == "auto" else -2
        return
    number = _int_of(text)
    if number is None:
        _bad(settings, setting, "a number, all or auto")
    else:
        # -1 is the default and leaves --fit at work; all others below zero mean all
        settings.n_gpu_layers = None if number == -1 else max(number, -2)


def _set_tensor_split(settings: Settings, setting: Setting) -> None:
    text = setting.values[-1]
    if settings.kind is Program.BENCH:
        variants = text.split(",")
        parts = _BENCH_SHARES.split(variants[0])
        if len(variants) > 1:
            settings.findings.append(_comma_in_bench(setting, "/", variants))
    else:
        parts = _SHARES.split(text)
    shares: list[float] = []
    for part in parts:
        match = _FLOAT.match(part)
        share = float(match[1]) if match else -1.0
        if not 0 <= share < 3e38:
            _bad(settings, setting, "shares are numbers of 0 or more")
            return
        shares.append(share)
    if len(shares) >= 16 and settings.kind is not Program.BENCH:
        _bad(settings, setting, "llama.cpp takes fewer than 16 shares")
        return
    settings.tensor_split = tuple(shares) if any(shares) else None


def _comma_in_bench(setting: Setting, separator: str, variants: list[str]) -> Finding:
    return warning(
        "bench-variants",
        f"{setting.spelling}: llama-bench splits at ',' into {len(variants)} separate test"
        " variants; the parts of one variant are joined by another sign. Figures are those of"
        " the first",
        f"{setting.spelling} '{separator.join(variants)[:200]}'",
    )


def _set_override(settings: Settings, setting: Setting) -> None:
    text = setting.values[-1]
    if settings.kind is Program.BENCH:
        variants = [part for part in text.split(",") if part]
        if len(variants) > 1:
            settings.findings.append(_comma_in_bench(setting, ";", variants))
        text = variants[0].replace(";", ",") if variants else ""
    if text:
        settings.overrides += (Override(flag="-ot", text=text),)


def _set_n_layers(flag: str) -> Callable[[Settings, Setting], None]:
    def handle(settings: Settings, setting: Setting) -> None:
        numbers = _ints(settings, setting)
        if numbers and numbers[0] < 0:
            _bad(settings, setting, "a number of layers is not negative")
        elif numbers and numbers[0]:
            settings.overrides += (Override(flag=flag, n_layers=numbers[0]),)

    return handle


def _set_cpu_moe(settings: Settings, setting: Setting) -> None:
    if not setting.values or setting.values[-1].lower() in TRUTHY:
        settings.overrides += (Override(flag="-cmoe"),)


def _set_devices(settings: Settings, setting: Setting) -> None:
    text = setting.values[-1]
    if settings.kind is Program.BENCH:
        variants = text.split(",")
        if len(variants) > 1:
            settings.findings.append(_comma_in_bench(setting, "/", variants))
        text = variants[0].replace("/", ",")
        if text == "auto":
            return
    settings.device_names = tuple(name for name in text.split(",") if name)


def _set_word(name: str, known: tuple[str, ...]) -> Callable[[Settings, Setting], None]:
    def handle(settings: Settings, setting: Setting) -> None:
        text = _values(settings, setting)[0]
        if text in known or (name == "split_mode" and settings.is_ik and text in _IK_SPLIT_MODES):
            setattr(settings, name, text)
        else:
            _bad(settings, setting, f"one of {', '.join(known)}")

    return handle


def _set_load_mode(settings: Settings, setting: Setting) -> None:
    _set_word("load_mode", LOAD_MODES)(settings, setting)
    settings.sets_load_mode = settings.load_mode != "auto"


def _set_rpc(settings: Settings, setting: Setting) -> None:
    settings.rpc = tuple(part for part in setting.values[-1].split(",") if part)


def _set_fit(settings: Settings, setting: Setting) -> None:
    text = setting.values[-1].lower()
    if text in TRUTHY or text in FALSY:
        settings.fit = settings.fit_wanted = text in TRUTHY
    else:
        _bad(settings, setting, "on or off")


def _set_fit_target(settings: Settings, setting: Setting) -> None:
    settings.fit = settings.fit_wanted = True


def _set_fit_ctx(settings: Settings, setting: Setting) -> None:
    settings.fit = settings.fit_wanted = True
    _number("fit_ctx", 0, _INT_MAX)(settings, setting)


def _set_spec_type(settings: Settings, setting: Setting) -> None:
    settings.drafts_with_mtp |= "draft-mtp" in setting.values[-1].split(",")


def _flag(name: str) -> Callable[[Settings, Setting], None]:
    def handle(settings: Settings, setting: Setting) -> None:
        setattr(settings, name, True)

    return handle


_HANDLERS: Final[dict[str, Callable[[Settings, Setting], None]]] = {
    "-m": _text("model_path"),
    "-c": _number("n_ctx", 0, 1 << 30),
    "--kv-unified-per-slot": _number("n_ctx_per_slot", 0, 1 << 24),
    "-b": _number("n_batch", 1, _BATCH_MAX),
    "-ub": _number("n_ubatch", 1, _BATCH_MAX),
    "-np": _set_n_parallel,
    "-kvu": _switch("kv_unified"),
    "-ctk": _set_kv_type("type_k"),
    "-ctv": _set_kv_type("type_v"),
    "-fa": _set_flash_attn,
    "--swa-full": _switch("swa_full"),
    "-kvo": _switch("offload_kqv"),
    "-nkvo": _switch("offload_kqv", inverted=True),
    "--op-offload": _switch("op_offload"),
    "-nopo": _switch("op_offload", inverted=True),
    "--no-host": _switch("no_host"),
    "-ngl": _set_n_gpu_layers,
    "-ts": _set_tensor_split,
    "-sm": _set_word("split_mode", ("none", "layer", "row", "tensor")),
    "-mg": _number("main_gpu", -_INT_MAX, _INT_MAX, pick=_first),
    "-ot": _set_override,
    "-cmoe": _set_cpu_moe,
    "-ncmoe": _set_n_layers("-ncmoe"),
    "-ncffn": _set_n_layers("-ncffn"),
    "-dev": _set_devices,
    "--rpc": _set_rpc,
    "-rpc": _set_rpc,
    "-lm": _set_load_mode,
    "-fit": _set_fit,
    "-fitt": _set_fit_target,
    "-fitc": _set_fit_ctx,
    "--spec-draft-model": _flag("has_draft_model"),
    "--spec-draft-hf": _flag("has_draft_model"),
    "--spec-draft-override-tensor": _flag("draft_has_overrides"),
    "--spec-draft-cpu-moe": _flag("draft_has_overrides"),
    "--spec-draft-n-cpu-moe": _flag("draft_has_overrides"),
    "--spec-type": _set_spec_type,
    "-mm": _flag("has_projector"),
}


def _set_bench_context(settings: Settings, command: Command) -> None:
    """`n_ctx = n_prompt + n_gen + n_depth` of the longest test (`to_llama_cparams`)."""
    sizes = {"-p": [512], "-n": [128], "-d": [0]}
    pairs = [0]
    for setting in command.settings:
        if setting.name in sizes and setting.values:
            sizes[setting.name] = _ints(settings, setting) or sizes[setting.name]
        elif setting.name == "-pg" and setting.values:
            pairs.append(sum(_int_of(part) or 0 for part in setting.values[-1].split(",")[:2]))
    settings.n_prompt = max(sizes["-p"])
    longest = max(*sizes["-p"], *sizes["-n"], *pairs) + max(sizes["-d"])
    settings.n_ctx = min(max(longest, 1), 1 << 30)


def several_variants(command: Command) -> Finding | None:
    """A note where llama-bench is asked for several placements."""
    if command.kind is not Program.BENCH:
        return None
    for name in ("-ngl", "-ncmoe", "-sm"):
        for setting in command.of(name):
            if setting.values and re.search(r"[,+*]|\d-\d", setting.values[-1]):
                return note(
                    "bench-variants",
                    f"{setting.spelling} {setting.values[-1][:60]}: several variants; figures are"
                    " those of the first",
                )
    return None
