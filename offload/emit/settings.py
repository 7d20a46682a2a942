"""What is a launch, flag by flag, and how is each flag said to a given build?

Names, environment variables and defaults are those of common/arg.cpp (b11434).
What an older build cannot be told in the same words is told in its own (`--no-mmap`,
a rule instead of `-ncmoe`), left out where that build does it anyway, or refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from offload.emit.build import Build
from offload.emit.launch import Launch
from offload.errors import UsageError
from offload.rules import cpu_moe_rule, n_cpu_moe_rules, render_overrides

_NO_SUBSTITUTE: Final = ("",)


class Setting(NamedTuple):
    """One flag: all its spellings, ours first; `value` None makes it a switch.

    `env` is its environment variable in b11434, None where there is none; a flag that
    `negates` another shares that one's. `older` are the switches that say the same to builds
    without the flag; empty where those do it unasked.
    """

    spellings: tuple[str, ...]
    value: str | None = None
    env: str | None = None
    negates: bool = False
    older: tuple[str, ...] = _NO_SUBSTITUTE

    @property
    def argv(self) -> tuple[str, ...]:
        """Flag and value as the newest build takes them."""
        return self.spellings[:1] if self.value is None else (self.spellings[0], self.value)

    @property
    def key(self) -> str:
        """The spelling that explains itself, as presets write it: without dashes."""
        return max(self.spellings, key=len).lstrip("-")

    @property
    def env_value(self) -> str:
        """The text of its environment variable; switches are `1` or `0`."""
        if self.value is not None:
            return self.value
        is_off = self.negates and not (self.env or "").startswith("LLAMA_ARG_NO_")
        return "0" if is_off else "1"


def render_shares(shares: Sequence[float], separator: str) -> str:
    """`-ts` values without needless decimals."""
    return separator.join(
        f"{share:.0f}" if share == int(share) else repr(share) for share in shares
    )


def with_rules_only(launch: Launch) -> Launch:
    """The same placement with `-cmoe` and `-ncmoe` written out as the rules they stand for.

    They come after the other rules, as on our command line: the first match wins.
    """
    rules = launch.rules
    if launch.cpu_moe:
        rules = (*rules, cpu_moe_rule())
    if launch.n_cpu_moe:
        rules = (*rules, *n_cpu_moe_rules(launch.n_cpu_moe))
    return replace(launch, rules=rules, cpu_moe=False, n_cpu_moe=None)


def server_settings(launch: Launch, build: Build) -> Iterator[Setting]:
    """All that decides what `launch` is, in the words of `build`.

    Raises UsageError for what the build cannot be told.
    """
    check_partial_layers(launch, build)
    if launch.kv_unified is False and not build.spelling(("-kvu", "--kv-unified")):
        raise UsageError(
            f"{build.describe()} has one KV cache for all slots; plan with --kv-unified, or use"
            " a newer llama.cpp"
        )
    if (launch.cpu_moe and not build.spelling(("-cmoe", "--cpu-moe"))) or (
        launch.n_cpu_moe and not build.spelling(("-ncmoe", "--n-cpu-moe"))
    ):
        launch = with_rules_only(launch)
    for setting in _settings(launch):
        yield from adapt(setting, build)


def adapt(setting: Setting, build: Build) -> Iterator[Setting]:
    """The setting with the spellings `build` knows, or what stands for it there."""
    if build.flags is None:
        yield setting
        return
    known = tuple(text for text in setting.spellings if text in build.flags)
    if known:
        env = next((build.environment[f] for f in known if f in build.environment), None)
        yield from _as_switch(setting._replace(spellings=known, env=env), build)
        return
    if not set(setting.older) <= build.flags:
        raise UsageError(
            f"{build.describe()} does not know {' or '.join(setting.spellings)}; b11434 does,"
            " or plan without it"
        )
    for flag in setting.older:
        env = build.environment.get(flag)
        yield Setting(spellings=(flag,), env=env, negates=flag.startswith("--no-"))


def check_partial_layers(launch: Launch, build: Build) -> None:
    """Refuse a partial `-ngl` for builds in which it means other layers."""
    if launch.is_partial and (build.is_ik or build.counts_output_last):
        whose = "ik_llama.cpp" if build.is_ik else f"{build.describe()}, older than about b7500,"
        raise UsageError(
            f"-ngl {launch.n_gpu_layers} of {launch.n_units}: {whose} would keep the output layer"
            " on the host and one layer more on a card; plan with all layers on the cards"
            " (-ngl all) or use a newer llama.cpp"
        )


def _as_switch(setting: Setting, build: Build) -> Iterator[Setting]:
    """`-fa on` as the bare switch it was until August 2025."""
    flag = setting.spellings[0]
    if "-fa" in setting.spellings and not build.hints.get(flag, "?"):
        if setting.value == "on":
            yield setting._replace(value=None)
        return
    yield setting


def _settings(launch: Launch) -> Iterator[Setting]:
    """Every setting in b11434's words, in the order of our command line."""
    yield Setting(spellings=("-m", "--model"), value=launch.model_path, env="LLAMA_ARG_MODEL")
    if launch.rpc:
        yield Setting(spellings=("--rpc",), value=launch.rpc, env="LLAMA_ARG_RPC")
    yield from _placement_settings(launch)
    yield from _context_settings(launch)
    yield from _run_settings(launch)
    if launch.draft_path is not None or launch.mmproj_path is not None:
        yield from _companion_settings(launch)
    # --fit aborts as soon as -ngl, -ts or an override is set, and says so only in the log
    yield Setting(spellings=("-fit", "--fit"), value="off", env="LLAMA_ARG_FIT", older=())
    yield Setting(
        spellings=("--load-mode", "-lm"),
        value=launch.load_mode,
        env="LLAMA_ARG_LOAD_MODE",
        older=_OLDER_LOAD_MODES[launch.load_mode],
    )


