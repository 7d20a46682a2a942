"""What is a file that should be a GGUF and is not, and what should its owner do?"""

from __future__ import annotations

from typing import Final

_CONVERT: Final = "convert it with llama.cpp's convert_hf_to_gguf.py or download a GGUF instead"
_HTML: Final = (
    "it is a web page; the link led to a page about the file: use its download link "
    "(on huggingface.co …/resolve/main/FILE) or `hf download REPO FILE`"
)
_ARCHIVE: Final = "it is a compressed archive; unpack it first"
_OLD: Final = "it is in GGML's old format, which llama.cpp no longer reads; download a GGUF instead"
_PYTORCH: Final = f"it is a PyTorch checkpoint; {_CONVERT}"

_SIGNATURES: Final = (
    (b"version https://git-lfs",
     "it is a git-lfs pointer, a few lines in the model's place; run `git lfs pull` in its folder"),
    (b"PK\x03\x04", f"it is a zip archive or PyTorch checkpoint; unpack it, or {_CONVERT}"),
    (b"\x80\x02", _PYTORCH), (b"\x80\x04", _PYTORCH),
    (b"\x1f\x8b", _ARCHIVE), (b"\x28\xb5\x2f\xfd", _ARCHIVE), (b"\xfd7zXZ\x00", _ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", _ARCHIVE), (b"BZh", _ARCHIVE), (b"Rar!", _ARCHIVE),
    (b"lmgg", _OLD), (b"fmgg", _OLD), (b"tjgg", _OLD), (b"algg", _OLD),
)  # fmt: skip
_TEXT_SHOWN: Final = 40


def describe_foreign(start: bytes) -> str:
    """What a file beginning with `start` (a few hundred bytes, or all of it) is, and what helps."""
    if not start:
        return "it is empty; the download has not begun or failed: download it again"
    if b"GGUF".startswith(start):
        return f"it ends after {len(start)} bytes; the download is incomplete: resume it"
    if not start.strip(b"\0"):
        return "it begins with zeros; the download is incomplete: resume it"
    for signature, description in _SIGNATURES:
        if start.startswith(signature):
            return description
    if start[8:10] in (b'{"', b"{ ", b"{}") and start[6:8] == b"\0\0":
        return f"it is a safetensors file; {_CONVERT}"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:9].lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<!--")):
        return _HTML
    shown = text[:_TEXT_SHOWN].decode("utf-8", "replace").rstrip("\ufffd")
    if shown and all(c.isprintable() or c.isspace() for c in shown):
        return f"it is text beginning {shown.split(chr(10))[0]!r}; download the model's .gguf file"
    return f"it begins with the bytes {start[:4].hex(' ')}; download it again or give another file"
