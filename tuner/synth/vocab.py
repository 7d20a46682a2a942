"""Which tokenizer does a written file carry?

`none`: no tokens, only their number, as llama.cpp's LLAMA_VOCAB_TYPE_NONE
reads it (src/llama-vocab.cpp, b11434); enough to plan, headers stay small.
`full`: as many tokens and merges as the real model, of about the real length:
for measuring how fast headers are read. `bytes`: a SentencePiece vocabulary
with one token per byte, so that any text can be tokenised and generated.
"""

from __future__ import annotations

from typing import Final

from offload.errors import UsageError
from tuner.shapes import Shape
from tuner.synth.container import Typed, Value

VOCABS: Final = ("none", "full", "bytes")
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_SPECIAL: Final = (("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL))
N_VOCAB_BYTES_MIN: Final = len(_SPECIAL) + 256 + 1  # special, bytes, the space


def _word(i: int) -> str:
    """A distinct word of 4 to 9 letters: the number in base 26, then some more letters."""
    digits, n = [], i
    for _ in range(4):
        n, digit = divmod(n, 26)
        digits.append(chr(97 + digit))
    return "".join(digits) + "etaoi"[: (i * 2654435761 >> 16) % 6]


def _byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in shown}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(shown))
    return [letters[byte] for byte in range(256)]


def _gpt2(n_vocab: int) -> dict[str, Value]:
    words = [("Ġ" if i % 2 else "") + _word(i) for i in range(max(0, n_vocab - 257))]
    tokens = [*_byte_letters(), *words, "<|endoftext|>"][:n_vocab]
    merges = [f"{word[: len(word) // 2]} {word[len(word) // 2 :]}" for word in words]
    types = [_NORMAL] * n_vocab
    types[-1] = _CONTROL
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed("i32", types),
        "tokenizer.ggml.merges": merges or ["a b"],
        "tokenizer.ggml.bos_token_id": n_vocab - 1,
        "tokenizer.ggml.eos_token_id": n_vocab - 1,
    }


def _sentencepiece(n_vocab: int) -> dict[str, Value]:
    if n_vocab < N_VOCAB_BYTES_MIN:
        raise UsageError(f"a byte vocabulary needs at least {N_VOCAB_BYTES_MIN} tokens")
    n_words = n_vocab - N_VOCAB_BYTES_MIN
    tokens = [text for text, _ in _SPECIAL] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += ["▁", *("▁" + _word(i) for i in range(n_words))]
    types = [kind for _, kind in _SPECIAL] + [_BYTE] * 256 + [_NORMAL] * (n_words + 1)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": Typed("f32", [-float(i) for i in range(n_vocab)]),
        "tokenizer.ggml.token_type": Typed("i32", types),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def make_sized_vocab(n_vocab: int, vocab: str) -> dict[str, Value]:
    """The tokenizer keys of a runnable file that has no catalogue entry: `none` or `bytes`."""
    if vocab == "none":
        return {"tokenizer.ggml.model": "none"}
    if vocab == "bytes":
        return _sentencepiece(n_vocab)
    raise UsageError(f"no vocabulary {vocab!r} of any size; one of none, bytes")


def make_vocab(shape: Shape, vocab: str) -> dict[str, Value]:
    """The tokenizer keys of a vocabulary kind; raises UsageError for an unknown one."""
    if vocab == "none":
        return {"tokenizer.ggml.model": "none"}
    if vocab == "bytes" or (vocab == "full" and shape.tokenizer == "llama"):
        return _sentencepiece(shape.n_vocab)
    if vocab == "full":
        return _gpt2(shape.n_vocab)
    raise UsageError(f"no vocabulary {vocab!r}; one of {', '.join(VOCABS)}")
