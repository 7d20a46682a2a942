r"""The launch as a file of LLAMA_ARG_* variables, of which there are two kinds.

`env`: quoted values, for systemd's `EnvironmentFile=` (src/basic/env-file.c) and for a
shell (`set -a; . ./FILE`): inside double quotes both take a backslash before `"`, `\`,
`$` and a backquote as quoting it, and nothing else as special.
`docker-env`: for `docker run --env-file`, which takes what follows `=` as it stands.

Names are those of common/arg.cpp (b11434), or those the given build's help lists.
llama.cpp reads variables before flags, so flags on its command line win.
"""

from __future__ import annotations

from collections.abc import Iterator

from offload.emit.launch import Launch
from offload.emit.settings import Setting, server_settings
from offload.emit.target import Target, check_absolute, check_text
from offload.errors import UsageError

_CONTROL = "".join(map(chr, [*range(0x20), 0x7F]))
_CONTROL_BUT_TAB_AND_NEWLINE = _CONTROL.replace("\t", "").replace("\n", "")


def emit_env(launch: Launch, target: Target) -> str:
    """For systemd and shells: every value in double quotes."""
    lines = [
        "# llama-server reads these. systemd: EnvironmentFile=THIS FILE; shell: set -a; . ./FILE"
    ]
    for name, value in _variables(launch, target):
        check_text(value, "an environment file", _CONTROL_BUT_TAB_AND_NEWLINE)
        escaped = "".join(f"\\{char}" if char in '"\\$`' else char for char in value)
        lines.append(f'{name}="{escaped}"')
    return "\n".join(lines) + "\n"


def emit_docker_env(launch: Launch, target: Target) -> str:
    """For `docker run --env-file`: nothing quoted, so nothing with a line break in it."""
    lines = ["# llama-server reads these: docker run --env-file THIS FILE (no shell, no quotes)"]
    for name, value in _variables(launch, target):
        lines.append(f"{name}={check_text(value, 'an --env-file of docker', _CONTROL)}")
    return "\n".join(lines) + "\n"


def _variables(launch: Launch, target: Target) -> Iterator[tuple[str, str]]:
    if target.build.is_ik:
        raise UsageError(
            "ik_llama.cpp reads few settings from its environment; emit args, systemd or llama-swap"
        )
    check_absolute(launch)
    for setting in server_settings(launch, target.build):
        yield _name(setting, target), setting.env_value
    for name, value in (
        ("LLAMA_ARG_HOST", target.host),
        ("LLAMA_ARG_PORT", target.port),
        ("LLAMA_ARG_ALIAS", target.alias),
    ):
        if value is not None:
            yield name, str(value)


def _name(setting: Setting, target: Target) -> str:
    if setting.env is None:
        raise UsageError(
            f"{target.build.describe()} has no environment variable for {setting.spellings[0]};"
            " emit args, ini or systemd instead"
        )
    return setting.env
