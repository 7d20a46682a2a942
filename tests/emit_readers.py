"""How do the readers of our files read them? Their documented rules, written down again.

Parsers of other people's formats, kept apart from what writes them. The real programs
judge the same files in tests/unit/test_emit_systemd.py, test_emit_compose.py and
tests/llama/test_emitted_files.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

SWITCHES = frozenset(
    "-cmoe --cpu-moe -kvu --kv-unified -no-kvu --no-kv-unified --swa-full -nkvo --no-kv-offload"
    " --no-op-offload --no-host --no-mmap --mlock".split()
)


def flags_of(argv: Iterable[str]) -> dict[str, str | None]:
    """Flag to value of a command line; switches have None."""
    words = iter(argv)
    return {flag: None if flag in SWITCHES else next(words) for flag in words}


def read_preset(text: str) -> dict[str, dict[str, str]]:
    """The grammar of llama.cpp's common/preset.cpp (b11434)."""
    sections: dict[str, dict[str, str]] = {}
    section = "default"
    for line in re.split(r"\r\n|\n|\r", text):
        if header := re.match(r"\[[ \t]*([^]]+)[ \t]*\][ \t]*([;#].*)?$", line):
            section = header[1]
            sections[section] = {}
        elif pair := re.match(r"([a-zA-Z_][\w.-]*)[ \t]*=[ \t]*(.*)$", line, re.A):
            value = re.split(r"[ \t]*[;#]", pair[2], maxsplit=1)[0].rstrip(" \t")
            sections.setdefault(section, {})[pair[1]] = value
        else:
            assert re.fullmatch(r"[ \t]*([;#].*)?", line), line
    return sections


def read_environment_file(text: str) -> dict[str, str]:
    """systemd's EnvironmentFile=, as far as double quotes go (src/basic/env-file.c)."""
    found = {}
    rest = text
    while rest:
        if comment := re.match(r"[#;][^\n]*\n|\n", rest):
            rest = rest[comment.end() :]
            continue
        pair = re.match(r'(\w+)="((?:[^"\\]|\\.)*)"\n', rest, re.S)
        assert pair is not None, rest[:80]
        found[pair[1]] = re.sub(r'\\(["\\`$])', r"\1", pair[2])
        rest = rest[pair.end() :]
    return found


def read_docker_env(text: str) -> dict[str, str]:
    """`docker run --env-file`: `#` starts a comment line, all else stands for itself."""
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def read_llama_swap(text: str, name: str, port: int = 5800) -> list[str]:
    """What llama-swap runs: YAML, macros, comments, then a POSIX split (internal/config)."""
    assert "${env." not in text
    config = yaml.safe_load(text)
    command = config["models"][name]["cmd"].replace("${PORT}", str(port))
    assert not re.search(r"\$\{[a-zA-Z0-9_-]+\}", command)
    assert "\n" not in command
    return shlex.split(command)


def read_unit_command(text: str) -> list[str]:
    """ExecStart= of a unit: systemd.service(5) COMMAND LINES and systemd.syntax(7) QUOTING."""
    joined = re.sub(r"\\\n", " ", text)
    command = re.search(r"^ExecStart=(.*)$", joined, re.M)
    assert command is not None
    words = re.findall(r'"(?:[^"\\]|\\.)*"|[^\s"]+', command[1])
    return [_read_unit_word(word, is_program=i == 0) for i, word in enumerate(words)]


def _read_unit_word(word: str, *, is_program: bool) -> str:
    escapes = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}
    raw = bytearray()
    inner = word[1:-1] if word.startswith('"') else word
    for part in re.findall(r"\\x[0-9a-f]{2}|\\.|[^\\]", inner, re.S):
        if part.startswith("\\x"):
            raw.append(int(part[2:], 16))
        else:
            raw += (escapes[part[1]] if part.startswith("\\") else part).encode()
    text = raw.decode("utf-8", "surrogateescape")
    assert not re.search(r"(?<!%)(%%)*%(?!%)", text), "a specifier"
    text = text.replace("%%", "%")
    if is_program:
        return text
    assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", text), "a variable"
    return text.replace("$$", "$")


def read_compose(text: str) -> Mapping[str, Any]:
    """The service of a Compose file with `$$` undone in every string."""
    service = yaml.safe_load(text)["services"]["llama-server"]
    undone = _undouble(service)
    assert isinstance(undone, Mapping)
    return undone


def _undouble(value: Any) -> Any:
    if isinstance(value, str):
        assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", value), "a variable"
        return value.replace("$$", "$")
    if isinstance(value, list):
        return [_undouble(item) for item in value]
    if isinstance(value, dict):
        return {key: _undouble(item) for key, item in value.items()}
    return value
