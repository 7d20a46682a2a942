"""The llama-server command line of a launch.

Flags are those of common/arg.cpp (b11434); `known_flags` restricts them to what
a given build's `--help` lists. `-fit off` always: `--fit` aborts as soon as
`-ngl`, `-ts` or an override is set, and says so only in the log.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from offload.emit.launch import Launch
from offload.errors import UsageError
from offload.rules import render_overrides


def quote_argv(argv: Sequence[str]) -> str:
    """The command for a POSIX shell, whatever bytes the arguments hold."""
    return shlex.join(argv)


def quote_for_terminal(argv: Sequence[str]) -> str:
    """One printable line; bash's `$'…'` where a character would drive the terminal."""
    return " ".join(
        shlex.quote(text) if text.isprintable() else _ansi_c_quote(text) for text in argv
    )


def _ansi_c_quote(text: str) -> str:
    r"""`$'a\x0ab'`: every byte that is not plain ASCII as its hexadecimal escape."""
    plain = set(range(0x20, 0x7F)) - set(b"'\\")
    raw = text.encode("utf-8", "surrogateescape")
    return "$'" + "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in raw) + "'"


def render_shares(shares: Sequence[float], separator: str) -> str:
    """`-ts` values without needless decimals."""
    return separator.join(
        f"{share:.0f}" if share == int(share) else repr(share) for share in shares
    )


def emit_server_args(
    launch: Launch, program: str = "llama-server", known_flags: frozenset[str] | None = None
) -> tuple[str, ...]:
    """The argv that loads `launch`; UsageError when a needed flag is unknown to the build."""
    argv = [program]
    for spellings, *values in _settings(launch):
        argv += _pick(spellings, tuple(values), known_flags)
    return tuple(argv)


def _settings(launch: Launch) -> Iterator[tuple[str, *tuple[str, ...]]]:
    """Flag and values; alternative spellings of older builds are separated by spaces."""
    yield "-m", launch.model_path
    if launch.rpc:
        yield "--rpc", launch.rpc
    if launch.devices:
        yield "-dev", ",".join(launch.devices)
    yield "-ngl", str(launch.n_gpu_layers)
    if launch.split_mode != "layer":
        yield "-sm", launch.split_mode
        yield "-mg", str(launch.main_gpu)
    if launch.tensor_split:
        yield "-ts", render_shares(launch.tensor_split, ",")
    if launch.rules:
        yield "-ot", render_overrides(launch.rules)
    if launch.cpu_moe:
        yield ("-cmoe",)
    if launch.n_cpu_moe:
        yield "-ncmoe", str(launch.n_cpu_moe)
    yield "-c", str(launch.n_ctx)
    yield from _context_settings(launch)
    yield "?-fit", "off"
    yield from _load_settings(launch)


def _context_settings(launch: Launch) -> Iterator[tuple[str, *tuple[str, ...]]]:
    if launch.n_batch != 2048:
        yield "-b", str(launch.n_batch)
    yield "-ub", str(launch.n_ubatch)
    if launch.n_parallel is not None:
        yield "-np", str(launch.n_parallel)
    if launch.kv_unified is not None:
        yield ("-kvu",) if launch.kv_unified else ("-no-kvu",)
    if launch.type_k != "f16":
        yield "-ctk", launch.type_k
    if launch.type_v != "f16":
        yield "-ctv", launch.type_v
    if launch.flash_attn is not None:
        yield "-fa", "on" if launch.flash_attn else "off"
    if launch.swa_full:
        yield ("--swa-full",)
    if not launch.offload_kqv:
        yield ("-nkvo",)
    if not launch.op_offload:
        yield ("--no-op-offload",)
    if launch.no_host:
        yield ("--no-host",)


def _load_settings(launch: Launch) -> Iterator[tuple[str, *tuple[str, ...]]]:
    """The load mode; builds without `--load-mode` know `--no-mmap` and `--mlock`."""
    yield f"--load-mode/{launch.load_mode}", launch.load_mode


_OLDER_LOAD_MODES = {"none": ("--no-mmap",), "mlock": ("--mlock",), "mmap": (), "auto": ()}


def _pick(
    flag: str, values: tuple[str, ...], known_flags: frozenset[str] | None
) -> tuple[str, ...]:
    is_optional = flag.startswith("?")
    flag, _, mode = flag.removeprefix("?").partition("/")
    if known_flags is None or flag in known_flags:
        return (flag, *values)
    if mode in _OLDER_LOAD_MODES:
        return _OLDER_LOAD_MODES[mode]
    if is_optional:
        return ()
    raise UsageError(
        f"this llama-server does not know {flag}; use a newer build or plan without {flag}"
    )
