r"""The launch as a systemd unit, for the system (`/etc/systemd/system`) or one user.

Quoting is systemd's, not a shell's (systemd.service(5) COMMAND LINES, systemd.syntax(7)
QUOTING): each argument in double quotes with C escapes, `%` doubled because specifiers
expand everywhere, `$` doubled because variables expand even inside quotes. Only the
program is taken as it stands, but for `%`.
"""

from __future__ import annotations

import re
from typing import Final

from offload.emit.launch import Launch
from offload.emit.target import Target, check_absolute, listening, model_name, server_argv
from offload.errors import UsageError

_PLAIN: Final = re.compile(r"[\w@+=:,./-]+", re.A)
_SHORT: Final = {"\\": "\\\\", '"': '\\"', "%": "%%"}
_UNIT: Final = """\
# systemctl enable --now, or systemctl --user enable --now
[Unit]
Description=llama-server with {name}
After=network-online.target

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=5
{limits}UMask=0077
NoNewPrivileges=yes
# harder, where it suits (systemctl edit): llama-server itself writes no files
#ProtectSystem=strict
#ProtectHome=read-only
#PrivateTmp=yes
#RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
#CapabilityBoundingSet=

[Install]
WantedBy=default.target
"""


def emit_systemd(launch: Launch, target: Target) -> str:
    """A service unit that listens on 127.0.0.1:8080 unless the target says otherwise."""
    check_absolute(launch)
    program, *arguments = server_argv(launch, listening(target))
    return _UNIT.format(
        name=model_name(launch, target).replace("%", "%%"),
        command=" \\\n    ".join((_program(program), *_lines(arguments))),
        limits="LimitMEMLOCK=infinity\n" if "mlock" in launch.load_mode else "",
    )


def _lines(arguments: list[str]) -> list[str]:
    """A flag and its value on a line of their own."""
    lines: list[str] = []
    for text in arguments:
        if text.startswith("-") or not lines:
            lines.append(quote_argument(text))
        else:
            lines[-1] += f" {quote_argument(text)}"
    return lines


def quote_argument(text: str) -> str:
    """One argument of ExecStart=, whatever bytes it holds."""
    if _PLAIN.fullmatch(text):
        return text
    return '"' + "".join(_escape(char) for char in text).replace("$", "$$") + '"'


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def _program(path: str) -> str:
    """The program: a whole path, or a name that systemd looks up in its own folders."""
    if "/" in path and not path.startswith("/"):
        raise UsageError(
            f"{path}: systemd starts from another folder; give the program's whole path"
        )
    if not path.isprintable() or path.startswith(("@", "-", ":", "+", "!", "|")) or "$" in path:
        raise UsageError(f"{path!r}: systemd would not take this as a program's name")
    return quote_argument(path)
