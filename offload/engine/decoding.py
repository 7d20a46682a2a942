"""Which tokens follow a prompt, and how long did each part take?

One context, one sequence at a time. The chain of samplers and its order are those of
`common_sampler_init` (common/sampling.cpp, b11434), of which llama.cpp's defaults leave
top-k, top-p, min-p and temperature. Imported by children only.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Any

from offload.engine.library import Library
from offload.engine.loading import Loaded
from offload.engine.text_stream import TextStream
from offload.errors import LlamaCppError, UsageError


class Decoder:
    """Prompts through one context, one after the other."""

    def __init__(self, library: Library, loaded: Loaded) -> None:
        self._api = api = library.api
        self._model, self._context = loaded.model, loaded.context
        self._vocab = api.llama_model_get_vocab(self._model)
        self._memory = api.llama_get_memory(self._context)
        self._in_memory: list[int] = []
        self._pieces: dict[int, bytes] = {}
        self.has_text: bool = api.llama_vocab_type(self._vocab) != api.LLAMA_VOCAB_TYPE_NONE
        self.n_ctx = int(api.llama_n_ctx_seq(self._context))
        self._n_vocab = api.llama_vocab_n_tokens(self._vocab)
        self._n_batch = api.llama_n_batch(self._context)

    def run(
        self,
        request: Mapping[str, Any],
        emit: Callable[[dict[str, Any]], None],
        is_cancelled: Callable[[], bool],
    ) -> dict[str, Any]:
        """Answer one request; `emit` hears of every token as it comes.

        Returns why it stopped ("end", "length", "stop", "context", "cancelled"), the text
        that was held back, and the counts and seconds.
        """
        prompt = self._prompt_tokens(request["prompt"])
        sampler = _make_sampler(self._api, request["sampling"])
        try:
            start_s = time.perf_counter()
            n_reused = self._reuse(prompt if request["cache_prompt"] else [])
            is_read = self._read_prompt(prompt, n_reused, emit, is_cancelled)
            tokens = [self._sample(sampler)] if is_read else []
            prompt_s = time.perf_counter() - start_s
            text = TextStream(request["stop"])
            start_s = time.perf_counter()
            stop = self._write(request, sampler, tokens, text, emit, is_cancelled)
            decode_s = time.perf_counter() - start_s
        finally:
            self._api.llama_sampler_free(sampler)
        return {
            "stop": stop,
            "text": text.rest(),
            "n_prompt": len(prompt),
            "n_reused": n_reused,
            "n_decoded": max(len(tokens) - 1, 0),
            "prompt_s": prompt_s,
            "decode_s": decode_s,
        }

    def chat_prompt(self, messages: list[Mapping[str, str]]) -> str:
        """The messages as one prompt, by the model's own template.

        `llama_chat_apply_template` knows the templates of the common model families; it is
        no Jinja interpreter. Raises UsageError for others and for models without one.
        """
        api = self._api
        template = api.llama_model_chat_template(self._model, None)
        if template is None:
            raise UsageError("this model has no chat template; give the prompt as plain text")
        rows = [
            api.llama_chat_message(role=m["role"].encode(), content=m["content"].encode())
            for m in messages
        ]
        array = (api.llama_chat_message * len(rows))(*rows)
        n_bytes = api.llama_chat_apply_template(template, array, len(rows), True, None, 0)
        if n_bytes < 0:
            raise UsageError(
                "llama_chat_apply_template does not know this model's chat template;"
                " give the prompt as plain text"
            )
        buffer = ctypes.create_string_buffer(n_bytes + 1)
        api.llama_chat_apply_template(template, array, len(rows), True, buffer, len(buffer))
        text = buffer.raw[:n_bytes].decode(errors="replace")
        # tokenising adds this token once more
        first = self._piece(api.llama_vocab_bos(self._vocab), is_special=True).decode()
        if first and api.llama_vocab_get_add_bos(self._vocab):
            text = text.removeprefix(first)
        return text

    def _prompt_tokens(self, prompt: str | list[int]) -> list[int]:
        tokens = self._tokenize(prompt) if isinstance(prompt, str) else prompt
        if not tokens:
            raise UsageError(
                "the prompt is empty and this model has no start token; give it at least one token"
            )
        if not all(0 <= token < self._n_vocab for token in tokens):
            raise UsageError(
                f"the prompt has a token this model lacks; ids go from 0 to {self._n_vocab - 1}"
            )
        if len(tokens) > self.n_ctx:
            raise UsageError(
                f"the prompt has {len(tokens)} tokens, the context holds {self.n_ctx};"
                " shorten the prompt or plan with a larger -c"
            )
        return tokens

    def _tokenize(self, text: str) -> list[int]:
        if not self.has_text:
            raise UsageError(
                "this model file has no vocabulary; from Python, give the prompt as token ids"
            )
        raw = text.encode(errors="replace")
        array = (self._api.llama_token * (len(raw) + 8))()
        n = self._api.llama_tokenize(self._vocab, raw, len(raw), array, len(array), True, True)
        if n < 0:
            raise LlamaCppError(f"the prompt needs {-n} tokens, more than its bytes")
        return list(array[:n])

    def _reuse(self, prompt: list[int]) -> int:
        """How many tokens of `prompt` the context holds already; everything else is forgotten."""
        n = 0
        for known, wanted in zip(self._in_memory, prompt[:-1], strict=False):
            if known != wanted:
                break
            n += 1
        # recurrent states cannot go back to an earlier token
        if not n or not self._api.llama_memory_seq_rm(self._memory, 0, n, -1):
            n = 0
            self._api.llama_memory_clear(self._memory, True)
        del self._in_memory[n:]
        return n

    def _read_prompt(
        self,
        prompt: list[int],
        n_reused: int,
        emit: Callable[[dict[str, Any]], None],
        is_cancelled: Callable[[], bool],
    ) -> bool:
        """Decode the prompt in batches; False when it was cancelled between two of them."""
        for i in range(n_reused, len(prompt), self._n_batch):
            if is_cancelled():
                return False
            if i > n_reused:
                emit({"n_prompt_done": i})
            self._decode(prompt[i : i + self._n_batch])
        return True

    def _write(
        self,
        request: Mapping[str, Any],
        sampler: Any,
        tokens: list[int],
        text: TextStream,
        emit: Callable[[dict[str, Any]], None],
        is_cancelled: Callable[[], bool],
    ) -> str:
        """Append to `tokens` until something ends it; what that was."""
        if not tokens:
            return "cancelled"
        while True:
            is_end = self.has_text and self._api.llama_vocab_is_eog(self._vocab, tokens[-1])
            piece = b"" if is_end else self._piece_of(tokens[-1])
            emit({"token": tokens[-1], "text": text.add(piece)})
            if is_end:
                return "end"
            if text.is_stopped:
                return "stop"
            if len(tokens) == request["n_predict"]:
                return "length"
            if is_cancelled():
                return "cancelled"
            if len(self._in_memory) >= self.n_ctx:
                return "context"
            self._decode(tokens[-1:])
            tokens.append(self._sample(sampler))

    def _decode(self, tokens: list[int]) -> None:
        array = (self._api.llama_token * len(tokens))(*tokens)
        code = self._api.llama_decode(
            self._context, self._api.llama_batch_get_one(array, len(tokens))
        )
        if code != 0:
            self._in_memory.clear()
            why = "no room is left in the context" if code == 1 else f"code {code}"
            raise LlamaCppError(f"llama_decode failed: {why}")
        self._in_memory += tokens

    def _sample(self, sampler: Any) -> int:
        return int(self._api.llama_sampler_sample(sampler, self._context, -1))

    def _piece_of(self, token: int) -> bytes:
        """The bytes a token stands for, asked for once; none where there is no vocabulary."""
        if token not in self._pieces:
            self._pieces[token] = self._piece(token) if self.has_text else b""
        return self._pieces[token]

    def _piece(self, token: int, *, is_special: bool = False) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        n = self._api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, is_special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = self._api.llama_token_to_piece(self._vocab, token, buffer, -n, 0, is_special)
        return buffer.raw[: max(n, 0)]


def _make_sampler(api: Any, sampling: Mapping[str, Any]) -> Any:
    """A temperature of 0 takes the likeliest token, whatever the other numbers say."""
    chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
    if sampling["temperature"] <= 0:
        parts = [api.llama_sampler_init_greedy()]
    else:
        parts = [
            api.llama_sampler_init_top_k(sampling["top_k"]),
            api.llama_sampler_init_top_p(sampling["top_p"], 1),
            api.llama_sampler_init_min_p(sampling["min_p"], 1),
            api.llama_sampler_init_temp(sampling["temperature"]),
            api.llama_sampler_init_dist(sampling["seed"]),
        ]
    for part in parts:
        api.llama_sampler_chain_add(chain, part)
    return chain
