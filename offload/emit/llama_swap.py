"""The launch as a model of llama-swap's configuration (github.com/mostlygeek/llama-swap).

Read in internal/config at commit 032d7419: `cmd` is YAML text in which `${NAME}` is
replaced, lines that start with `#` are dropped, and the rest is split as a POSIX shell
would split it. `${PORT}` is llama-swap's to choose; `$` and `{` that follow each other in
one of our arguments are parted by quotes, so that they name no macro.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from offload.emit.launch import Launch
from offload.emit.target import (
    LOOPBACK,
    Target,
    check_absolute,
    check_text,
    load_wait_s,
    model_name,
    server_argv,
)
from offload.emit.yaml_text import quote_yaml
from offload.errors import UsageError


def emit_llama_swap(launch: Launch, target: Target) -> str:
    """A whole configuration with one model; UsageError where `cmd` cannot hold an argument."""
    check_absolute(launch)
    name = model_name(launch, target)
    if "${" in name:
        raise UsageError(f"--alias {name!r}: llama-swap would look for a macro in it")
    argv = server_argv(launch, replace(target, host=LOOPBACK, alias=None))
    words = [_word(text) for text in argv] + ["--port", "${PORT}"]
    return "\n".join(
        (
            "# seconds llama-swap waits until a model answers: by its size, on a slow disk",
            f"healthCheckTimeout: {load_wait_s(launch)}",
            "models:",
            f"  {quote_yaml(name)}:",
            f"    cmd: {_folded(words)}",
            "",
        )
    )


def _word(text: str) -> str:
    check_text(text, "a command of llama-swap")
    return shlex.quote(text).replace("${", "$''{")


def _folded(words: list[str]) -> str:
    r"""One double-quoted string over many lines: `\` at the end of a line joins it to the next."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") and lines:
            lines.append(word)
        elif lines:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    inner = [quote_yaml(line)[1:-1] for line in lines]
    return '"' + " \\\n      ".join(inner) + '"'
