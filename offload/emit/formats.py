"""Into which formats can a launch be written? The one list for command line, docs and tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from offload.emit.bench import emit_bench_args
from offload.emit.compose import emit_compose
from offload.emit.env import emit_docker_env, emit_env
from offload.emit.ik import emit_ik_args
from offload.emit.ini import emit_ini
from offload.emit.launch import Launch
from offload.emit.llama_swap import emit_llama_swap
from offload.emit.server import quote_argv
from offload.emit.systemd import emit_systemd
from offload.emit.target import Target, server_argv
from offload.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format: `takes` are the flags of `offload emit` that mean something in it.

    `is_file` is true for files, which are read from some other folder and need the model's
    whole path; `program` is the one that runs in the end.
    """

    name: str
    summary: str
    emit: Callable[[Launch, Target], str]
    takes: frozenset[str]
    is_file: bool = True
    program: str = "llama-server"


def _args(launch: Launch, target: Target) -> str:
    return quote_argv(server_argv(launch, target)) + "\n"


def _bench(launch: Launch, target: Target) -> str:
    program = target.program or "llama-bench"
    return quote_argv(emit_bench_args(launch, program, target.build)) + "\n"


def _ik(launch: Launch, target: Target) -> str:
    argv = (*emit_ik_args(launch, target.program or "llama-server"), *_listen(target))
    return quote_argv(argv) + "\n"


def _listen(target: Target) -> tuple[str, ...]:
    host = () if target.host is None else ("--host", target.host)
    port = () if target.port is None else ("--port", str(target.port))
    return (*host, *port, *(() if target.alias is None else ("--alias", target.alias)))


_LISTEN: Final = frozenset({"host", "port", "alias"})

FORMATS: Final = (
    Format(
        name="args",
        summary="a llama-server command for a shell",
        emit=_args,
        takes=_LISTEN,
        is_file=False,
    ),
    Format(
        name="bench",
        summary="a llama-bench command for a shell",
        emit=_bench,
        takes=frozenset(),
        is_file=False,
        program="llama-bench",
    ),
    Format(
        name="ini",
        summary="a preset file for llama-server --models-preset",
        emit=emit_ini,
        takes=frozenset({"alias"}),
    ),
    Format(
        name="env",
        summary="LLAMA_ARG_* variables for systemd's EnvironmentFile= or a shell",
        emit=emit_env,
        takes=_LISTEN,
    ),
    Format(
        name="docker-env",
        summary="LLAMA_ARG_* variables for docker run --env-file",
        emit=emit_docker_env,
        takes=_LISTEN,
    ),
    Format(
        name="llama-swap",
        summary="a model of llama-swap's config.yaml",
        emit=emit_llama_swap,
        takes=frozenset({"alias"}),
    ),
    Format(
        name="systemd",
        summary="a systemd service unit",
        emit=emit_systemd,
        takes=_LISTEN,
    ),
    Format(
        name="compose",
        summary="a Docker Compose file",
        emit=emit_compose,
        takes=_LISTEN | {"image"},
    ),
    Format(
        name="ik",
        summary="an ik_llama.cpp llama-server command for a shell",
        emit=_ik,
        takes=_LISTEN,
        is_file=False,
    ),
)
FORMAT_NAMES: Final = tuple(form.name for form in FORMATS)


def find_format(name: str) -> Format:
    """The format of that name; UsageError lists those there are."""
    for form in FORMATS:
        if form.name == name:
            return form
    raise UsageError(f"--format {name!r}: one of {', '.join(FORMAT_NAMES)}")


def emit_as(launch: Launch, name: str, target: Target) -> str:
    """The launch in that format; UsageError for a flag of `target` it has no use for."""
    form = find_format(name)
    for flag in ("host", "port", "alias", "image"):
        if getattr(target, flag) is not None and flag not in form.takes:
            raise UsageError(f"--format {name} has no use for --{flag}; leave it out")
    return form.emit(launch, target)
