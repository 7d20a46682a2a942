"""What does llama.cpp refuse once it knows the model?

Mirrors `llama_init_from_model` (src/llama-context.cpp, b11434).
"""

from __future__ import annotations

from collections.abc import Iterator

from offload.lint.case import Case
from offload.lint.finding import Finding, error


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