_OLDER_LOAD_MODES: Final = {
    "auto": (),
    "mmap": (),
    "none": ("--no-mmap",),
    "mlock": ("--no-mmap", "--mlock"),
    "mmap+mlock": ("--mlock",),
    "dio": ("--direct-io",),
}


def _placement_settings(launch: Launch) -> Iterator[Setting]:
    if launch.devices:
        names = ",".join(launch.devices)
        yield Setting(spellings=("-dev", "--device"), value=names, env="LLAMA_ARG_DEVICE")
    yield Setting(
        spellings=("-ngl", "--gpu-layers", "--n-gpu-layers"),
        value=str(launch.n_gpu_layers),
        env="LLAMA_ARG_N_GPU_LAYERS",
    )
    if launch.split_mode != "layer":
        yield Setting(
            spellings=("-sm", "--split-mode"), value=launch.split_mode, env="LLAMA_ARG_SPLIT_MODE"
        )
        yield Setting(
            spellings=("-mg", "--main-gpu"), value=str(launch.main_gpu), env="LLAMA_ARG_MAIN_GPU"
        )
    if launch.tensor_split:
        shares = render_shares(launch.tensor_split, ",")
        yield Setting(
            spellings=("-ts", "--tensor-split"), value=shares, env="LLAMA_ARG_TENSOR_SPLIT"
        )
    if launch.rules:
        yield Setting(
            spellings=("-ot", "--override-tensor"),
            value=render_overrides(launch.rules),
            env="LLAMA_ARG_OVERRIDE_TENSOR",
        )
    if launch.cpu_moe:
        yield Setting(spellings=("-cmoe", "--cpu-moe"), env="LLAMA_ARG_CPU_MOE")
    if launch.n_cpu_moe:
        yield Setting(
            spellings=("-ncmoe", "--n-cpu-moe"),
            value=str(launch.n_cpu_moe),
            env="LLAMA_ARG_N_CPU_MOE",
        )


