"""What does llama.cpp refuse once it knows the model?

Mirrors `llama_init_from_model` (src/llama-context.cpp, b11434), and one assertion of a graph.
"""

from __future__ import annotations

from collections.abc import Iterator

from offload.lint.case import Case
from offload.lint.finding import Finding, error
from offload.model import Model


def refusal_findings(case: Case) -> Iterator[Finding]:
    """Cache types that do not go with the model or with flash attention."""
    model, settings = case.model, case.settings
    k, v = settings.type_k, settings.type_v
    names = f"-ctk {k.name.lower()} -ctv {v.name.lower()}"
    if settings.flash_attn is False and v.is_quantized:
        yield error(
            "quantised-v-without-flash-attention",
            f"-ctv {v.name.lower()} needs flash attention, and -fa off forbids it; llama.cpp stops"
            " with 'quantized V cache requires flash_attn'",
            "-fa on, or -ctv f16",
        )
    if model is None:
        return
    yield from _slots(case, model)
    hp = model.hparams
    if settings.flash_attn is not False and not model.has_flash_attn and v.is_quantized:
        yield error(
            "quantised-v-without-flash-attention",
            f"-ctv {v.name.lower()} needs flash attention, which {model.arch} does not have",
            "-ctv f16",
        )
    if (hp.is_mla or model.arch == "deepseek4") and k is not v and not settings.is_ik:
        yield error(
            "mla-cache-types-differ",
            f"{names}: this model's cache holds keys and values in one, and llama.cpp refuses two"
            " types",
            f"-ctk {k.name.lower()} -ctv {k.name.lower()}",
        )
    if settings.flash_attn is False or not model.has_flash_attn:
        return
    for flag, type_, head_of in (("-ctk", k, hp.n_embd_head_k), ("-ctv", v, hp.n_embd_head_v)):
        heads = {head_of(il) for il in range(hp.n_layer_all - hp.n_layer_nextn)}
        uneven = sorted(head for head in heads if head % type_.block_size)
        if uneven:
            yield error(
                "cache-type-not-whole-blocks",
                f"{flag} {type_.name.lower()}: heads of {uneven[0]} are not whole blocks of"
                f" {type_.block_size}, and llama.cpp refuses them",
                f"{flag} f16",
            )


def _slots(case: Case, model: Model) -> Iterator[Finding]:
    """Kimi Linear's graph needs as many tokens of a ubatch for each slot with its own cache.

    Seen with b11434 on every `-np` and `-ub` tried; no other architecture does so.
    """
    settings = case.settings
    n, is_unified = settings.n_parallel or 1, settings.kv_unified is True
    n_ctx = settings.n_ctx or model.n_ctx_train or settings.n_batch
    n_ubatch = min(settings.n_ubatch, settings.n_batch, n_ctx)
    if model.arch == "kimi-linear" and not is_unified and n_ubatch % n:
        yield error(
            "slots-do-not-divide-ubatch",
            f"-np {n} with -ub {n_ubatch}: {model.arch} wants the ubatch to be a multiple of the"
            " slots where each has a cache of its own, and aborts (GGML_ASSERT(ggml_can_repeat))",
            f"-ub {max(n_ubatch // n, 1) * n}, or -kvu",
        )
