"""How is any text written as one YAML string that every reader takes back unchanged?

Double-quoted scalars of YAML 1.2 (chapter 7.3.1), with escapes that YAML 1.1
readers (PyYAML, Go's yaml.v3) know too. Everything that some reader could take for
a line break, a tab or something unprintable is escaped.
"""

from __future__ import annotations

from offload.errors import UsageError

_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quote_yaml(text: str) -> str:
    """`text` in double quotes, on one line; UsageError for bytes that are no text."""
    return '"' + "".join(_escape(char) for char in text) + '"'


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:
        raise UsageError(
            "YAML cannot hold bytes that are not UTF-8, and a path of this plan has some;"
            " link the model to another name and give that with --model"
        )
    if char.isprintable():
        return char
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
