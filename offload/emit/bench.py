"""The llama-bench command line of a launch.

llama-bench has separators of its own (tools/llama-bench/llama-bench.cpp,
b11434): `,` separates whole test variants, so shares and devices are joined by
`/` and overrides by `;`, and no value may hold what separates it. It has no
slots and no `-c`: prompt, generation and depth are the user's to add.
"""

from __future__ import annotations

from collections.abc import Iterator

from offload.emit.build import NEWEST, Build
from offload.emit.launch import Launch
from offload.emit.settings import (
    Setting,
    adapt,
    check_partial_layers,
    render_shares,
    with_rules_only,
)
from offload.errors import UsageError
from offload.rules import render_overrides


def emit_bench_args(
    launch: Launch, program: str = "llama-bench", build: Build = NEWEST
) -> tuple[str, ...]:
    """The argv that benches the planned placement; UsageError for what it cannot be told."""
    check_partial_layers(launch, build)
    _check_separators(launch)
    argv = [program]
    # -cmoe does not exist here, and -ncmoe would come before the rules
    for setting in _settings(with_rules_only(launch)):
        for adapted in _in_older_words(setting, build):
            argv += adapted.argv
    return tuple(argv)


def _check_separators(launch: Launch) -> None:
    if "," in launch.model_path:
        raise UsageError(
            f"{launch.model_path}: llama-bench splits paths at commas; link the model to a path"
            " without one and give that with --model"
        )
    if any(";" in rule.pattern + rule.buffer_type for rule in launch.rules):
        raise UsageError("llama-bench splits rules at ';', and one of yours has it")
    if any("/" in name for name in launch.devices):
        raise UsageError("llama-bench splits devices at '/', and one of yours has it")


def _in_older_words(setting: Setting, build: Build) -> Iterator[Setting]:
    """Builds whose help shows `0|1` want numbers; those without `-lm` have `-mmp`."""
    if build.flags is not None and build.spelling(setting.spellings) is None:
        if "-lm" in setting.spellings and "-mmp" in build.flags:
            if setting.value not in ("auto", "mmap", "none"):
                raise UsageError(
                    f"{build.describe()} of llama-bench has no --load-mode {setting.value}"
                )
            is_mapped = setting.value != "none"
            yield Setting(spellings=("-mmp",), value="1" if is_mapped else "0")
            return
        if (setting.spellings[0], setting.value) in _DEFAULTS:
            return
    for adapted in adapt(setting, build):
        if "-fa" in setting.spellings and build.hints.get(adapted.spellings[0], "").startswith(
            "<0|1>"
        ):
            yield Setting(spellings=adapted.spellings, value="1" if setting.value == "on" else "0")
        else:
            yield adapted


_DEFAULTS = {("-lm", "auto"), ("-lm", "mmap"), ("-ctk", "f16"), ("-ctv", "f16")}


def _settings(launch: Launch) -> Iterator[Setting]:
    yield Setting(spellings=("-m", "--model"), value=launch.model_path)
    if launch.rpc:
        yield Setting(spellings=("--rpc", "-rpc"), value=launch.rpc)
    if launch.devices:
        yield Setting(spellings=("-dev", "--device"), value="/".join(launch.devices))
    yield Setting(spellings=("-ngl", "--n-gpu-layers"), value=str(launch.n_gpu_layers))
    if launch.split_mode != "layer":
        yield Setting(spellings=("-sm", "--split-mode"), value=launch.split_mode)
        yield Setting(spellings=("-mg", "--main-gpu"), value=str(launch.main_gpu))
    if launch.tensor_split:
        shares = render_shares(launch.tensor_split, "/")
        yield Setting(spellings=("-ts", "--tensor-split"), value=shares)
    if launch.rules:
        rules = render_overrides(launch.rules, separator=";")
        yield Setting(spellings=("-ot", "--override-tensor"), value=rules)
    yield Setting(spellings=("-b", "--batch-size"), value=str(launch.n_batch))
    yield Setting(spellings=("-ub", "--ubatch-size"), value=str(launch.n_ubatch))
    yield Setting(spellings=("-ctk", "--cache-type-k"), value=launch.type_k)
    yield Setting(spellings=("-ctv", "--cache-type-v"), value=launch.type_v)
    if launch.flash_attn is not None:
        value = "on" if launch.flash_attn else "off"
        yield Setting(spellings=("-fa", "--flash-attn"), value=value)
    if not launch.offload_kqv:
        yield Setting(spellings=("-nkvo", "--no-kv-offload"), value="1")
    if not launch.op_offload:
        yield Setting(spellings=("-nopo", "--no-op-offload"), value="1")
    if launch.no_host:
        yield Setting(spellings=("--no-host",), value="1")
    yield Setting(spellings=("-lm", "--load-mode"), value=launch.load_mode)
