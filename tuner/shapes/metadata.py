"""Which GGUF keys does a model of these figures carry?

Mirrors what `load_hparams` and `load_arch_hparams` of llama.cpp (b11434) read,
in the form conversion/*.py writes them. Tokenizer keys are in vocab.py.
"""

from __future__ import annotations

from tuner.shapes.shape import Shape, Value

_EXPERT_WIDTH_IS_N_FF = ("llama", "olmoe", "granitemoe")  # as feed_forward_length


def _attention(s: Shape) -> dict[str, Value]:
    if s.mla is None:
        return {
            "attention.head_count_kv": s.n_head_kv,
            "attention.key_length": s.n_embd_head,
            "attention.value_length": s.n_embd_head,
        }
    mla = s.mla
    keys: dict[str, Value] = {
        "attention.head_count_kv": 1,  # MLA is stored as attention with one group
        "attention.kv_lora_rank": mla.n_lora_kv,
        "attention.key_length": mla.n_lora_kv + mla.n_rope,
        "attention.value_length": mla.n_lora_kv,
        "attention.key_length_mla": mla.n_key,
        "attention.value_length_mla": mla.n_value,
    }
    if mla.n_lora_q:
        keys["attention.q_lora_rank"] = mla.n_lora_q
    if s.indexer is not None:
        keys |= {
            "attention.indexer.head_count": s.indexer.n_head,
            "attention.indexer.key_length": s.indexer.n_embd_head,
            "attention.indexer.top_k": s.indexer.top_k,
        }
    return keys


def _window(s: Shape) -> dict[str, Value]:
    swa = s.swa
    if swa is None:
        return {}
    if s.arch == "llama4":  # the period is llama.cpp's own default; no key is written
        return {}
    keys: dict[str, Value] = {"attention.sliding_window": swa.n_swa}
    if s.arch == "gemma4":
        keys["attention.sliding_window_pattern"] = tuple(
            s.is_swa(il) for il in range(s.n_layer_all)
        )
        n_full = swa.n_embd_head_full or s.n_embd_head
        keys |= {
            "attention.key_length": n_full,
            "attention.value_length": n_full,
            "attention.key_length_swa": s.n_embd_head,
            "attention.value_length_swa": s.n_embd_head,
            "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 0,
            "rope.dimension_count": n_full,
            "rope.dimension_count_swa": s.n_embd_head,
            "attention.head_count_kv": tuple(
                s.n_head_kv if s.is_swa(il) else swa.n_head_kv_full or s.n_head_kv
                for il in range(s.n_layer_all)
            ),
        }
    return keys


def _experts(s: Shape) -> dict[str, Value]:
    if not s.n_expert:
        return {}
    keys: dict[str, Value] = {
        "expert_count": s.n_expert,
        "expert_used_count": s.n_expert_used,
    }
    if s.arch not in _EXPERT_WIDTH_IS_N_FF:
        keys["expert_feed_forward_length"] = s.n_ff_exp
    if s.n_ff_shexp:
        keys["expert_shared_feed_forward_length"] = s.n_ff_shexp
    if s.n_expert_shared:
        keys["expert_shared_count"] = s.n_expert_shared
    if s.n_layer_dense_lead or s.mla is not None:
        keys["leading_dense_block_count"] = s.n_layer_dense_lead
    if s.arch in ("llama4", "ernie4_5-moe"):
        keys["interleave_moe_layer_step"] = s.moe_step
    return keys


def _delta_net(s: Shape) -> dict[str, Value]:
    d = s.delta
    if d is None:
        return {}
    return {
        "full_attention_interval": d.interval,
        "ssm.conv_kernel": d.d_conv,
        "ssm.state_size": d.d_state,
        "ssm.group_count": d.n_group,
        "ssm.time_step_rank": d.dt_rank,
        "ssm.inner_size": d.n_value,
    }


def make_metadata(s: Shape) -> dict[str, Value]:
    """All hyper-parameter keys, `general.*` first, the rest with the architecture's prefix."""
    keys: dict[str, Value] = {
        "block_count": s.n_layer_all,
        "context_length": s.n_ctx_train,
        "embedding_length": s.n_embd,
        "feed_forward_length": s.n_ff or s.n_ff_exp,
        "vocab_size": s.n_vocab,
        "attention.head_count": s.n_head,
        "attention.layer_norm_rms_epsilon": s.f_norm_rms_eps,
        **_attention(s),
        **_experts(s),
        **_delta_net(s),
    }
    if s.n_rot is not None:
        keys["rope.dimension_count"] = s.n_rot
    if s.n_layer_nextn:
        keys["nextn_predict_layers"] = s.n_layer_nextn
    keys |= _window(s)
    keys |= s.extra
    general: dict[str, Value] = {
        "general.architecture": s.arch,
        "general.type": "model",
        "general.name": s.title,
    }
    return general | {f"{s.arch}.{key}": value for key, value in keys.items()}
