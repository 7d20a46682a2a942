"""Which tokens follow a prompt greedily, and how long did each part take?

Imported by children only.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from offload.engine.library import Library
from offload.engine.loading import Loaded
from offload.errors import LlamaCppError, UsageError


def decode_greedily(
    library: Library, loaded: Loaded, prompt: str | list[int], n_predict: int, n_batch: int
) -> dict[str, Any]:
    """Run `prompt` (text or token ids) and at most `n_predict` tokens, until an end token."""
    api = library.api
    vocab = api.llama_model_get_vocab(loaded.model)
    has_text = api.llama_vocab_type(vocab) != api.LLAMA_VOCAB_TYPE_NONE
    prompt_tokens = _tokenize(api, vocab, prompt) if isinstance(prompt, str) else prompt
    n_vocab = api.llama_vocab_n_tokens(vocab)
    if not prompt_tokens or not all(0 <= token < n_vocab for token in prompt_tokens):
        raise UsageError(f"the prompt must have at least one token, each below {n_vocab}")
    sampler = api.llama_sampler_init_greedy()
    start_s = time.perf_counter()
    for i in range(0, len(prompt_tokens), n_batch):
        _decode(api, loaded.context, prompt_tokens[i : i + n_batch])
    tokens = [api.llama_sampler_sample(sampler, loaded.context, -1)]
    prompt_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    while len(tokens) < n_predict and not (has_text and api.llama_vocab_is_eog(vocab, tokens[-1])):
        _decode(api, loaded.context, tokens[-1:])
        tokens.append(api.llama_sampler_sample(sampler, loaded.context, -1))
    decode_s = time.perf_counter() - start_s
    return {
        "tokens": tokens,
        "text": b"".join(_piece(api, vocab, t) for t in tokens).decode(errors="replace")
        if has_text
        else "",
        "n_prompt": len(prompt_tokens),
        "prompt_s": prompt_s,
        "decode_s": decode_s,
    }


def _decode(api: Any, context: int, tokens: list[int]) -> None:
    array = (api.llama_token * len(tokens))(*tokens)
    code = api.llama_decode(context, api.llama_batch_get_one(array, len(tokens)))
    if code != 0:
        raise LlamaCppError(f"llama_decode failed with code {code}")


def _tokenize(api: Any, vocab: int, text: str) -> list[int]:
    if api.llama_vocab_type(vocab) == api.LLAMA_VOCAB_TYPE_NONE:
        raise UsageError("this model has no vocabulary; give the prompt as token ids")
    raw = text.encode()
    array = (api.llama_token * (len(raw) + 8))()
    n = api.llama_tokenize(vocab, raw, len(raw), array, len(array), True, True)
    if n < 0:
        raise LlamaCppError(f"the prompt needs {-n} tokens, more than its bytes")
    return list(array[:n])


def _piece(api: Any, vocab: int, token: int) -> bytes:
    buffer = ctypes.create_string_buffer(256)
    n = api.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, False)
    return buffer.raw[: max(n, 0)]