def _context_settings(launch: Launch) -> Iterator[Setting]:
    yield Setting(spellings=("-c", "--ctx-size"), value=str(launch.n_ctx), env="LLAMA_ARG_CTX_SIZE")
    if launch.n_batch != 2048:
        yield Setting(
            spellings=("-b", "--batch-size"), value=str(launch.n_batch), env="LLAMA_ARG_BATCH"
        )
    yield Setting(
        spellings=("-ub", "--ubatch-size"), value=str(launch.n_ubatch), env="LLAMA_ARG_UBATCH"
    )
    if launch.n_parallel is not None:
        yield Setting(
            spellings=("-np", "--parallel"),
            value=str(launch.n_parallel),
            env="LLAMA_ARG_N_PARALLEL",
        )
    if launch.kv_unified:
        # until July 2025 one cache for all was the only kind there was
        yield Setting(spellings=("-kvu", "--kv-unified"), env="LLAMA_ARG_KV_UNIFIED", older=())
    elif launch.kv_unified is not None:
        # builds with -kvu alone split the cache unless told otherwise
        yield Setting(
            spellings=("-no-kvu", "--no-kv-unified"),
            env="LLAMA_ARG_KV_UNIFIED",
            negates=True,
            older=(),
        )
    for flag, long, env, value in (
        ("-ctk", "--cache-type-k", "LLAMA_ARG_CACHE_TYPE_K", launch.type_k),
        ("-ctv", "--cache-type-v", "LLAMA_ARG_CACHE_TYPE_V", launch.type_v),
    ):
        if value != "f16":
            yield Setting(spellings=(flag, long), value=value, env=env)


def _run_settings(launch: Launch) -> Iterator[Setting]:
    if launch.flash_attn is not None:
        yield Setting(
            spellings=("-fa", "--flash-attn"),
            value="on" if launch.flash_attn else "off",
            env="LLAMA_ARG_FLASH_ATTN",
        )
    if launch.swa_full:
        yield Setting(spellings=("--swa-full",), env="LLAMA_ARG_SWA_FULL")
    if not launch.offload_kqv:
        yield Setting(
            spellings=("-nkvo", "--no-kv-offload"), env="LLAMA_ARG_KV_OFFLOAD", negates=True
        )
    if not launch.op_offload:
        yield Setting(spellings=("--no-op-offload",))
    if launch.no_host:
        yield Setting(spellings=("--no-host",), env="LLAMA_ARG_NO_HOST")


def _companion_settings(launch: Launch) -> Iterator[Setting]:
    """What is loaded beside the model; a draft model drafts nothing unless its kind is said."""
    draft: list[tuple[tuple[str, ...], str | None, str | None, tuple[str, ...]]] = []
    if launch.draft_path is not None:
        ngl = launch.draft_n_gpu_layers
        type_k, type_v = (
            None if name == "f16" else name for name in (launch.draft_type_k, launch.draft_type_v)
        )
        draft = [
            (
                ("-md", "--model-draft", "--spec-draft-model"),
                launch.draft_path,
                "LLAMA_ARG_SPEC_DRAFT_MODEL",
                _NO_SUBSTITUTE,
            ),
            # older builds draft with any model they are given
            (("--spec-type",), "draft-simple", "LLAMA_ARG_SPEC_TYPE", ()),
            (
                ("-devd", "--device-draft", "--spec-draft-device"),
                launch.draft_device,
                None,
                _NO_SUBSTITUTE,
            ),
            (
                ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"),
                None if ngl is None else str(ngl) if ngl >= 0 else "all",
                "LLAMA_ARG_N_GPU_LAYERS_DRAFT",
                _NO_SUBSTITUTE,
            ),
            (
                ("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"),
                type_k,
                "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K",
                _NO_SUBSTITUTE,
            ),
            (
                ("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"),
                type_v,
                "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V",
                _NO_SUBSTITUTE,
            ),
        ]
    for spellings, value, env, older in draft:
        if value is not None:
            yield Setting(spellings=spellings, value=value, env=env, older=older)
    if launch.mmproj_path is None:
        return
    path, card = launch.mmproj_path, launch.mmproj_device
    yield Setting(spellings=("-mm", "--mmproj"), value=path, env="LLAMA_ARG_MMPROJ")
    if card == "none":
        yield Setting(
            spellings=("--no-mmproj-offload",), env="LLAMA_ARG_MMPROJ_OFFLOAD", negates=True
        )
    elif card is not None:
        yield Setting(
            spellings=("-mmdev", "--mmproj-device"), value=card, env="MTMD_BACKEND_DEVICE"
        )
